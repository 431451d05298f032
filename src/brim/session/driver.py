"""SessionDriver: the internal interface of a session.

A program that sends a session's requests uses it: brim's client, its shell, its tests. It is not
part of the public API. `brim.session.session.get_driver` returns the driver of a session.

The driver does no I/O. If a decision needs the server or a summarizer, the methods that return a
`Flow` yield a job, and the caller sends back the result or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, TypedDict

from brim.errors import BudgetError, InputError, MessageError, Overflow
from brim.fitting.clip import clip
from brim.fitting.flow import CountMode, Flow, confirm_reply
from brim.fitting.plan import Plan, Request
from brim.fitting.policies import POLICIES, RollingSettings, resolve_policy
from brim.fitting.profile import ModelProfile
from brim.messages import Message
from brim.models.pricing import Price
from brim.session import validation
from brim.session.composer import Composer
from brim.session.composer_state import Compaction, ComposerState
from brim.session.ledger import CallReservation, Category, Ledger, check_category
from brim.session.recall import RECALL, RecallAnswerer, find_recall_calls
from brim.session.reply_stream import receive_response
from brim.session.request_builder import RequestBuilder
from brim.session.request_log import LoggedRequest, RequestLog
from brim.session.short_view import ShortView
from brim.session.system_prompt import SystemPrompt
from brim.tokens import Counter
from brim.wire import openai_chat
from brim.wire.body_parts import copy_input, copy_json
from brim.wire.formats import CHAT, FORMATS, FormatName, find_reply_limit
from brim.wire.notes import entry_mark, remove_copied_note
from brim.wire.objects import plain_message
from brim.wire.prompt_counter import PromptCounter
from brim.wire.reply import Reply
from brim.wire.reply_parser import parse_reply
from brim.wire.template_trial import Feature, find_features
from brim.wire.to_chat import find_reply_field, read_turns

Turn = dict[str, Any]

ASSUMED_WINDOW: Final = 4_096
"""Window that is assumed as long as the real one is unknown."""
SESSION_FIELDS: Final = frozenset(("model", "messages", "input", "instructions", "system", "tools"))
"""Fields of a request that only the session sets, because they are counted."""
SAVED_VERSION: Final = 1
"""Version of the data that `Session.to_dict` returns."""
_SAVED_PROFILE_FIELDS: Final = ("model", "window", "reply", "margin", "template")
_SAVED_POLICY_FIELDS: Final = (
    *("name", "keep_recent", "max_turns", "token_budget", "low_water_mark"),
)


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Settings of one request."""

    system: str | None = None
    """Replaces the base prompt."""
    short_view: ShortView | bool | None = None
    category: Category = "main"
    format: FormatName | None = None
    """None means the format of the session."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the request."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request whose response has not been received."""

    plan: Plan
    profile: ModelProfile
    category: Category
    is_short: bool
    reply: int
    """The most tokens of a reply."""
    reservation: CallReservation | None = None
    """Reserved money, once the request is sent."""


class _MaxUsage(TypedDict):
    tokens: int
    reply: int
    price: Price | None


@dataclass(frozen=True, slots=True)
class _ReplyParts:
    """The parts of a reply that were appended one by one."""

    reply_field: str = ""
    parts: Sequence[Any] = ()
    last: Turn | None = None
    """The last turn at that time."""
    is_turn: bool = False
    """Whether that turn is of these parts; thinking alone is none yet."""


