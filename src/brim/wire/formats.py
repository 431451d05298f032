"""The body formats: what brim knows about each one, in one table.

A new format needs a module that reads its bodies, one that builds them, and a row here. The
session, the clients, the gateway and the scripted server look formats up in this table. Replies
and streams are parsed in `reply_parser` and `streams`; the gateway's error responses are in
`gateway.errors`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from typing import Any, Final, Literal

from brim.errors import InputError
from brim.messages import Message
from brim.wire import anthropic, embeddings, gemini, openai_chat, openai_responses
from brim.wire.body_parts import filter_mappings, get_mapping
from brim.wire.body_reader import BodyReader, WrittenBody
from brim.wire.objects import plain_messages, to_plain_input

FormatName = Literal["openai", "anthropic", "responses", "gemini"]
"""The formats of conversations, and of the servers that support them."""
_NO_OPTIONS: Final[Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class BodyFormat:
    """The format of a request body: its address, its field names and its code.

    Each format exists once and is compared by identity, which caches do with every request.
    """

    name: str
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
    stored_paths: tuple[tuple[str, ...], ...]
    """Paths of fields that refer to a part of the conversation kept by the server."""
    builder: str
    """The module that builds bodies, imported on first use: `fit` builds none."""
    version: str = "/v1"
    """The version that precedes the paths."""
    options_key: str = ""
    """The field with the options of the reply; empty if they are fields of the body."""
    belongs_to: str = ""
    """The format whose servers support it, if it is not a format of servers itself."""

    @property
    def server_format(self) -> str:
        """The name of the format of the servers that support it."""
        return self.belongs_to or self.name

    @property
    def versioned_path(self) -> str:
        return self.version + self.path

    def options(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a body that are options of the reply."""
        return get_mapping(body, self.options_key) if self.options_key else body

    def with_option(
        self, body: Mapping[str, Any], key: str, value: object
    ) -> tuple[str, Mapping[str, Any] | object]:
        """Return the field of a body that sets an option, and its value."""
        if not self.options_key:
            return key, value
        return self.options_key, {**self.options(body), key: value}

    def is_fittable(self, body: Mapping[str, Any]) -> bool:
        """Whether a body contains the whole conversation, none of it kept by the server."""
        for path in self.stored_paths:
            value: object = body
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            if value:
                return False
        return True

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
    stored_paths=(),
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
    stored_paths=(("thread", "previous_message_id"),),
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
    stored_paths=(("previous_response_id",), ("conversation",)),
    builder="brim.wire.to_responses",
)
GEMINI: Final = BodyFormat(
    "gemini",
    title="Gemini",
    path="/models/{model}:generateContent",
    count_path="/models/{model}:countTokens",
    messages_key="contents",
    system_key="systemInstruction",
    reply_keys=("maxOutputTokens",),
    create_reader=gemini.GeminiReader,
    stored_paths=(("cachedContent",),),
    builder="brim.wire.to_gemini",
    version="/v1beta",
    options_key="generationConfig",
)

FORMATS: Final[Mapping[str, BodyFormat]] = {
    format.name: format for format in (CHAT, ANTHROPIC, RESPONSES, GEMINI)
}
FORMATS_BY_PATH: Final[Mapping[str, BodyFormat]] = {
    format.versioned_path: format for format in FORMATS.values()
}

EMBEDDINGS: Final = replace(
    CHAT,
    name="embeddings",
    belongs_to=CHAT.name,
    title="OpenAI embeddings",
    path="/embeddings",
    messages_key="input",
    reply_keys=(),
    create_reader=embeddings.EmbeddingReader,
)
"""Texts that servers with chat completions turn into vectors; not a conversation."""
COMPACTION: Final = replace(
    RESPONSES,
    name="compaction",
    belongs_to=RESPONSES.name,
    title="OpenAI compaction",
    path="/responses/compact",
    reply_keys=(),
)
"""A conversation that the server makes shorter; no field limits the length of the result."""

REPLY_KEYS: Final = frozenset(key for format in FORMATS.values() for key in format.reply_keys)
"""The fields of all formats for the maximum number of output tokens."""


# Reading a body by its format


