"""The formats that go over the wire, each read into messages and written back from a plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from brim.errors import InputError
from brim.wire import anthropic, openai_chat, openai_responses

if TYPE_CHECKING:
    from brim.messages import Message
    from brim.wire.body_parts import PlanView


class Reader(Protocol):
    """Reads a conversation that grows, each message of it once."""

    def read(self, body: Mapping[str, Any]) -> list[Message] | None:
        """The turns that came since; None where they change how earlier ones are to be read.

        A reader that said None is of no more use: another one reads all.
        """

    def apply(self, body: Mapping[str, Any], plan: PlanView) -> Mapping[str, Any]:
        """The body that goes out by a plan, of the body that was read last.

        It is that very body where the plan changes nothing of it.
        """


class Format(Protocol):
    """What each format's module offers."""

    @property
    def __name__(self) -> str: ...

    @property
    def Reader(self) -> Callable[[], Reader]: ...  # noqa: N802 - a module's class

    @property
    def fittable(self) -> Callable[[Mapping[str, Any]], bool]:
        """Whether a body holds the whole conversation; what its server keeps is not in it."""

    @property
    def MESSAGES(self) -> str:  # noqa: N802 - a module's constant
        """The key of a body under which the conversation stands."""

    @property
    def SYSTEM(self) -> str:  # noqa: N802
        """The key of the system text that stands beside it; none is the empty one."""

    @property
    def REPLY_KEYS(self) -> Sequence[str]:  # noqa: N802
        """The keys under which a caller says how long the answer may be."""


_RESPONSES: Final = ("input", "previous_response_id", "conversation")
_ANTHROPIC: Final = ("system", "anthropic_version", "stop_sequences", "mcp_servers")
_CHAT_ROLES: Final = ("system", "developer", "tool", "function")
_CHAT_FIELDS: Final = frozenset(("tool_calls", "function_call"))
_ANTHROPIC_BLOCKS: Final = frozenset(
    ("tool_use", "tool_result", "redacted_thinking", "server_tool_use", "search_result")
)
_DATED = re.compile(r".+_\d{8}")
"""How Anthropic names the tools that come with it: `bash_20250124`."""


def detect_format(body: Mapping[str, Any]) -> Format:
    """The format of a request body, told by its shape; one that could be several is a chat."""
    messages = body.get("messages")
    if messages is None and any(body.get(key) is not None for key in _RESPONSES):
        return openai_responses
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise InputError(
            "a request body has a list of `messages` (chat completions, Anthropic) "
            f"or an `input` (responses); this one has {', '.join(map(str, body)) or 'nothing'}"
        )
    return anthropic if _is_anthropic(body, messages) else openai_chat


def read_messages(body: Mapping[str, Any], form: Format) -> list[Message]:
    """The turns of a body, its system text first."""
    return form.Reader().read(body) or []


def validate_tools(tools: Any) -> Sequence[Mapping[str, Any]] | None:
    """Definitions of tools as they were given, if they can be any."""
    if tools is None:
        return None
    if isinstance(tools, str | bytes | bytearray) or not isinstance(tools, Sequence):
        raise InputError(f"tools must be a list of definitions, not {type(tools).__name__}")
    return tools


def read_tools(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the tools of a body; raise `InputError` if they are not a list."""
    return validate_tools(body.get("tools")) or ()


def min_reply_tokens(body: Mapping[str, Any]) -> int:
    """What an answer needs at least: a model's thinking is a part of it."""
    if "thinking" not in body:
        return 0
    thinking = body["thinking"]
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return max(0, budget) + 1 if isinstance(budget, int) else 0


def lower_reply_limit(body: Mapping[str, Any], plan: PlanView, form: Format) -> Mapping[str, Any]:
    """A body that asks for no longer an answer than the window has left."""
    for key in form.REPLY_KEYS:
        asked = body.get(key)
        if isinstance(asked, int) and asked > (left := _remaining_tokens(plan)):
            most = max(left, plan.budget.reply, min_reply_tokens(body))
            body = {**body, key: most} if asked > most else body
    return body


def _remaining_tokens(plan: PlanView) -> int:
    """What the window has left for an answer; the server's own count needs no margin."""
    margin = plan.budget.margin if plan.server_tokens is None else 0
    return plan.budget.window - plan.size - margin


def _is_anthropic(body: Mapping[str, Any], messages: Iterable[Any]) -> bool:
    if any(body.get(key) is not None for key in _ANTHROPIC):
        return True
    told = _is_anthropic_by_tools(body.get("tools"))
    if told is None:
        told = _is_anthropic_by_messages(messages)
    if told is None:
        thinking = body.get("thinking")
        told = isinstance(thinking, Mapping) and "budget_tokens" in thinking
    return told


def _is_anthropic_by_tools(tools: object) -> bool | None:
    """Whether the tools are Anthropic's, or None where they do not say."""
    for tool in tools if isinstance(tools, Sequence) else ():
        match tool:
            case {"function": _} | {"custom": _}:
                return False
            case {"input_schema": _}:
                return True
            case {"type": str(kind)} if _DATED.fullmatch(kind):
                return True
    return None


def _is_anthropic_by_messages(messages: Iterable[Any]) -> bool | None:
    """Whether the messages are Anthropic's: the first that can only be one thing says it."""
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        if message.get("role") in _CHAT_ROLES or not _CHAT_FIELDS.isdisjoint(message):
            return False
        content = message.get("content")
        if isinstance(content, str) or not isinstance(content, Sequence):
            continue
        for block in content:
            if isinstance(block, Mapping) and _is_anthropic_block(block):
                return True
    return None


def _is_anthropic_block(block: Mapping[str, Any]) -> bool:
    match block:
        case {"type": "image" | "document", "source": _}:
            return True
        case {"type": "thinking", "thinking": str()}:
            return True
        case {"type": str(kind)}:
            return kind in _ANTHROPIC_BLOCKS
        case _:
            return False
