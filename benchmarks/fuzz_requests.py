"""Requests for the fuzzer: valid ones of every format with unusual changes, from a seed.

The same seed and number give the same request, so a failure can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import orjson

LONG: Final = "So many words that they do not fit. " * 60
_TOOL: Final = {"name": "read", "description": "Read a file.", "parameters": {"type": "object"}}

CHAT: Final[dict[str, Any]] = {
    "model": "gpt-4o",
    "max_tokens": 9,
    "temperature": 0.7,
    "stream": False,
    "tools": [{"type": "function", "function": _TOOL}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is in the file?"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": LONG},
        {"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            {"type": "text", "text": "And in this picture?"}]},
    ],
}  # fmt: skip
MESSAGES: Final[dict[str, Any]] = {
    "model": "claude-sonnet-5",
    "max_tokens": 9,
    "stream": False,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "tools": [{"name": "read", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": "What is in the file?"},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1",
             "content": [{"type": "text", "text": LONG}]},
            {"type": "text", "text": "Go on."}]},
    ],
}  # fmt: skip
RESPONSES: Final[dict[str, Any]] = {
    "model": "gpt-5-mini",
    "max_output_tokens": 9,
    "stream": False,
    "instructions": "Be brief.",
    "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
    "input": [
        {"role": "user", "content": "What is in the file?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
        {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": LONG},
    ],
}
GEMINI: Final[dict[str, Any]] = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "generationConfig": {"maxOutputTokens": 9, "candidateCount": 1},
    "tools": [{"functionDeclarations": [{"name": "read", "parameters": {"type": "object"}}]}],
    "contents": [
        {"role": "user", "parts": [{"text": "What is in the file?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}}]},
        {"role": "user", "parts": [
            {"functionResponse": {"name": "read", "response": {"text": LONG}}}]},
        {"role": "user", "parts": [
            {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
            {"text": "And in this picture?"}]},
    ],
}  # fmt: skip
EMBEDDING: Final[dict[str, Any]] = {
    "model": "text-embedding-3-small", "input": ["one", LONG], "encoding_format": "float",
}  # fmt: skip
COMPACTION: Final = {key: RESPONSES[key] for key in ("model", "instructions", "input")}
COMPRESSION: Final = {"model": "gpt-4o", "target_tokens": 300, "messages": CHAT["messages"]}
KEY_CHANGE: Final[dict[str, Any]] = {
    "note": "fuzzed", "expires": "30d", "models": ["gpt-*"], "labels": ["team=fuzz"],
    "caps": ["1000000/day", "9G tokens/day", "1000000 requests/minute", "500 concurrent"],
}  # fmt: skip
NEW_KEY: Final = {**KEY_CHANGE, "name": "fuzzed", "project": "fuzz", "operator": False}
CAP_CHANGE: Final[dict[str, Any]] = {"scope": "project:fuzz", "caps": ["1000000/month"]}

BASES: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    *[("POST", "/v1/chat/completions", CHAT)] * 6,
    *[("POST", "/v1/messages", MESSAGES)] * 6,
    *[("POST", "/v1/responses", RESPONSES)] * 6,
    ("POST", "/v1/messages/count_tokens", MESSAGES),
    ("POST", "/v1/responses/input_tokens", RESPONSES),
    *[("POST", "/v1beta/models/gemini-2.5-flash:generateContent", GEMINI)] * 4,
    *[("POST", "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse", GEMINI)] * 2,
    ("POST", "/v1beta/models/gemini-2.5-flash:countTokens", GEMINI),
    ("POST", "/v1beta/models/gemini-2.5-flash:countTokens", {"generateContentRequest": GEMINI}),
    ("POST", "/v1/embeddings", EMBEDDING),
    ("POST", "/v1/responses/compact", COMPACTION),
    ("POST", "/v1/compress", COMPRESSION),
    ("POST", "/brim/keys", NEW_KEY),
    ("PATCH", "/brim/keys/fuzzed", KEY_CHANGE),
    ("PUT", "/brim/caps", CAP_CHANGE),
    ("POST", "/brim/prune", {"older_than": "60d"}),
    *[("GET", "", {})] * 2,
)
"""Methods, paths and valid bodies; completions are most of them."""
QUERIES: Final = (
    *("/v1/models", "/v1/models/{}", "/brim/keys/{}", "/brim/requests/{}", "/v1/retrieve/{}"),
    *("/{}", "/brim/{}", "/metrics", "/brim/routes", "/brim/keys/client/users?days={}"),
    *("/brim/requests?last={}", "/brim/audit?last={}", "/brim/spending?days={}"),
    *("/brim/history?q={}&until=9", "/brim/history?before={}", "/brim/history?key={}&until=9"),
    *(
        "/brim/series?since={}&until=9",
        "/brim/series?until={}&since=0",
        "/brim/series?group={}&until=9",
    ),
)
"""Paths that are read, with a place for a text; most until a time without requests, because sums of
a million requests take seconds."""

_TEXTS: Final = (
    *("", "a", "assistant", "user", "system", "tool", "function", "developer", "text", "auto"),
    *("tool_use", "tool_result", "thinking", "image", "image_url", "input_text", "none", "any"),
    *("message", "function_call", "function_call_output", "web_search", "code_interpreter"),
    *("computer_use_preview", "mcp", "file_search", "json_schema", "flex", "priority", "5/day"),
    *("\ud83d", "\x00", "é世\u202e", "-1", "1e999", "data:,", "http://127.0.0.1:9/x.png"),
    *(
        "99999999999999999999",
        "nan",
        "inf",
        "1_",
        "16 concurrent",
        "9rpm",
        "999999999w",
        "model",
        "key",
    ),
    *("gpt-4o:online", "gpt-4o", "claude-sonnet-5", "no-such-model", "../x", "%00", "{}", "[]"),
)
_FIELDS: Final = (
    *("n", "best_of", "stream", "stream_options", "logprobs", "modalities", "audio", "prediction"),
    *("response_format", "service_tier", "speed", "store", "tool_choice", "parallel_tool_calls"),
    *("web_search_options", "search_parameters", "inference_geo", "metadata", "user", "stop"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "reasoning", "thinking"),
    *("previous_response_id", "conversation", "background", "include", "truncation", "prompt"),
    *("context_management", "container", "mcp_servers", "functions", "function_call", "type"),
    *("role", "content", "text", "name", "id", "input", "source", "cache_control", "_pin"),
    *("parts", "generationConfig", "contents", "candidateCount", "safety_identifier", "dimensions"),
    *("target_tokens", "caps", "models", "expires", "labels", "overlap", "older_than", "users"),
    *("generateContentRequest",),
    *("_priority", "tool_calls", "tool_call_id", "arguments", "detail", "file", "file_id", "url"),
)
_HEADERS: Final = (
    *("brim-policy: rolling", "brim-policy: \x80", "brim-fitting: off", "brim-fitting: dry-run"),
    *("brim-fitting: x", "brim-cache-marks: on", "content-encoding: gzip", "anthropic-beta: x"),
    *("content-encoding: br", "anthropic-version: 2023-06-01", "accept: text/event-stream"),
    *("origin: https://example.org", "origin: null", "idempotency-key: k", "x-api-key: brim-x"),
    *("brim-recall: on", "brim-session: s", "content-encoding: deflate", "brim-x: 1"),
    *("x-end-user: \x80", "x-end-user: anna", "upgrade: h2c", "content-encoding: zstd"),
    *("content-type: text/plain", "traceparent: 00-zz-1-1", "expect: 100-continue", "x: \t"),
)
_LENGTHS: Final = (1, 7, 60, 300, 600)
"""Words of long texts. They are few, so that caches by name are full early."""


class FuzzedRequest(NamedTuple):
    """One request."""

    method: str
    path: str
    body: bytes
    headers: tuple[str, ...] = ()
    is_cut: bool = False
    """Whether the client disconnects before the response."""
    is_broken: bool = False
    """Whether the upstream interrupts its reply, or sends an invalid one."""


def create_requests(seed: int, number: int) -> Iterator[FuzzedRequest]:
    """Return this many requests of a seed."""
    for index in range(number):
        yield create_request(Random(f"{seed}/{index}"))


def create_request(random: Random) -> FuzzedRequest:
    method, path, base = random.choice(BASES)
    if method == "GET":
        text = quote(random.choice(_TEXTS).encode("utf-8", "surrogatepass"), safe="")
        return FuzzedRequest(method, random.choice(QUERIES).format(text), b"")
    body = json.loads(orjson.dumps(base))
    if "stream" in body and random.random() < 0.2:
        body["stream"] = True
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        _mutate(random, body)
    raw = _dump(body)
    if random.random() < 0.08:
        raw = _damage(random, raw)
    count = 0 if random.random() < 0.7 else random.randint(1, 2)
    headers = random.sample(_HEADERS, count)
    is_broken = random.random() < 0.05
    if is_broken:
        headers.append(f"x-fuzz-reply: {random.randrange(1000)}")
    return FuzzedRequest(method, path, raw, tuple(headers), random.random() < 0.02, is_broken)


def _dump(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=True).encode()


def _damage(random: Random, raw: bytes) -> bytes:
    """Return the bytes cut off, or with other bytes inside."""
    place = random.randrange(len(raw) + 1)
    if random.random() < 0.5:
        return raw[:place]
    return raw[:place] + random.randbytes(random.randint(1, 3)) + raw[place:]


def _mutate(random: Random, body: dict[str, Any]) -> None:
    """Replace, remove or add one value somewhere in a body."""
    places = [*_find_places(body)]
    if not places:
        return
    holder, key = random.choice(places)
    kind = random.random()
    if kind < 0.15 and isinstance(holder, dict):
        del holder[key]
    elif kind < 0.45 and isinstance(holder, dict):
        holder[random.choice(_FIELDS)] = _create_value(random, 3)
    elif kind < 0.55 and isinstance(holder, list):
        holder.append(holder[random.randrange(len(holder))])
    else:
        holder[key] = _create_value(random, 3)


def _find_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return every position of a value in a body, with its container."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _find_places(value[key])


def _create_value(random: Random, depth: int) -> Any:
    kind = random.randrange(12 if depth else 8)
    if kind < 3:
        return random.choice((None, True, False, 0, 1, -1, 10**40, 2**63, 1e308, -0.5, 3))
    if kind < 7:
        return random.choice(_TEXTS)
    if kind == 7:
        return "word " * random.choice(_LENGTHS)
    if kind < 10:
        return [_create_value(random, depth - 1) for _ in range(random.randrange(3))]
    names = random.choices(_FIELDS, k=random.randrange(4))
    return {name: _create_value(random, depth - 1) for name in names}