def add_system_text(written: WrittenBody, format: BodyFormat, text: str) -> WrittenBody:
    """Return a body with another paragraph of system text."""
    body, origins = written
    if format.system_key:
        system = _join_text(body.get(format.system_key), text)
        return WrittenBody({**body, format.system_key: system}, origins)
    messages, origins = list(body["messages"]), list(origins or ())
    if messages and messages[0].get("role") in ("system", "developer"):
        messages[0] = {**messages[0], "content": _join_text(messages[0].get("content"), text)}
    else:
        messages, origins = [{"role": "system", "content": text}, *messages], [None, *origins]
    return WrittenBody({**body, "messages": messages}, origins)


def _join_text(content: Any, text: str) -> Any:
    """Return a content, which is text or parts, with another paragraph."""
    if isinstance(content, list | tuple):
        return [*content, {"type": "text", "text": text}]
    return f"{content}\n\n{text}" if content else text


def to_plain_body(body: Mapping[str, Any], format: BodyFormat) -> Mapping[str, Any]:
    """Return a body whose messages, tools and system text are JSON data; itself if they are."""
    plain = {}
    for key in ("tools", format.system_key, format.messages_key):
        given = body.get(key)
        if given is None or isinstance(given, str):
            continue
        is_messages = key == format.messages_key and isinstance(given, list | tuple)
        value = plain_messages(given) if is_messages else to_plain_input(given)
        if value is not given:
            plain[key] = value
    return {**body, **plain} if plain else body


def read_messages(body: Mapping[str, Any], format: BodyFormat) -> list[Message]:
    """Return the turns of a body, system text first."""
    return format.create_reader().read(body) or []


def validate_tools(tools: Any) -> Sequence[Mapping[str, Any]] | None:
    """Return the tool definitions; raise `InputError` if they are not a list."""
    if tools is None:
        return None
    if isinstance(tools, str | bytes | bytearray) or not isinstance(tools, Sequence):
        raise InputError(f"tools must be a list of definitions, not {type(tools).__name__}")
    return tools


def plain_tools(tools: Any) -> Sequence[Mapping[str, Any]]:
    """Return tool definitions as JSON data; raise `InputError` if one cannot be a definition."""
    plain = validate_tools(to_plain_input(tools)) or ()
    for number, tool in enumerate(plain):
        if not isinstance(tool, Mapping):
            raise InputError(
                f"Tool {number} is not a definition: {tool!r:.100}. Pass its JSON schema, "
                "as the API expects it."
            )
    return plain


