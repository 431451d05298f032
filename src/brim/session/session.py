"""Session: a conversation with a model, and the request for its next turn."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any, Final, TypedDict, Unpack, overload

from brim.errors import InputError
from brim.fitting.budget import Budget
from brim.fitting.passes import Pass
from brim.fitting.plan import Plan, Request
from brim.fitting.policies import Policy, PolicyName, RollingSettings, resolve_policy
from brim.fitting.profile import ModelProfile
from brim.fitting.summarizer import (
    MAX_SUMMARY_CHARS,
    Summarizer,
    check_summarizer,
    run_with_summarizer,
)
from brim.models.pricing import Price, Usage
from brim.session import validation
from brim.session.composer_state import ComposerState
from brim.session.driver import RequestSettings, SessionDriver, parse_settings
from brim.session.ledger import Category, Ledger, SpendingLimits
from brim.session.recall import check_tool_names
from brim.session.reply_stream import AsyncReplyStream, Chunk, ReplyStream, ResponseModel
from brim.session.request_log import RequestLog
from brim.session.short_view import ShortView
from brim.session.system_prompt import SystemPrompt
from brim.tokens import Tokenizer
from brim.wire import openai_chat
from brim.wire.body_parts import copy_input
from brim.wire.formats import FORMATS, FormatName, plain_tools
from brim.wire.reply import Reply

OUTPUT_SHARE: Final = 0.2
"""Share of the limit that one output of a command may take."""
RECALL_SHARE: Final = 0.5
COMPACT_SHARE: Final = 0.5
"""Share of its tokens to which a conversation is compacted."""


class SessionSettings(TypedDict, total=False):
    """The arguments of `Session`."""

    model: str | None
    system: str | None
    window: int | None
    reply: int | None
    margin: int | None
    policy: PolicyName | Policy | Sequence[Pass]
    low_water_mark: float | None
    rolling: RollingSettings | None
    tools: Sequence[object] | None
    recall: bool
    tokenizer: Tokenizer | str | None
    summarize: Summarizer | None
    summary_chars: int
    format: FormatName
    template: str | None
    cache_marks: bool
    price: Price | None
    limits: SpendingLimits | None


class Session:
    """A conversation with a model.

    The history is append-only: trimming changes what is sent, never what is stored. A session does
    no I/O; it builds requests and receives responses.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        system: str | None = None,
        window: int | None = None,
        reply: int | None = None,
        margin: int | None = None,
        policy: PolicyName | Policy | Sequence[Pass] = "steady",
        low_water_mark: float | None = None,
        rolling: RollingSettings | None = None,
        tools: Sequence[object] | None = None,
        recall: bool = False,
        tokenizer: Tokenizer | str | None = None,
        summarize: Summarizer | None = None,
        summary_chars: int = MAX_SUMMARY_CHARS,
        format: FormatName = "openai",
        template: str | None = None,
        cache_marks: bool = False,
        price: Price | None = None,
        limits: SpendingLimits | None = None,
    ) -> None:
        """Create an empty conversation.

        model: its name; a client asks the server if it is None.
        window, reply: tokens of the context window, and tokens reserved for the reply. By default
            the server or the catalog provides the window.
        margin: tokens kept free for the uncertainty of the count; by default that of the counter.
        policy: how a conversation that is too long is trimmed.
        low_water_mark: share of the limit that a trim of `steady` or `thrift` reaches.
        rolling: the numbers of the policy `rolling`.
        recall: whether requests offer the tool `recall`, with which the model reads what was
            trimmed. The session answers its calls; `has_open_step` tells when to send again.
        summarize: writes a summary of trimmed turns, of at most `summary_chars` characters.
        format: format of the requests.
        template: name of the template rules, or the text or path of a chat template; by default
            the rules follow from the model.
        cache_marks: whether requests in Anthropic's format have cache breakpoints.
        price: by default the price list is used.
        limits: spending limits.
        """
        _check_settings(format, summary_chars)
        profile = ModelProfile(model, window, reply, tokenizer, template, price, margin=margin)
        chosen = resolve_policy(policy, low_water_mark=low_water_mark, rolling=rolling)
        state = ComposerState(profile, chosen, _copy_tools(tools, recall), recall, summary_chars)
        prompt = SystemPrompt("" if system is None else system)
        self._driver = SessionDriver(state, Ledger(limits), prompt, format, cache_marks)
        self._composer = self._driver.composer
        self.summarize = summarize

    # History

    @property
    def history(self) -> tuple[dict[str, object], ...]:
        """All turns as copies, without the system prompt."""
        return tuple(self._driver.copy_turns())

    def __len__(self) -> int:
        return len(self._driver.turns)

    def user(self, content: str | Sequence[object], **marks: object) -> None:
        """Append a user turn, together with the waiting outputs.

        `marks` are fields that begin with `_`; they are stored and never sent.
        """
        if invalid := [name for name in marks if not name.startswith("_")]:
            raise InputError(f"Invalid mark: {', '.join(invalid)}. A mark begins with _.")
        message: dict[str, object] = {"role": "user", "content": content, **marks}
        if self._driver.outputs:
            message[openai_chat.OUTPUT_FIELD] = self._driver.joined_outputs
        self.append(message)
        self._driver.outputs = ()

    def assistant(
        self, content: str | None = None, tool_calls: Sequence[Mapping[str, object]] | None = None
    ) -> None:
        """Append an assistant turn that did not come through `receive`."""
        message: dict[str, object] = {"role": "assistant", "content": content}
        if tool_calls:
            message["tool_calls"] = tool_calls
        self.append(message)

    def tool(self, call_id: str, content: str) -> None:
        """Append the result of a tool call."""
        self.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def append(self, message: object) -> None:
        """Append a copy of a message: a dict, or an object of an SDK.

        Messages of Anthropic, with results of tools in them, and items of responses become turns of
        the chat shape. A model's content blocks or items may come as a list or one by one.

        An initial system message becomes the system prompt. Raise MessageError if servers would
        reject the turn.
        """
        self._driver.append(message)

    def add_output(self, text: str, path: str | None = None) -> str:
        """Add the output of a command; it is sent with the next user turn, before its text.

        A long output is clipped; `path` tells the model where the full output is. Return the
        output as it will be sent.
        """
        return self._driver.add_output(text, OUTPUT_SHARE, path)

    def recall(self, index: int) -> str:
        """Add the text of a turn to the next user turn; what was sent before does not change."""
        turn = validation.get_turn(self._driver.turns, index)
        message = openai_chat.read_message(turn, index)
        text = "\n".join((*message.outputs, *message.words))
        if not text:
            raise InputError(f"Turn {index} has no text to recall.")
        return self._driver.add_output(f"[turn {index}, {turn['role']}]\n{text}", RECALL_SHARE)

    def pin(self, index: int) -> None:
        """Protect a turn from trimming."""
        validation.check_sendable(self._driver.turns, index)
        state = self._composer.state
        self._composer.change(replace(state, pins=state.pins | {index}))

    def unpin(self, index: int) -> None:
        """Allow a turn to be trimmed again."""
        validation.check_sendable(self._driver.turns, index)
        state = self._composer.state
        self._composer.change(replace(state, pins=state.pins - {index}))

    @property
    def pins(self) -> list[int]:
        """The indices of the pinned turns."""
        return sorted(self._composer.state.pins)

    def rewind(self, length: int) -> list[dict[str, object]]:
        """Keep the first `length` turns and return the removed ones."""
        return self._driver.rewind(length)

    def reset(self) -> None:
        """Remove all turns; the system prompt, totals and warnings stay."""
        self._driver.reset()

    # Settings

    @property
    def model(self) -> str | None:
        """The name of the model; None if it is unknown."""
        return self._driver.profile.model

    def switch(
        self,
        model: str | None,
        *,
        window: int | None = None,
        reply: int | None = None,
        margin: int | None = None,
        tokenizer: Tokenizer | str | None = None,
        template: str | None = None,
        price: Price | None = None,
    ) -> None:
        """Continue with another model; the arguments are those of `Session`."""
        self._driver.profile = ModelProfile(
            model, window, reply, tokenizer, template, price, margin=margin
        )

    @property
    def tools(self) -> list[dict[str, object]]:
        """The definitions of the tools, as copies."""
        return _copy_tools(self._composer.state.tools) or []

    @tools.setter
    def tools(self, tools: Sequence[object] | None) -> None:
        state = self._composer.state
        self._composer.change(replace(state, tools=_copy_tools(tools, state.recalls)))

    @property
    def system(self) -> str:
        """The base prompt."""
        return self._driver.prompt.base

    @system.setter
    def system(self, system: str) -> None:
        self._driver.prompt = replace(self._driver.prompt, base=system)

    @property
    def trim(self) -> bool:
        """Whether a conversation that is too long is trimmed; otherwise it is an error."""
        return self._composer.state.is_trimming

    @trim.setter
    def trim(self, trim: bool) -> None:
        self._composer.change(replace(self._composer.state, is_trimming=trim))

    @property
    def summarize(self) -> Summarizer | None:
        """The function that writes summaries of trimmed turns."""
        return self._summarize

    @summarize.setter
    def summarize(self, summarize: Summarizer | None) -> None:
        self._summarize = check_summarizer(summarize)
        self._composer.change(replace(self._composer.state, summarizes=summarize is not None))

    # Requests

    def request(
        self,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: Category = "main",
        format: FormatName | None = None,
        **options: object,
    ) -> Request:
        """Return the next request; `options` become fields of it.

        system: replaces the base prompt in this request.
        short_view: sends only the last turns, shortened, for small models.
        category: under which the ledger records the cost.

        Raise ContextOverflowError if the request cannot fit, and SpendingCapError if it could
        exceed a spending cap.
        """
        settings = RequestSettings(system, short_view, category, format, options)
        flow, driver = self._driver.plan_request(settings), self._driver
        return run_with_summarizer(flow, self.summarize, partial(driver.count_prompt, format))

    @property
    def current_plan(self) -> Plan:
        """The plan of the conversation as it is; it contains no new trim."""
        return self._composer.get_current_plan(self._driver.system_text)

    def compact(self, *, share: float = COMPACT_SHARE, summarize: Summarizer | None = None) -> Plan:
        """Trim the conversation now, to a share of its tokens.

        `summarize` replaces the session's summarizer for this call. Raise InputError if nothing
        can be trimmed.
        """
        writer = summarize or self.summarize
        compaction = self._driver.plan_compaction(share, with_summary=writer is not None)
        return run_with_summarizer(self._composer.compact(compaction), writer)

    def undo_compaction(self) -> None:
        """Undo the last `compact`, including its summary."""
        self._composer.undo_compaction()

    @property
    def budget(self) -> Budget:
        """How the context window is divided. Raise BudgetError if the window is unknown."""
        return self._composer.planner.budget

    @property
    def tokens(self) -> int:
        """Tokens of the conversation as it is, including waiting outputs."""
        outputs = self._driver.joined_outputs
        return self.current_plan.size + (self._driver.count_text(outputs) if outputs else 0)

    @property
    def room(self) -> int:
        """Tokens left before the next trim."""
        return max(0, self.current_plan.limit - self.tokens)

    @property
    def summary(self) -> str | None:
        """The summary of the trimmed turns."""
        return self._composer.state.summary

    @summary.setter
    def summary(self, text: str | None) -> None:
        self._composer.set_summary(text)

    # Responses

    @overload
    def receive(self, response: Reply | Mapping[str, object] | ResponseModel) -> Reply: ...
    @overload
    def receive(self, response: AsyncIterable[Chunk]) -> AsyncReplyStream[Chunk]: ...
    @overload
    def receive(self, response: Iterator[Chunk]) -> ReplyStream[Chunk]: ...
    def receive(self, response: object) -> object:
        """Record a response, and return its reply; a stream is recorded when it ends.

        Accepts the responses and streams of the OpenAI and Anthropic clients, and their JSON.
        """
        return self._driver.receive(response)

    @property
    def has_open_step(self) -> bool:
        """Whether the last turn is the last result of a step, so that the model continues."""
        return self._driver.has_open_step

    # Usage and cost

    @property
    def ledger(self) -> Ledger:
        """Usage and cost by model and category."""
        return self._driver.ledger

    @property
    def usage(self) -> Usage:
        """Tokens of all calls."""
        return self.ledger.usage

    @property
    def cost(self) -> Decimal:
        """Dollars of all calls with a known price."""
        return self.ledger.cost

    @property
    def warnings(self) -> list[str]:
        """Warnings about spending limits and the server, each given once."""
        return self._driver.warnings

    @property
    def log(self) -> RequestLog:
        """The last requests and their statistics."""
        return self._driver.log

    # Saving

    def to_dict(self) -> dict[str, object]:
        """Return the session as data that can be serialized to JSON."""
        turns, outputs = self._driver.copy_turns(), list(self._driver.outputs)
        return {**self._driver.to_dict(), "turns": turns, "waiting": outputs}

    @classmethod
    def from_dict(cls, data: Mapping[str, object], **settings: Unpack[SessionSettings]) -> Session:
        """Restore a session from `to_dict`; `settings` replace the saved ones.

        Functions and limits are not saved: pass summarize, tokenizer, price and limits again.
        """
        try:
            session = cls(**{**parse_settings(data), **settings})
            session._driver.restore(data)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InputError(f"The saved session cannot be read: {error!r}.") from None
        return session


def get_driver(session: Session) -> SessionDriver:
    """Return the internal interface of a session, for brim's own client and shell."""
    return session._driver


def create_scratch(profile: ModelProfile, session: Session | None) -> Session:
    """Return a session for a request outside of `session`, whose ledger and warnings it shares."""
    scratch = Session()
    scratch._driver.profile = profile
    if session is not None:
        scratch._driver.ledger = session._driver.ledger
        scratch._driver.warnings = session._driver.warnings
    return scratch


def _copy_tools(
    tools: Sequence[object] | None, recalls: bool = False
) -> list[dict[str, Any]] | None:
    copies = [copy_input(tool) for tool in plain_tools(tools)]
    if recalls:
        check_tool_names(copies)
    return copies or None


def _check_settings(format: str, summary_chars: object) -> None:
    if format not in FORMATS:
        raise InputError(f"Unknown format: {format!r}. Use one of {', '.join(FORMATS)}.")
    if not isinstance(summary_chars, int) or isinstance(summary_chars, bool) or summary_chars < 0:
        raise InputError(f"summary_chars must be a non-negative integer, not {summary_chars!r}.")
