"""The body formats: what brim knows about each one, in one table.

A new format needs a module that reads its bodies, one that builds them, and a row here. The
session, the clients, the gateway and the scripted server look formats up in this table. Replies
and streams are parsed in `reply_parser` and `streams`; the gateway's error responses are in
`gateway.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

from brim.wire import anthropic, openai_chat, openai_responses

if TYPE_CHECKING:
    from brim.wire.body_reader import BodyReader

FormatName = Literal["openai", "anthropic", "responses"]
_NO_OPTIONS: Final[Mapping[str, object]] = {}


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
    create_reader: Callable[[], BodyReader]
    is_fittable: Callable[[Mapping[str, Any]], bool]
    """Whether a body contains the whole conversation, none of it kept by the server."""
    builder: str
    """The module that builds bodies, imported on first use: `fit` builds none."""

    @property
    def versioned_path(self) -> str:
        return f"/v1{self.path}"

    def build(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        model: str | None,
        reply: int,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, object] = _NO_OPTIONS,
    ) -> dict[str, Any]:
        """Return the body of a request for turns in the chat shape; it may share their objects.

        `reply` is the maximum number of output tokens, for formats that require one. `options` are
        added to the body unchanged.
        """
        module = import_module(self.builder)
        body: dict[str, Any] = module.build(
            messages, model=model, reply=reply, tools=tools, options=options
        )
        return body


CHAT: Final = BodyFormat(
    "openai",
    title="OpenAI chat completions",
    path="/chat/completions",
    count_path="/chat/completions/input_tokens",
    messages_key="messages",
    system_key="",
    reply_keys=("max_completion_tokens", "max_tokens"),
    create_reader=openai_chat.ChatReader,
    is_fittable=openai_chat.is_fittable,
    builder="brim.wire.openai_chat",
)
ANTHROPIC: Final = BodyFormat(
    "anthropic",
    title="Anthropic messages",
    path="/messages",
    count_path="/messages/count_tokens",
    messages_key="messages",
    system_key="system",
    reply_keys=("max_tokens",),
    create_reader=anthropic.AnthropicReader,
    is_fittable=anthropic.is_fittable,
    builder="brim.wire.to_anthropic",
)
RESPONSES: Final = BodyFormat(
    "responses",
    title="OpenAI responses",
    path="/responses",
    count_path="/responses/input_tokens",
    messages_key="input",
    system_key="instructions",
    reply_keys=("max_output_tokens",),
    create_reader=openai_responses.ResponsesReader,
    is_fittable=openai_responses.is_fittable,
    builder="brim.wire.to_responses",
)

FORMATS: Final[Mapping[FormatName, BodyFormat]] = {
    format.name: format for format in (CHAT, ANTHROPIC, RESPONSES)
}
FORMATS_BY_PATH: Final[Mapping[str, BodyFormat]] = {
    format.versioned_path: format for format in FORMATS.values()
}
REPLY_KEYS: Final = frozenset(key for format in FORMATS.values() for key in format.reply_keys)
"""The fields of all formats for the maximum number of output tokens."""