def read_tools(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the tools of a body; raise `InputError` if they are not a list."""
    return validate_tools(body.get("tools")) or ()


def list_tool_kinds(tool: Mapping[str, Any], format: BodyFormat) -> Sequence[object]:
    """Return the types of a tool; one of Gemini's has a field for each."""
    return list(tool) if format is GEMINI else [tool.get("type")]


def min_reply_tokens(body: Mapping[str, Any]) -> int:
    """Return the fewest output tokens that a request needs: the thinking budget and one more."""
    if "thinking" in body:
        thinking = body["thinking"]
        budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    elif GEMINI.options_key in body:
        budget = get_mapping(GEMINI.options(body), "thinkingConfig").get("thinkingBudget")
    else:
        return 0
    return max(0, budget) + 1 if isinstance(budget, int) else 0


def find_reply_limit(body: Mapping[str, Any], format: BodyFormat) -> int | None:
    """Return the largest number of output tokens that a body asks for, or None."""
    options = format.options(body)
    limits = [limit for key in format.reply_keys if isinstance(limit := options.get(key), int)]
    return max(limits, default=None)


def check_fields(body: Mapping[str, Any], format: BodyFormat) -> None:
    """Raise `InputError` if the tools or the output limit of a body cannot be read."""
    tools = body.get("tools")
    if tools and not (isinstance(tools, list) and all(type(tool) is dict for tool in tools)):
        plain_tools(tools)
    options = format.options(body)
    for key in format.reply_keys:
        limit = options.get(key)
        is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if limit is not None and not is_number:
            raise InputError(f"`{key}` is not a number: {limit!r:.100}. Pass a number of tokens.")


def lower_reply_limit(
    body: Mapping[str, Any], format: BodyFormat, room: int, reply: int
) -> Mapping[str, Any]:
    """Return a body whose output limit is at most the room in the window, or the planned reply."""
    for key in format.reply_keys:
        requested = format.options(body).get(key)
        if isinstance(requested, int) and requested > room:
            most = max(room, reply, min_reply_tokens(body))
            if requested > most:
                field, value = format.with_option(body, key, most)
                body = {**body, field: value}
    return body


# Detecting the format

_RESPONSES_FIELDS: Final = ("input", "previous_response_id", "conversation")
_ANTHROPIC_FIELDS: Final = frozenset(
    ("system", "anthropic_version", "stop_sequences", "mcp_servers")
)
_CHAT_ROLES: Final = ("system", "developer", "tool", "function")
_CHAT_FIELDS: Final = frozenset(("tool_calls", "function_call"))
_ANTHROPIC_BLOCKS: Final = frozenset(
    ("tool_use", "tool_result", "redacted_thinking", "server_tool_use", "search_result")
)
_DATED = re.compile(r".+_\d{8}")
"""The names of Anthropic's built-in tools: `bash_20250124`."""


def find_messages_key(messages: Iterable[object]) -> str:
    """Return the field of a body that a list belongs to: items of responses have one of their own.

    Most messages are dicts with a role, so these are recognized first.
    """
    others = (each for each in messages if type(each) is not dict or "role" not in each)
    format = RESPONSES if any(map(openai_responses.is_item, others)) else CHAT
    return format.messages_key


def detect_format(body: Mapping[str, Any]) -> BodyFormat:
    """Return the format of a request body, by its shape; an ambiguous body is chat completions."""
    messages = body.get("messages")
    if messages is None:
        return _detect_other_format(body)
    if not isinstance(messages, list) and (
        not isinstance(messages, Sequence) or isinstance(messages, str)
    ):
        raise InputError(f"`messages` must be a list of messages, not {type(messages).__name__}")
    return ANTHROPIC if _is_anthropic(body, messages) else CHAT


def _detect_other_format(body: Mapping[str, Any]) -> BodyFormat:
    """Return the format of a body without `messages`."""
    if body.get("contents") is not None:
        return GEMINI
    if isinstance(body.get("conversation"), list | tuple):
        raise InputError(
            "`conversation` holds messages, but is the id of a stored conversation in a request "
            "body. Rename it to `messages`."
        )
    if any(body.get(key) is not None for key in _RESPONSES_FIELDS):
        return RESPONSES
    found = ", ".join(str(key) for key, value in body.items() if value is not None)
    raise InputError(
        "Unknown request body: it must have `messages` (chat completions, Anthropic), `input` "
        f"(responses) or `contents` (Gemini), but has {found or 'nothing'}"
    )


def _is_anthropic(body: Mapping[str, Any], messages: Iterable[Any]) -> bool:
    own = _ANTHROPIC_FIELDS.intersection(body)
    if own and any(body[key] is not None for key in own):
        return True
    signs = _iter_message_signs(messages)
    if tools := body.get("tools"):
        signs = chain(_iter_tool_signs(tools), signs)
    for is_sign in signs:
        return is_sign  # the first one decides
    return "budget_tokens" in get_mapping(body, "thinking")


def _iter_tool_signs(tools: object) -> Iterator[bool]:
    """Return for each tool that tells the format whether it is Anthropic's."""
    for tool in tools if isinstance(tools, Sequence) else ():
        match tool:
            case {"function": _} | {"custom": _}:
                yield False
            case {"input_schema": _}:
                yield True
            case {"type": str(kind)} if _DATED.fullmatch(kind):
                yield True


def _iter_message_signs(messages: Iterable[Any]) -> Iterator[bool]:
    """Return for each message or block that tells the format whether it is Anthropic's."""
    for message in messages:
        if not isinstance(message, Mapping):
            message = to_plain_input(message)
        if not isinstance(message, Mapping):
            continue
        if message.get("role") in _CHAT_ROLES or not _CHAT_FIELDS.isdisjoint(message):
            yield False
        if not isinstance(content := message.get("content"), str):
            parts = filter_mappings(content) or filter_mappings(to_plain_input(content))
            yield from filter(None, map(_is_anthropic_block, parts))


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
