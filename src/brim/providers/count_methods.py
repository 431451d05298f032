"""The ways to request a token count from a server, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from brim.wire.formats import ANTHROPIC, CHAT, REPLY_KEYS, RESPONSES

if TYPE_CHECKING:
    from brim.providers.endpoint import Endpoint
    from brim.wire.formats import FormatName

CountSubject = Literal["request", "text"]


@dataclass(frozen=True, slots=True)
class CountMethod:
    """One way to count: a path, the fields to send, and how to read the count."""

    name: str
    path: str
    is_api_path: bool
    """Whether the path is under `/v1`."""
    build_body: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    read_tokens: Callable[[Any], object]

    def address(self, endpoint: Endpoint) -> str:
        return endpoint.under(self.path) if self.is_api_path else self.path


def _without(*names: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda body: {key: value for key, value in body.items() if key not in names}


def _only(*names: str, **fixed: Any) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda body: {key: body[key] for key in names if key in body} | fixed


def _field(name: str) -> Callable[[Any], object]:
    return lambda reply: reply.get(name) if isinstance(reply, Mapping) else None


def _length(name: str) -> Callable[[Any], object]:
    """Return a reader of the length of a list."""

    def read(reply: Any) -> object:
        items = reply.get(name) if isinstance(reply, Mapping) else None
        return len(items) if isinstance(items, list) else None

    return read


_without_streaming = _without("stream", "stream_options")

REQUESTS: Final[Mapping[FormatName, Sequence[CountMethod]]] = {
    "openai": (
        CountMethod(
            "llama.cpp",
            CHAT.count_path,
            is_api_path=True,
            build_body=_without_streaming,
            read_tokens=_field("input_tokens"),
        ),
        CountMethod(
            "vLLM",
            "/tokenize",
            is_api_path=False,
            build_body=_only(
                *("model", "messages", "tools", "chat_template", "chat_template_kwargs"),
                add_generation_prompt=True,
                add_special_tokens=False,
            ),
            read_tokens=_field("count"),
        ),
        CountMethod(
            "TGI",
            "/chat_tokenize",
            is_api_path=False,
            build_body=_without_streaming,
            read_tokens=_length("tokenize_response"),
        ),
    ),
    "anthropic": (
        CountMethod(
            "Anthropic",
            ANTHROPIC.count_path,
            is_api_path=True,
            build_body=_only(
                *("model", "messages", "system", "tools", "tool_choice", "thinking"),
                *("mcp_servers", "output_config", "context_management", "cache_control"),
            ),
            read_tokens=_field("input_tokens"),
        ),
    ),
    "responses": (
        CountMethod(
            RESPONSES.title,
            RESPONSES.count_path,
            is_api_path=True,
            build_body=_only(
                *("model", "input", "instructions", "tools", "tool_choice", "reasoning", "text"),
                *("previous_response_id", "conversation", "parallel_tool_calls", "truncation"),
            ),
            read_tokens=_field("input_tokens"),
        ),
    ),
}
"""Ways to count a complete request, in the order in which they are tried."""

TEXTS: Final[Sequence[CountMethod]] = (
    CountMethod(
        "llama.cpp",
        "/tokenize",
        is_api_path=False,
        build_body=lambda text: {"model": text["model"], "content": text["text"]},
        read_tokens=_length("tokens"),
    ),
    CountMethod(
        "vLLM",
        "/tokenize",
        is_api_path=False,
        build_body=lambda text: {
            "model": text["model"],
            "prompt": text["text"],
            "add_special_tokens": False,
        },
        read_tokens=_field("count"),
    ),
)
"""Ways to count plain text."""

HOSTS_WITHOUT_COUNTS: Final = frozenset(("api.openai.com", "api.anthropic.com", "openrouter.ai"))
"""Hosts that count neither text nor requests in the chat format."""

UNCOUNTED_FIELDS: Final = frozenset(
    [
        *("stream", "stream_options", "temperature", "top_p", "seed", "stop", "n", "user"),
        *("metadata", *REPLY_KEYS),
    ]
)
"""Fields that do not affect the count: requests that differ only in these have the same count."""


def find_methods(endpoint: Endpoint, subject: CountSubject) -> Sequence[CountMethod]:
    """Return the methods that an endpoint may support, in the order in which they are tried."""
    if endpoint.host in HOSTS_WITHOUT_COUNTS and (subject == "text" or endpoint.format == "openai"):
        return ()
    return REQUESTS[endpoint.format] if subject == "request" else TEXTS
