"""Fitter: bodies made to fit one model, with all that is the same for each of them decided once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from brim import wire
from brim.fitting.plan import Request
from brim.fitting.planner import Planner
from brim.fitting.prefix_cache import (
    CachedConversation,
    ConversationKey,
    check_depth,
    encode_values,
)
from brim.wire import openai_chat, validate_tools
from brim.wire.templates import PERMISSIVE, TemplateRules, apply_template

if TYPE_CHECKING:
    from brim.fitting.budget import Budget
    from brim.fitting.plan import Plan
    from brim.fitting.policies import Policy
    from brim.fitting.prefix_cache import PrefixCache
    from brim.tokens import Counter


@dataclass(frozen=True, slots=True)
class Fitter:
    """What decides how a body is fitted, beside the body itself."""

    counter: Counter
    budget: Budget
    policy: Policy
    memory: PrefixCache
    rules: TemplateRules = PERMISSIVE
    """By which chat messages go out."""
    pins: frozenset[int] = frozenset()
    mask: str | None = None
    _keys: dict[str, ConversationKey] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def fit(self, body: Mapping[str, Any], form: wire.Format) -> Request:
        with self.reading(body, form) as reading:
            return reading.drawn(reading.plan())

    def reading(self, body: Mapping[str, Any], form: wire.Format) -> ParsedBody:
        """A body read and counted; what was said before in the same conversation is not again.

        To be used as a context, or closed: then others may go on with the conversation.
        """
        tools = read_tools(body)
        spelling = _encode_body(body, form, tools)
        conversation = self._conversation(body, form, tools, spelling)
        if spelling is None:
            check_depth(body.get(form.MESSAGES))
        return ParsedBody(self, body, form, conversation, spelling, form.fittable(body))

    def _conversation(
        self,
        body: Mapping[str, Any],
        form: wire.Format,
        tools: Sequence[Mapping[str, Any]],
        spelling: Sequence[bytes] | None,
    ) -> CachedConversation:
        """The conversation of a body, read to its end."""
        key = self._key(form)
        known = None if spelling is None else self.memory.take(key, spelling)
        if known is not None and (new := known.reader.read(body)) is not None:
            if new:
                known.planner.extend(new)
            return known
        planner = Planner(
            self.counter, self.budget, self.policy, tools, pins=self.pins, mask=self.mask
        )
        fresh = CachedConversation(key, planner, form.Reader())
        planner.extend(fresh.reader.read(body) or ())
        return fresh

    def _key(self, form: wire.Format) -> ConversationKey:
        """What decides how a body is read and planned, beside the body itself."""
        key = self._keys.get(form.__name__)
        if key is None:
            deciding = self.budget, self.policy.identity, self.pins, self.mask
            key = self._keys[form.__name__] = ConversationKey(
                (form.__name__, self.counter.name, deciding)
            )
        return key


def _encode_body(
    body: Mapping[str, Any], form: wire.Format, tools: Sequence[Mapping[str, Any]]
) -> list[bytes] | None:
    """What a conversation is known by: all that is read of the body."""
    messages = body.get(form.MESSAGES)
    if not isinstance(messages, list | tuple):
        return None
    return encode_values((tools, body.get(form.SYSTEM), *messages))


class ParsedBody(NamedTuple):
    """A body as it was read, to be planned and written back."""

    fitter: Fitter
    body: Mapping[str, Any]
    form: wire.Format
    conversation: CachedConversation
    spelling: Sequence[bytes] | None
    """By what the conversation is remembered, if it can be."""
    is_whole: bool
    """Whether the conversation is all here; what a server keeps of it cannot be counted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        conversation = self.conversation
        if self.spelling is not None and not conversation.planner.asked:
            self.fitter.memory.put(conversation, self.spelling)

    @property
    def planner(self) -> Planner:
        return self.conversation.planner

    def plan(self) -> Plan:
        """What is sent of it. Raises `ContextOverflowError` where nothing that may go is enough."""
        planner = self.conversation.planner
        planner.check_pins()
        return planner.plan() if self.is_whole else planner.relayed()

    def untouched(self) -> Plan | None:
        """All of it, where that fits and nothing was left out of it before."""
        return self.conversation.planner.untouched() if self.is_whole else None

    def applied(self, plan: Plan) -> Mapping[str, Any]:
        """The body with what a plan changes of it; the very same where that is nothing."""
        return self.conversation.reader.apply(self.body, plan)

    def shaped(self, plan: Plan) -> Mapping[str, Any]:
        """The same in the form that the template accepts."""
        rules, out = self.fitter.rules, self.applied(plan)
        if rules is PERMISSIVE or rules.free or self.form is not openai_chat:
            return out
        return {**out, "messages": apply_template(out["messages"], rules)}

    def drawn(self, plan: Plan) -> Request:
        """The request that a plan makes; whoever gets it may change it."""
        body, key = dict(self.written(plan)), self.form.MESSAGES
        if isinstance(body.get(key), list | tuple):
            body[key] = list(body[key])
        return Request(body, plan, key)

    def written(self, plan: Plan) -> Mapping[str, Any]:
        """The body that a plan sends; the very same where nothing has to change."""
        form, out = self.form, self.shaped(plan)
        if form is not openai_chat and plan.is_trimmed:
            self._check(out, plan)
        return wire.lower_reply_limit(out, plan, form)

    def _check(self, out: Mapping[str, Any], plan: Plan) -> None:
        """Count what goes out once more, in a format whose items lean on each other.

        It grows like what comes in, so it is remembered like that.
        """
        with replace(self.fitter, pins=frozenset()).reading(out, self.form) as sent:
            tokens = sent.planner.whole().tokens
        limit = plan.limit
        if plan.tokens > limit:  # the server's own numbers allow more, and need no margin
            limit = max(plan.tokens, plan.budget.room)
        if tokens > limit:
            raise self.planner.overflow(replace(plan, tokens=tokens))


def read_tools(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The tools that a body offers."""
    return validate_tools(body.get("tools")) or ()
