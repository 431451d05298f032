"""How providers count: by their addresses, because their paths differ from those of servers."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from brim.providers.count_methods import REQUESTS, TEXTS, CountMethod, CountSubject
from brim.providers.endpoint import Endpoint
from brim.providers.transport import encode_body
from brim.wire import to_gemini
from brim.wire.formats import FormatName

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
