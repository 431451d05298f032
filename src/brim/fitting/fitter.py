"""BodyFitter: fits bodies to one model, with everything they have in common decided once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

from brim.errors import ContextOverflowError, MessageError
from brim.fitting.budget import Budget
from brim.fitting.flow import CountJob, plan_request, run_flow
from brim.fitting.plan import Plan, Request
from brim.fitting.planner import Planner
from brim.fitting.policies import Policy
from brim.fitting.prefix_cache import (
    CachedConversation,
    CheckedItem,
    ConversationKey,
    PrefixCache,
    encode_values,
)
from brim.fitting.provider_clearing import apply_clearing
from brim.fitting.summarizer import (
    SUMMARY_HEADING,
    Summarizer,
    compute_summary_room,
    run_with_summarizer,
    truncate_to_tokens,
    write_summary,
)
from brim.messages import Message
from brim.tokens import Counter
from brim.wire.body_reader import WrittenBody
from brim.wire.formats import (
    CHAT,
    BodyFormat,
    add_system_text,
    lower_reply_limit,
    read_tools,
    to_plain_body,
)
from brim.wire.objects import restore
from brim.wire.openai_chat import describe_message, find_origins
from brim.wire.prompt_counter import PromptCounter
from brim.wire.template_adapter import apply_template, match_origins
from brim.wire.template_rules import PERMISSIVE, TemplateRules

NO_SUMMARY: Final = "summarize returned no usable text, so messages were dropped without a summary"


@dataclass(frozen=True, slots=True)
class BodyFitter:
    """All that decides how a body is fitted, except the body itself."""

    counter: Counter
    budget: Budget
    policy: Policy
    prefix_cache: PrefixCache | None
    """None: no body continues another one."""
    rules: TemplateRules = PERMISSIVE
    """The rules of the chat template for chat messages."""
    pins: frozenset[int] = frozenset()
    mask: str | None = None
    prompt: PromptCounter | None = None
    """Counts chat messages exactly; None: their counts are sums of their parts."""
    summarize: Summarizer | None = None
    recall_hint: str = ""
    """What the notes say about reading what was trimmed; empty if that is not possible."""
    _keys: dict[str, ConversationKey] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def fit(
        self,
        body: Mapping[str, Any],
        format: BodyFormat,
        encoded_messages: Sequence[bytes] | None = None,
    ) -> Request:
        """Return the request that fits; raise `ContextOverflowError` if none does."""
        with self.parse(body, format, encoded_messages) as parsed:
            return parsed.build_request(parsed.plan())

    def parse(
        self,
        body: Mapping[str, Any],
        format: BodyFormat,
        encoded_messages: Sequence[bytes] | None = None,
    ) -> ParsedBody:
        """Read and count a body, except messages of the same conversation that were before.

        Use the result as a context manager, or close it: then the conversation is cached again.
        `encoded_messages` are those of `encode_values`; None: encode them here.
        """
        given = body
        if (encoded := self._encode(body, format, encoded_messages)) is None:
            body = to_plain_body(body, format)
            encoded = self._encode(body, format)
        try:
            conversation = self._find_conversation(body, format, encoded)
        except MessageError:  # arrays can be encoded, but not read
            if (body := to_plain_body(body, format)) is given:
                raise
            encoded = self._encode(body, format)
            conversation = self._find_conversation(body, format, encoded)
        is_complete = format.is_fittable(body)
        return ParsedBody(self, body, format, conversation, encoded, is_complete, given)

    def parse_once(self, body: Mapping[str, Any], format: BodyFormat) -> ParsedBody:
        """Read and count a body that no later body continues."""
        conversation = self._find_conversation(body, format, None)
        return ParsedBody(self, body, format, conversation, None, format.is_fittable(body), body)

    def _find_conversation(
        self,
        body: Mapping[str, Any],
        format: BodyFormat,
        encoded: Sequence[bytes] | None,
    ) -> CachedConversation:
        """Return the conversation of a body, read to its end."""
        key, tools = self._build_key(format), read_tools(body)
        cache = self.prefix_cache
        known = None if encoded is None or cache is None else cache.take(key, encoded)
        new = None if known is None else known.reader.read(body)
        if known is not None and new is not None and not self._replaces_default_system(new):
            known.planner.extend(new)
            return known
        planner = Planner(
            self.counter,
            self.budget,
            self.policy,
            tools,
            pins=self.pins,
            mask=self.mask,
            summary_room=self.summary_room,
            recall_hint=self.recall_hint,
        )
        fresh = CachedConversation(key, planner, format.create_reader())
        messages = fresh.reader.read(body) or ()
        planner.system_tokens = self.count_default_system(messages)
        planner.extend(messages)
        return fresh

    def count_default_system(self, messages: Sequence[Message]) -> int:
        """Return the tokens that the template prints in place of a system text."""
        return 0 if self._replaces_default_system(messages) else self.counter.default_system

    def _replaces_default_system(self, messages: Sequence[Message]) -> bool:
        """Return whether the messages have a system text, which the template prints instead."""
        default = self.counter.default_system
        return default > 0 and any(message.role == "system" for message in messages)

    def _encode(
        self,
        body: Mapping[str, Any],
        format: BodyFormat,
        encoded_messages: Sequence[bytes] | None = None,
    ) -> list[bytes] | None:
        """Return the bytes that identify a conversation; None if it is not plain JSON."""
        messages = body.get(format.messages_key)
        if self.prefix_cache is None or not isinstance(messages, list | tuple):
            return None
        head = body.get("tools"), body.get(format.system_key)
        if encoded_messages is None:
            return encode_values((*head, *messages))
        encoded = encode_values(head)
        return encoded and [*encoded, *encoded_messages]

    @property
    def summary_room(self) -> int:
        """Tokens that a trim leaves free for a summary."""
        return 0 if self.summarize is None else compute_summary_room(self.budget.limit)

    def _build_key(self, format: BodyFormat) -> ConversationKey:
        key = self._keys.get(format.name)
        if key is None:
            has_summary = self.summarize is not None
            settings = (
                *(self.budget, self.policy.identity, self.pins, self.mask, has_summary),
                self.recall_hint,
            )
            key = ConversationKey((format.name, self.counter.name, settings))
            self._keys[format.name] = key
        return key


class ParsedBody(NamedTuple):
    """A body that was read and counted: it can be planned and rendered."""

    fitter: BodyFitter
    body: Mapping[str, Any]
    format: BodyFormat
    conversation: CachedConversation
    encoded: Sequence[bytes] | None
    """The key of the conversation in the cache; None if it cannot be cached."""
    is_complete: bool
    """Whether the body contains the whole conversation; the server may store a part of it."""
    given: Mapping[str, Any]
    """The body as the caller gave it; `body` has JSON data in place of objects."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Return the conversation to the cache."""
        conversation = self.conversation
        cache = self.fitter.prefix_cache
        if cache is None or self.encoded is None or conversation.planner.has_requested_trim:
            return
        cache.put(conversation, self.encoded)

    @property
    def planner(self) -> Planner:
        return self.conversation.planner

    def plan(self) -> Plan:
        """Return what to send; raise `ContextOverflowError` if nothing that may be sent fits."""
        planner = self.conversation.planner
        planner.check_pins()
        if not self.is_complete:
            return planner.plan_relay()
        if (cleared := self.plan_cleared()) is not None:
            return cleared
        plan = self._plan_once()
        if self.fitter.summarize is None or not (dropped := self._find_uncovered(plan)):
            return plan
        before, text = self.conversation.summary, self._summarize(self.fitter.summarize, dropped)
        self._set_summary(text or before)
        self.conversation.covered |= dropped
        try:
            plan = self._plan_once()
        except ContextOverflowError:
            self._set_summary(before)
            plan = self._plan_once()
        return plan if text else replace(plan, warnings=[*plan.warnings, NO_SUMMARY])

    def _plan_once(self) -> Plan:
        planner, prompt = self.conversation.planner, self.fitter.prompt
        if prompt is None or self.format is not CHAT:
            return planner.plan()
        flow = plan_request(planner, self.apply_template, count="always", continues=False)
        return run_flow(
            flow, lambda job: prompt.count(job.body) if isinstance(job, CountJob) else None
        )

    def _find_uncovered(self, plan: Plan) -> set[int]:
        """Return the turns that a plan drops and that are in no summary yet."""
        messages, covered = plan.history.messages, self.conversation.covered
        dropped = {index for run in plan.dropped_runs for index in range(run.start, run.stop)}
        return {index for index in dropped - covered if messages[index].role != "system"}

    def _summarize(self, summarize: Summarizer, dropped: set[int]) -> str | None:
        """Return a summary of dropped turns and of the previous summary; None if there is none."""
        planner, previous = self.planner, self.conversation.summary
        history, count = planner.history, planner.counter.text
        turns = [describe_message(history.messages[index]) for index in sorted(dropped)]
        replaced = sum(map(history.tokens, dropped)) + count(previous)
        text = run_with_summarizer(write_summary(previous, turns, replaced, count), summarize)
        return text and truncate_to_tokens(text, self.fitter.summary_room, count)

    def _set_summary(self, text: str) -> None:
        """Set the summary: in the note at the gap, or in the system text if there are no notes."""
        planner = self.planner
        self.conversation.summary = text
        if self.fitter.policy.has_summary_note:
            planner.summary = text
            return
        shown = planner.counter.message(Message("system", (self._summary_block,))) if text else 0
        default = self.fitter.count_default_system(planner.history.messages)
        planner.system_tokens = shown or default
        planner.summary_room = max(0, self.fitter.summary_room - shown)

    @property
    def _summary_block(self) -> str:
        """The summary as a part of the system text; empty if it is not there."""
        text = self.conversation.summary
        return (
            f"{SUMMARY_HEADING}\n{text}" if text and not self.fitter.policy.has_summary_note else ""
        )

    def plan_cleared(self) -> Plan | None:
        """Return a plan that sends everything, because the provider clears enough of it."""
        if "context_management" not in self.body:
            return None
        return apply_clearing(self.conversation.planner.plan_all(), self.body)

    def plan_untrimmed(self) -> Plan | None:
        """Return a plan that sends everything; None if that does not fit or was trimmed before."""
        return self.conversation.planner.plan_untrimmed() if self.is_complete else None

    def apply(self, plan: Plan) -> Mapping[str, Any]:
        """Return the body with the changes of a plan; the same object if there are none."""
        return self.conversation.reader.apply(self.body, plan).body

    def apply_template(self, plan: Plan) -> Mapping[str, Any]:
        """Return the body with the changes of a plan, in the shape that the template accepts."""
        return self._write(plan).body

    def _write(self, plan: Plan) -> WrittenBody:
        rules, out = self.fitter.rules, self.conversation.reader.apply(self.body, plan)
        if block := self._summary_block:
            is_chat = self.format is CHAT
            origins = find_origins(plan) if is_chat else out.origins
            out = add_system_text(WrittenBody(out.body, origins), self.format, block)
        if rules is PERMISSIVE or rules.free or self.format is not CHAT:
            return out
        messages = out.body["messages"]
        shaped = apply_template(messages, rules)
        origins = match_origins(messages, out.origins or find_origins(plan), shaped)
        return WrittenBody({**out.body, "messages": shaped}, origins)

    def build_body(self, plan: Plan) -> Mapping[str, Any]:
        """Return the body to send; the same object if nothing has to change."""
        return self._finish(self._write(plan), plan)

    def _finish(self, out: WrittenBody, plan: Plan) -> Mapping[str, Any]:
        if self.format is not CHAT and plan.is_trimmed:
            self._check(out, plan)
        return lower_reply_limit(out.body, self.format, plan.reply_room, plan.budget.reply)

    def build_request(self, plan: Plan) -> Request:
        """Return the request to send. The caller may change it: its list is a copy."""
        written, key = self._write(plan), self.format.messages_key
        body = dict(self._finish(written, plan))
        messages = body.get(key)
        if not isinstance(messages, list | tuple):
            return Request(body, plan, key)
        body[key], origins = list(messages), None
        if written.origins is not None:
            origins = self._compare(body[key], written.origins)
        if self.given is not self.body:
            self._restore(body, self._find_origins(written, plan))
        return Request(body, plan, key, origins)

    def _find_origins(self, written: WrittenBody, plan: Plan) -> Sequence[int | None]:
        if written.origins is not None:
            return written.origins
        is_chat = self.format is CHAT
        return find_origins(plan) if is_chat else range(len(self.body[self.format.messages_key]))

    def _compare(
        self, messages: Sequence[object], origins: Sequence[int | None]
    ) -> list[tuple[int | None, bool]]:
        """Return for each message the index of its input, and whether it changed."""
        inputs = self.body[self.format.messages_key]
        return [
            (origin, origin is None or message is not inputs[origin])
            for origin, message in zip(origins, messages, strict=True)
        ]

    def _restore(self, body: dict[str, Any], origins: Sequence[int | None]) -> None:
        """Put the caller's objects back into a body."""
        for key in self.given.keys() & {"tools", self.format.system_key}:
            body[key] = restore(self.given[key], self.body[key], body[key])
        key = self.format.messages_key
        given, plain = self.given[key], self.body[key]
        if plain is not given:
            body[key] = [
                message if origin is None else restore(given[origin], plain[origin], message)
                for origin, message in zip(origins, body[key], strict=True)
            ]

    def _check(self, out: WrittenBody, plan: Plan) -> None:
        """Count the trimmed body again, in a format whose items depend on each other."""
        tokens = self._recount_changes(out, plan)
        if tokens is None:
            tokens = self._recount(out.body)
        limit = plan.limit
        if plan.tokens > limit:  # the server's own count allows more, and needs no margin
            limit = max(plan.tokens, plan.budget.room)
        if tokens > limit:
            raise self.planner.overflow_error(replace(plan, tokens=tokens))

    def _recount(self, body: Mapping[str, Any]) -> int:
        """Return the tokens of a trimmed body. It grows like the original and is cached like it."""
        with replace(self.fitter, pins=frozenset()).parse(body, self.format) as sent:
            return sent.planner.plan_all().tokens

    def _recount_changes(self, out: WrittenBody, plan: Plan) -> int | None:
        """Return the tokens of a trimmed body in which only texts of items changed, else None.

        Only an item that changed since the last request is read again.
        """
        key, known = self.format.messages_key, self.conversation.checked
        given, items = self.body[key], out.body[key]
        if self._summary_block or [*(out.origins or ())] != [*range(len(given))]:
            return None
        tokens = plan.before
        for position, item in enumerate(items):
            if item is given[position]:
                continue
            if (encoded := encode_values([item])) is None:
                return None
            last = known.get(position)
            if last is None or last.encoded != encoded:
                before, after = self._read_alone(given[position]), self._read_alone(item)
                if [turn.role for turn in before] != [turn.role for turn in after]:
                    return None
                count = self.planner.counter.message
                added = sum(map(count, after)) - sum(map(count, before))
                last = known[position] = CheckedItem(encoded, added)
            tokens += last.added
        return tokens

    def _read_alone(self, item: object) -> Sequence[Message]:
        return self.format.create_reader().read({self.format.messages_key: [item]}) or ()
