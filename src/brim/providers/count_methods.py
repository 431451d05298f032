"""The ways to request a token count from a server or a cloud, as data."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Literal

from brim.providers.endpoint import Endpoint, RootPath, quote_model
from brim.providers.transport import encode_body
from brim.wire import to_gemini
from brim.wire.formats import ANTHROPIC, CHAT, GEMINI, REPLY_KEYS, RESPONSES, FormatName

CountSubject = Literal["request", "text"]


@dataclass(frozen=True, slots=True)
class CountMethod:
    """One way to count: a path, the fields to send, and where the count is."""

    name: str
    path: str
    result: str
    """The field of the response with the count, or with a list of the tokens."""
    fields: Collection[str] | None = None
    """Fields of the request that are sent; None: all but those of streaming."""
    fixed: Mapping[str, bool] = field(default_factory=dict)
    text_field: str | None = None
    """The field for plain text."""
    is_batched: bool = False
    """Whether it counts a list of texts with -1 between them."""
    is_api_path: bool = False
    """Whether the path is under `/v1`."""
    convert: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    """Returns the body to send for a request, if the method has a format of its own."""
    key_header: str = ""
    """The header for the key, if it is not that of other requests to the endpoint."""

    def address(self, endpoint: Endpoint, model: str) -> str:
        if self.is_api_path:
            name = quote_model(model.rpartition("/")[2])
            return endpoint.under(self.path.replace("{model}", name))
        if self.convert is not None:
            name = quote_model(_PROFILE.sub("", model.rpartition("/")[2]), safe=":@{}")
            return RootPath(self.path.replace("{model}", name))
        return self.path

    def build_headers(
        self, endpoint: Endpoint, headers: Mapping[str, str] | None
    ) -> Mapping[str, str]:
        """Return the headers of a client with the key in the header that the method needs."""
        given = dict(headers or {})
        if not self.key_header or self.key_header in map(str.lower, given):
            return given
        tokens = [value for name, value in given.items() if name.lower() == "authorization"]
        key = tokens[0].removeprefix("Bearer ") if tokens else endpoint.key
        kept = {name: value for name, value in given.items() if name.lower() != "authorization"}
        return {**kept, "Authorization": "", **({self.key_header: key} if key else {})}

    def build_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.convert is not None:
            return self.convert(body)
        if self.text_field is not None:
            return {"model": body["model"], self.text_field: body["text"], **self.fixed}
        if self.fields is None:
            return {key: value for key, value in body.items() if key not in _STREAM_FIELDS}
        return {**{key: body[key] for key in self.fields if key in body}, **self.fixed}

    def build_batch(self, model: str, texts: Sequence[str]) -> dict[str, Any]:
        """Return a body that asks for the counts of several texts."""
        mixed = [part for text in texts for part in (_SEPARATOR, text)][1:]
        return self.build_body({"model": model, "text": mixed})

    def read_tokens(self, response: object) -> object:
        value = response.get(self.result) if isinstance(response, Mapping) else None
        return len(value) if isinstance(value, list) else value

    def read_batch(self, response: object) -> list[int]:
        """Return the counts of the texts of a batch."""
        tokens = response.get(self.result) if isinstance(response, Mapping) else None
        if not isinstance(tokens, list):
            return []
        ends = [index for index, token in enumerate(tokens) if token == _SEPARATOR]
        return [end - start - 1 for start, end in pairwise((-1, *ends, len(tokens)))]


def _to_gemini_count(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body that counts a Gemini request, whose name brim adds to the fields."""
    name = str(body.get("model", "")).rpartition("/")[2]
    fields = {key: value for key, value in body.items() if key != "model"}
    return {"generateContentRequest": {"model": f"models/{name}", **fields}}


_PROFILE: Final = re.compile(r"^(?:us|eu|apac|au|ca|jp|sa|us-gov|global)\.(?=.)")
"""The region in the id of Bedrock's inference profiles; only the model itself can be counted."""
_STREAM_FIELDS: Final = ("stream", "stream_options")
_SEPARATOR: Final = -1
"""Stands between the texts of a batch, and between their tokens."""

REQUESTS: Final[Mapping[FormatName, Sequence[CountMethod]]] = {
    "openai": (
        CountMethod("llama.cpp", CHAT.count_path, "input_tokens", is_api_path=True),
        CountMethod(
            "vLLM",
            "/tokenize",
            "count",
            ("model", "messages", "tools", "chat_template", "chat_template_kwargs"),
            {"add_generation_prompt": True, "add_special_tokens": False},
        ),
        CountMethod("TGI", "/chat_tokenize", "tokenize_response"),
    ),
    "anthropic": (
        CountMethod(
            "Anthropic",
            ANTHROPIC.count_path,
            "input_tokens",
            (
                *("model", "messages", "system", "tools", "tool_choice", "thinking"),
                *("mcp_servers", "output_config", "context_management", "cache_control"),
            ),
            is_api_path=True,
        ),
    ),
    "responses": (
        CountMethod(
            RESPONSES.title,
            RESPONSES.count_path,
            "input_tokens",
            (
                *("model", "input", "instructions", "tools", "tool_choice", "reasoning", "text"),
                *("previous_response_id", "conversation", "parallel_tool_calls", "truncation"),
            ),
            is_api_path=True,
        ),
    ),
    "gemini": (
        CountMethod(
            "Gemini", GEMINI.count_path, "totalTokens", convert=_to_gemini_count, is_api_path=True
        ),
    ),
}
"""Ways to count a complete request, in the order in which they are tried."""

