"""The body formats: what brim knows about each one, in one table.

A new format needs a module that reads its bodies, one that builds them, and a row here. The
session, the clients, the gateway and the scripted server look formats up in this table. Replies
and streams are parsed in `reply_parser` and `streams`; the gateway's error responses are in
`gateway.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from brim.wire import anthropic, openai_chat, openai_responses

if TYPE_CHECKING:
    from brim.messages import Message
    from brim.wire.body_parts import PlanView

FormatName = Literal["openai", "anthropic", "responses"]


class Reader(Protocol):
    """Reads a growing conversation; each message is read once."""

    def read(self, body: Mapping[str, Any]) -> list[Message] | None:
        """Return the turns added since the last call; None if they change how earlier turns are
        read.

        After None, the reader is unusable: a new one must read the whole body.
        """

    def apply(self, body: Mapping[str, Any], plan: PlanView) -> Mapping[str, Any]:
        """Return the body to send according to a plan; `body` is the one that was read last.

        It is the same object if the plan changes nothing.
        """


class BodyBuilder(Protocol):
    """Builds the body of a request from turns in the chat shape."""

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        model: str | None,
        reply: int,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Return a body, which may share objects with the messages and tools.

        `reply` is the maximum number of output tokens, for formats that require one.
        """


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """The format of a request body: its address, its field names and its code."""

    name: FormatName
    title: str
    """The name to show."""
    path: str
    """The path of the API without its version."""
    count_path: str
    """The path that counts the tokens of a request, without the version."""
    messages_key: str
    """The field of the conversation; context-length errors name it."""
    system_key: str
    """The field of separate system text; empty if the format has none."""
    reply_keys: tuple[str, ...]
    """The fields of the maximum number of output tokens; all servers support the last one."""
    create_reader: Callable[[], Reader]
    is_fittable: Callable[[Mapping[str, Any]], bool]
    """Whether a body contains the whole conversation, none of it kept by the server."""
    build: BodyBuilder

    @property
    def versioned_path(self) -> str:
        return f"/v1{self.path}"


def _build_chat(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str | None,
    reply: int,  # noqa: ARG001 - the server has a default
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    fields = {"messages": messages, "model": model, "tools": tools}
    return {key: value for key, value in fields.items() if value is not None}


def _build_anthropic(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str | None,
    reply: int,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    from brim.wire import to_anthropic  # on first use: `fit` does not build bodies

    return to_anthropic.build(messages, model=model or "", tools=tools, max_tokens=reply)


def _build_responses(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str | None,
    reply: int,  # noqa: ARG001 - the server has a default
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    from brim.wire import to_responses

    return to_responses.build(messages, model=model or "", tools=tools)


CHAT: Final = BodyFormat(
    "openai",
    title="OpenAI chat completions",
    path="/chat/completions",
    count_path="/chat/completions/input_tokens",
    messages_key="messages",
    system_key="",
    reply_keys=("max_completion_tokens", "max_tokens"),
    create_reader=openai_chat.Reader,
    is_fittable=openai_chat.is_fittable,
    build=_build_chat,
)
ANTHROPIC: Final = BodyFormat(
    "anthropic",
    title="Anthropic messages",
    path="/messages",
    count_path="/messages/count_tokens",
    messages_key="messages",
    system_key="system",
    reply_keys=("max_tokens",),
    create_reader=anthropic.Reader,
    is_fittable=anthropic.is_fittable,
    build=_build_anthropic,
)
RESPONSES: Final = BodyFormat(
    "responses",
    title="OpenAI responses",
    path="/responses",
    count_path="/responses/input_tokens",
    messages_key="input",
    system_key="instructions",
    reply_keys=("max_output_tokens",),
    create_reader=openai_responses.Reader,
    is_fittable=openai_responses.is_fittable,
    build=_build_responses,
)

FORMATS: Final[Mapping[FormatName, BodyFormat]] = {
    format.name: format for format in (CHAT, ANTHROPIC, RESPONSES)
}
FORMATS_BY_PATH: Final[Mapping[str, BodyFormat]] = {
    format.versioned_path: format for format in FORMATS.values()
}
REPLY_KEYS: Final = frozenset(key for format in FORMATS.values() for key in format.reply_keys)
"""The fields of all formats for the maximum number of output tokens."""