class SessionDriver:
    """The state of one session, and the operations of the programs that send its requests."""

    def __init__(
        self,
        state: ComposerState,
        ledger: Ledger,
        prompt: SystemPrompt,
        format: FormatName,
        cache_marks: bool,
    ) -> None:
        self.ledger = ledger
        self.prompt = prompt
        self.format = format
        self.cache_marks = cache_marks
        self.turns: list[Turn] = []
        """All turns, without the system prompt."""
        self.outputs: tuple[str, ...] = ()
        """The outputs that will be sent with the next user turn."""
        self.composer = Composer(state, self.turns)
        self.log = RequestLog()
        self.warnings: list[str] = []
        self.clock: Callable[[], float] | None = None
        """Returns the seconds since 1970, for the request log; None: times are not logged."""
        self._pending: PendingRequest | None = None
        self._rewinds = 0
        self._reply_parts = _ReplyParts()

    # Model

    @property
    def profile(self) -> ModelProfile:
        """The model and everything that is known about it."""
        return self.composer.state.profile

    @profile.setter
    def profile(self, profile: ModelProfile) -> None:
        self.composer.set_profile(profile)

    def count_text(self, text: str) -> int:
        """Return the tokens of a text, counted for the session's model."""
        return self.composer.counter.text(text)

    @property
    def template_features(self) -> frozenset[Feature]:
        """The features of chat templates that the next request uses."""
        prompt: Turn = {"role": self.prompt.role}
        return find_features((prompt, *self.turns), self.composer.state.offered_tools)

    # Turns

    def append(self, message: Any) -> None:
        """Append a copy of a message of any format; an initial system turn becomes the base prompt.

        The items of a response are one turn, also if they are appended one by one.
        """
        start = len(self.turns)
        given = plain_message(message, start)
        is_list = isinstance(given, list)
        parts = given if is_list else [given]
        if reply_field := find_reply_field(parts):
            self._append_parts(reply_field, parts, is_more=not is_list)
            return
        try:
            for turn in read_turns(given):
                self._append_turn(turn)
        except MessageError:
            if len(self.turns) > start:
                self.rewind(start)
            raise

    def _append_parts(self, reply_field: str, parts: Sequence[Any], *, is_more: bool) -> None:
        """Append parts of a reply; `is_more`: to the turn of the parts before them, if any."""
        before = self._reply_parts
        is_more = is_more and before.reply_field == reply_field and before.last is self._last_turn
        if is_more:
            parts = [*before.parts, *parts]
        turn = parse_reply({"role": "assistant", reply_field: parts}).message
        is_turn = bool(turn.get("content") or turn.get("tool_calls"))
        if is_turn:
            if is_more and before.is_turn:
                self.rewind(len(self.turns) - 1)
            self._append_turn(turn)
        self._reply_parts = _ReplyParts(reply_field, parts, self._last_turn, is_turn)

    @property
    def _last_turn(self) -> Turn | None:
        return self.turns[-1] if self.turns else None

    def _append_turn(self, message: Mapping[str, Any]) -> None:
        index = len(self.turns)
        view = openai_chat.read_message(message, index)
        validation.check_turn(message, index, self.open_calls)
        is_prompt = index == 0 and validation.is_system_prompt(message, view)
        if is_prompt and not self.prompt.base:
            self.prompt.base = "\n\n".join(view.words)
            self.prompt.role = str(message["role"])
            return
        self._add_turn(copy_input(message), view)

    def _add_turn(self, turn: Turn, view: Message) -> None:
        self.turns.append(turn)
        self.composer.append(view)

    @property
    def open_calls(self) -> list[str]:
        """The ids of the tool calls that have no result yet."""
        return validation.find_open_calls(self.turns)

    def copy_turns(self, start: int = 0) -> list[dict[str, Any]]:
        """Return copies of the turns from an index on."""
        return [copy_json(turn) for turn in self.turns[start:]]

    def rewind(self, length: int) -> list[dict[str, Any]]:
        """Keep the first turns and return the removed ones."""
        if not isinstance(length, int) or not 0 <= length <= len(self.turns):
            raise InputError(
                f"Cannot rewind to {length!r} turns: the conversation has {len(self.turns)}."
            )
        removed = self.turns[length:]
        del self.turns[length:]
        self.composer.rewind(length)
        self._pending = None
        self._rewinds += 1
        return removed

    def reset(self) -> None:
        """Clear turns, waiting outputs and summary, and restore the blocks of the prompt."""
        self.turns.clear()
        self.outputs = ()
        self.composer.clear()
        self.prompt.instructions = self._pending = None
        self._rewinds += 1

    # Waiting outputs

    @property
    def joined_outputs(self) -> str:
        """The waiting outputs as they will be sent."""
        return "\n\n".join(self.outputs)

    def add_output(self, text: str, share: float, path: str | None = None) -> str:
        """Add a waiting output, clipped to a share of the limit; return it as it will be sent."""
        if not isinstance(text, str):
            raise InputError(f"An output must be text, not {type(text).__name__}.")
        if not text.strip():
            return ""
        output = self._clip_output(text, share, path)
        self.outputs = (*self.outputs, output)
        return output

    def _clip_output(self, text: str, share: float, path: str | None) -> str:
        max_tokens, tokens = int(self._get_limit() * share), self.count_text(text)
        if tokens <= max_tokens:
            return text
        pointer = f"\n[full output: {path}]" if path else ""
        room = max_tokens - self.count_text(pointer)
        return (clip(text, tokens, room, self.count_text, mark=entry_mark) + pointer).strip()

    def _get_limit(self) -> int:
        try:
            return self.composer.planner.budget.limit
        except BudgetError:
            return ASSUMED_WINDOW

    # Requests

    def plan_request(self, settings: RequestSettings, count: CountMode = "off") -> Flow[Request]:
        """Build the next request; yield the jobs that need the server or a summarizer."""
        check_category(settings.category)
        if fixed := SESSION_FIELDS.intersection(settings.options):
            raise InputError(f"{', '.join(sorted(fixed))}: set by the session, not an option.")
        if count == "off" and self._find_prompt_counter(settings.format) is not None:
            count = "always"
        create_builder = partial(self._create_builder, settings)
        turns: Sequence[Mapping[str, Any]] = self.turns
        wanted = None if self.prompt.instructions else settings.short_view
        if wanted:
            view = wanted if isinstance(wanted, ShortView) else ShortView()
            turns, builder = view.shorten(self._list_sent_turns()), create_builder()
            plan = yield from self.composer.plan_turns(turns, builder, count)
        else:
            plan, builder = yield from self.composer.compose(create_builder, count)
        limit = find_reply_limit(settings.options, builder.format)
        build = partial(builder.build, turns)
        plan = yield from confirm_reply(plan, build, count, limit)
        body = builder.build(turns, plan)
        reply = find_reply_limit(body, builder.format)
        if reply is None and self.ledger.is_capped and self._has_price(plan):
            reply = plan.budget.reply  # a longer reply could exceed the cap
            body = {**body, builder.format.reply_keys[-1]: reply}
        reply = reply or plan.budget.reply
        self._pending = PendingRequest(plan, self.profile, settings.category, bool(wanted), reply)
        if self.ledger.is_capped:
            self.ledger.check(self.profile.name, **self._max_usage(self._pending))
        self._log_request(self._pending)
        origins = () if wanted else builder.find_origins(plan)
        return Request(body, plan, builder.format.messages_key, origins)

    def count_prompt(self, format: FormatName | None, body: Mapping[str, Any]) -> int | None:
        """Return the tokens of a body with the model's own template and vocabulary, if given."""
        counter = self._find_prompt_counter(format)
        return None if counter is None else counter.count(body)

    def _find_prompt_counter(self, format: FormatName | None) -> PromptCounter | None:
        return self.profile.prompt_counter() if (format or self.format) == CHAT.name else None

    def _list_sent_turns(self) -> list[Turn]:
        """Return all turns but empty replies; those that are pinned by index are marked."""
        pins = self.composer.state.pins
        return [
            {**turn, "_pin": True} if index in pins else turn
            for index, turn in enumerate(self.turns)
            if not turn.get(openai_chat.EMPTY_FIELD)
        ]

    def _create_builder(self, settings: RequestSettings) -> RequestBuilder:
        prompt = self.prompt
        if settings.system is not None:
            prompt = replace(prompt, base=settings.system)
        return RequestBuilder(
            self.profile.model,
            prompt.render(self.composer.state.system_summary),
            prompt.role,
            FORMATS[settings.format or self.format],
            self.profile.rules(),
            self.profile.trial is not None and not self.profile.rules().one_system,
            self.composer.state.offered_tools or None,
            self.cache_marks,
            settings.options,
        )

    def _has_price(self, plan: Plan) -> bool:
        price = self.profile.price_for(plan.size)
        return price is not None and bool(price.output)

    def _max_usage(self, pending: PendingRequest) -> _MaxUsage:
        """Return the most tokens of a request and its reply, and their price."""
        plan, profile = pending.plan, pending.profile
        tokens = profile.max_prompt(plan, self.composer.counter.uncertainty)
        return {"tokens": tokens, "reply": pending.reply, "price": profile.price_for(tokens)}

    def reserve(self) -> None:
        """Reserve the most that the pending request can cost, immediately before it is sent.

        Raise SpendingCapError if that exceeds a cap.
        """
        pending = self._pending
        if pending is not None and pending.reservation is None:
            name, usage = pending.profile.name, self._max_usage(pending)
            reservation = self.ledger.reserve(name, pending.category, **usage)
            self._pending = replace(pending, reservation=reservation)

    def release(self, *, is_charged: bool) -> None:
        """End the reservation of a failed request; charge it in full if it may have been paid."""
        pending = self._pending
        if pending is not None and pending.reservation is not None:
            self._pending = replace(pending, reservation=None)
            self.ledger.release(pending.reservation, is_charged=is_charged)

    def _log_request(self, pending: PendingRequest) -> None:
        plan = pending.plan
        self.log.add(
            LoggedRequest(
                None if self.clock is None else self.clock(),
                pending.profile.name,
                pending.category,
                before=plan.before,
                after=plan.size,
                limit=plan.limit,
                trimmed=plan.is_trimmed,
                dropped=plan.outcome_counts().get("dropped", 0),
            )
        )

    @property
    def system_text(self) -> str:
        """The system text of the next request."""
        return self.prompt.render(self.composer.state.system_summary)

    def render_system_parts(self) -> dict[str, str]:
        """Return the parts of the system text; joined by blank lines they are the whole."""
        return self.prompt.render_parts(self.composer.state.system_summary)

    def preview(self) -> Plan:
        """Return the plan of the next request; nothing is changed."""
        return self.preview_with_counter()[0]

    def preview_with_counter(self) -> tuple[Plan, Counter]:
        """Return the plan of the next request, and the counter that counted it."""
        return self.composer.preview(self.system_text)

    @property
    def revision(self) -> object:
        """A value that differs whenever the next request may differ."""
        prompt = self.prompt
        blocks = tuple(prompt.blocks.items())
        return self.composer.changes, self.outputs, prompt.base, blocks, prompt.instructions

    # Compaction

    def plan_compaction(self, share: float, *, with_summary: bool) -> Compaction:
        """Return the trim that would reduce the conversation to a share of its tokens.

        Raise InputError if nothing can be trimmed.
        """
        return self.composer.plan_compaction(self.system_text, share, with_summary=with_summary)

    # Responses

    def receive(self, response: Any, on_reply: Callable[[Reply], None] | None = None) -> Any:
        """Receive a response; `on_reply` is called when the reply is complete and recorded."""
        pending, rewinds = self._pending, self._rewinds

        def record(reply: Reply, is_complete: bool) -> None:
            if rewinds == self._rewinds:
                self._record_reply(reply, pending, is_complete=is_complete)
            elif pending is not None:  # the request was rewound, but it was paid for
                self._record_cost(reply, pending)
            if on_reply is not None:
                on_reply(reply)

        plan = None if pending is None else pending.plan
        return receive_response(response, record, plan, self._hide_recalls)

    def _hide_recalls(self, reply: Reply) -> Reply:
        """Return a reply without the calls that the session answers itself."""
        if not self.composer.state.offers_recall:
            return reply
        return replace(reply, calls=tuple(call for call in reply.calls if call.name != RECALL))

    @property
    def has_open_step(self) -> bool:
        """Whether all calls of the last step have results, so that the model continues."""
        sent = (turn for turn in reversed(self.turns) if not turn.get(openai_chat.EMPTY_FIELD))
        last = next(sent, None)
        return last is not None and last["role"] == "tool" and not self.open_calls

    def _record_reply(
        self, reply: Reply, pending: PendingRequest | None, *, is_complete: bool
    ) -> None:
        try:
            plan = None if pending is None else pending.plan
            self._append_reply(reply, plan, is_complete=is_complete)
        finally:
            if pending is not None:
                self._pending = None
                if reply.usage is not None and reply.usage.input and not pending.is_short:
                    self.composer.record_report(pending.plan, reply.usage.input)
                self._record_cost(reply, pending)

    def _append_reply(self, reply: Reply, plan: Plan | None, *, is_complete: bool) -> None:
        message = copy_json(reply.message)
        if isinstance(text := message.get("content"), str):
            message["content"] = remove_copied_note(text)
        if not is_complete and message.get("tool_calls"):
            del message["tool_calls"]  # the arguments of an interrupted call are incomplete
        for call in message.get("tool_calls") or ():
            validation.repair_arguments(call)
        if message.get("content") or message.get("tool_calls"):
            self.append(message)
            if self.composer.state.offers_recall:
                self._answer_recalls(message, plan)
        else:
            empty = {**message, openai_chat.EMPTY_FIELD: True}
            self._add_turn(empty, openai_chat.read_message(empty, len(self.turns)))

    def _answer_recalls(self, message: Mapping[str, Any], plan: Plan | None) -> None:
        """Append the results of the calls of `recall` in a reply."""
        calls = find_recall_calls(message)
        if calls:
            plan = plan or self.composer.get_current_plan(self.system_text)
            answerer = RecallAnswerer(plan, self.count_text)
            for call in calls:
                result = {"role": "tool", "tool_call_id": call.id, "content": answerer.answer(call)}
                self.append(result)

    def _record_cost(self, reply: Reply, pending: PendingRequest) -> None:
        profile, size = pending.profile, pending.plan.size
        output = profile.counter().message(openai_chat.read_message(reply.message, 0))
        self.warnings += self.ledger.record(
            profile.name,
            pending.category,
            usage=reply.usage,
            counted=size,
            counted_output=output if reply.usage is None else 0,
            price=profile.price_for(size),
            cost=reply.cost,
            reservation=pending.reservation,
        )

    def handle_context_length_error(self, overflow: Overflow) -> None:
        """Make the next request smaller, because the server rejected the last one."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.composer.record_rejection(pending.plan, overflow)

    # Saved state

    def to_dict(self) -> dict[str, Any]:
        """Return the state without the turns, for stores that save each turn on its own."""
        state, profile, policy = self.composer.state, self.profile, self.composer.state.policy
        if policy.name not in POLICIES:
            raise InputError("A session with custom passes cannot be saved.")
        return {
            "version": SAVED_VERSION,
            "settings": {
                **{name: getattr(profile, name) for name in _SAVED_PROFILE_FIELDS},
                "tools": copy_json(state.tools),
                "recall": state.recalls,
                "format": self.format,
                "cache_marks": self.cache_marks,
                "summary_chars": state.summary_chars,
                "system": self.prompt.base,
            },
            "policy": {
                **{name: getattr(policy, name) for name in _SAVED_POLICY_FIELDS},
                "rolling": None if policy.rolling is None else asdict(policy.rolling),
            },
            "system_role": self.prompt.role,
            "blocks": dict(self.prompt.blocks),
            "instructions": self.prompt.instructions,
            "composer": self.composer.to_dict(),
            "ledger": self.ledger.to_dict(),
            "log": self.log.to_dict(),
            "warnings": list(self.warnings),
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Restore what `to_dict` returned, except the settings, and the turns and outputs."""
        self.prompt.role = data["system_role"]
        self.prompt.blocks = dict(data["blocks"])
        if not all(isinstance(text, str) for text in self.prompt.blocks.values()):
            raise InputError("The saved session cannot be read: a block is not text.")
        self.prompt.instructions = data["instructions"]
        self.turns[:] = copy_json(data["turns"])
        if not all(isinstance(turn, dict) for turn in self.turns):
            raise InputError("The saved session cannot be read: a turn is not an object.")
        self.outputs = tuple(data["waiting"])
        self.composer.restore(data["composer"])
        self.ledger.restore(data["ledger"])
        self.log = RequestLog.from_dict(data["log"])
        self.warnings = list(data["warnings"])


def parse_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Session` from saved data."""
    if data["version"] != SAVED_VERSION:
        raise InputError(
            f"The saved session has version {data['version']!r}; this program reads "
            f"{SAVED_VERSION}."
        )
    policy = dict(data["policy"])
    if rolling := policy.pop("rolling", None):
        policy["rolling"] = RollingSettings(**rolling)
    return {"policy": resolve_policy(policy.pop("name"), **policy), **data["settings"]}