TEXTS: Final[Sequence[CountMethod]] = (
    CountMethod("llama.cpp", "/tokenize", "tokens", text_field="content", is_batched=True),
    CountMethod(
        "vLLM", "/tokenize", "count", fixed={"add_special_tokens": False}, text_field="prompt"
    ),
)
"""Ways to count plain text."""

UNCOUNTED_FIELDS: Final = frozenset(
    [
        *_STREAM_FIELDS,
        *("temperature", "top_p", "seed", "stop", "n", "user", "metadata", *REPLY_KEYS),
    ]
)
"""Fields that do not affect the count: requests that differ only in these have the same count."""


# Providers with another address

HOSTS_WITHOUT_COUNTS: Final = frozenset(("api.openai.com", "api.anthropic.com", "openrouter.ai"))
"""Hosts that count neither text nor requests in the chat format."""


def find_methods(endpoint: Endpoint, subject: CountSubject) -> Sequence[CountMethod]:
    """Return the methods that an endpoint may support, in the order in which they are tried."""
    for address, format, method in _PROVIDERS:
        if (found := address.match(endpoint.url)) is not None and format == endpoint.format:
            path = method.path.replace("{root}", found.groupdict().get("root", ""))
            return (replace(method, path=path),) if subject == "request" else ()
    if endpoint.host in HOSTS_WITHOUT_COUNTS and (subject == "text" or endpoint.format == "openai"):
        return ()
    return REQUESTS[endpoint.format] if subject == "request" else TEXTS


def _to_gemini(body: Mapping[str, Any]) -> dict[str, Any]:
    return to_gemini.build(body.get("messages") or (), tools=body.get("tools"))


def _to_gemini_request(body: Mapping[str, Any]) -> dict[str, Any]:
    name = str(body.get("model", "")).rpartition("/")[2]
    return {"generateContentRequest": {"model": f"models/{name}", **_to_gemini(body)}}


def _to_vertex_claude(body: Mapping[str, Any]) -> dict[str, Any]:
    fields = REQUESTS["anthropic"][0].build_body(body)
    return {"anthropic_version": "vertex-2023-10-16", **fields}


def _to_bedrock_claude(body: Mapping[str, Any]) -> dict[str, Any]:
    fields = {**REQUESTS["anthropic"][0].build_body(body), "max_tokens": 1}
    fields.pop("model", None)
    return _to_bedrock({"anthropic_version": "bedrock-2023-05-31", **fields})


def _to_bedrock_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    streams = ("model", "stream", "stream_options")
    return _to_bedrock({key: value for key, value in body.items() if key not in streams})


def _to_bedrock(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"input": {"invokeModel": {"body": b64encode(encode_body(body)).decode()}}}


_GEMINI: Final = re.compile(r"https?://generativelanguage\.googleapis\.com(?::\d+)?(?P<root>/v\w+)")
_VERTEX: Final = re.compile(
    r"https?://[\w.-]*\baiplatform\.(?:[\w-]+\.rep\.)?googleapis\.com(?::\d+)?"
    r"(?P<root>/v\w+/projects/[^/]+/locations/[^/]+)"
)
_BEDROCK: Final = re.compile(r"https?://bedrock-runtime[\w.-]*\.amazonaws\.com\b")

_PROVIDERS: Final[Sequence[tuple[re.Pattern[str], FormatName, CountMethod]]] = (
    (
        _GEMINI,
        "openai",
        CountMethod(
            "Gemini",
            "{root}/models/{model}:countTokens",
            "totalTokens",
            convert=_to_gemini_request,
            key_header="x-goog-api-key",
        ),
    ),
    (
        _VERTEX,
        "openai",
        CountMethod(
            "Vertex AI",
            "{root}/publishers/google/models/{model}:countTokens",
            "totalTokens",
            convert=_to_gemini,
        ),
    ),
    (
        _VERTEX,
        "anthropic",
        CountMethod(
            "Vertex AI",
            "{root}/publishers/anthropic/models/count-tokens:rawPredict",
            "input_tokens",
            convert=_to_vertex_claude,
        ),
    ),
    (
        _BEDROCK,
        "anthropic",
        CountMethod(
            "Bedrock", "/model/{model}/count-tokens", "inputTokens", convert=_to_bedrock_claude
        ),
    ),
    (
        _BEDROCK,
        "openai",
        CountMethod(
            "Bedrock", "/model/{model}/count-tokens", "inputTokens", convert=_to_bedrock_chat
        ),
    ),
)
"""The address of a provider, the format of the endpoint, and how it counts."""
