"""The ways to ask a server for a count, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from brim.providers.endpoint import ApiFormat, Endpoint

CountSubject = Literal["request", "text"]


@dataclass(frozen=True, slots=True)
class CountMethod:
    """One way of asking: where, what is sent of a request, and how the answer is read."""

    name: str
    path: str
    under: bool
    """Whether the path is under `/v1`, or beside it."""
    question: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    tokens: Callable[[Any], object]

    def address(self, endpoint: Endpoint) -> str:
        return endpoint.under(self.path) if self.under else self.path


def _without(*names: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda body: {key: value for key, value in body.items() if key not in names}


def _only(*names: str, **fixed: Any) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda body: {key: body[key] for key in names if key in body} | fixed


def _field(name: str) -> Callable[[Any], object]:
    return lambda answer: answer.get(name) if isinstance(answer, Mapping) else None


def _length(name: str) -> Callable[[Any], object]:
    """How many there are in a list, if it is one."""

    def read(answer: Any) -> object:
        items = answer.get(name) if isinstance(answer, Mapping) else None
        return len(items) if isinstance(items, list) else None

    return read


_unstreamed = _without("stream", "stream_options")

REQUESTS: Final[Mapping[ApiFormat, Sequence[CountMethod]]] = {
    "openai": (
        CountMethod(
            "llama.cpp",
            "/chat/completions/input_tokens",
            under=True,
            question=_unstreamed,
            tokens=_field("input_tokens"),
        ),
        CountMethod(
            "vLLM",
            "/tokenize",
            under=False,
            question=_only(
                *("model", "messages", "tools", "chat_template", "chat_template_kwargs"),
                add_generation_prompt=True,
                add_special_tokens=False,
            ),
            tokens=_field("count"),
        ),
        CountMethod(
            "TGI",
            "/chat_tokenize",
            under=False,
            question=_unstreamed,
            tokens=_length("tokenize_response"),
        ),
    ),
    "anthropic": (
        CountMethod(
            "Anthropic",
            "/messages/count_tokens",
            under=True,
            question=_only(
                *("model", "messages", "system", "tools", "tool_choice", "thinking"),
                *("mcp_servers", "output_config", "context_management", "cache_control"),
            ),
            tokens=_field("input_tokens"),
        ),
    ),
    "responses": (
        CountMethod(
            "OpenAI responses",
            "/responses/input_tokens",
            under=True,
            question=_only(
                *("model", "input", "instructions", "tools", "tool_choice", "reasoning", "text"),
                *("previous_response_id", "conversation", "parallel_tool_calls", "truncation"),
            ),
            tokens=_field("input_tokens"),
        ),
    ),
}
"""Ways to count a whole request, in the order in which they are tried."""

TEXTS: Final[Sequence[CountMethod]] = (
    CountMethod(
        "llama.cpp",
        "/tokenize",
        under=False,
        question=lambda text: {"model": text["model"], "content": text["text"]},
        tokens=_length("tokens"),
    ),
    CountMethod(
        "vLLM",
        "/tokenize",
        under=False,
        question=lambda text: {
            "model": text["model"],
            "prompt": text["text"],
            "add_special_tokens": False,
        },
        tokens=_field("count"),
    ),
)
"""Ways to count a plain text."""

HOSTS_WITHOUT_COUNTS: Final = frozenset(("api.openai.com", "api.anthropic.com", "openrouter.ai"))
"""Hosts that are known to count no texts, and no requests of the chat format."""

UNCOUNTED_FIELDS: Final = frozenset(
    [
        *("stream", "stream_options", "temperature", "top_p", "seed", "stop", "n", "user"),
        *("metadata", "max_tokens", "max_completion_tokens", "max_output_tokens"),
    ]
)
"""Fields that no server counts: requests that differ only here are the same."""


def find_methods(endpoint: Endpoint, what: CountSubject) -> Sequence[CountMethod]:
    """What may work at an endpoint, in the order in which it is tried."""
    if endpoint.host in HOSTS_WITHOUT_COUNTS and (what == "text" or endpoint.format == "openai"):
        return ()
    return REQUESTS[endpoint.format] if what == "request" else TEXTS
