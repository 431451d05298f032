"""The fuzzer: its requests can be repeated, and none of the known ones causes an internal error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from benchmarks.fuzz import GatewayState, find_leaks, is_flat
from benchmarks.fuzz_requests import (
    CAP_CHANGE,
    CHAT,
    COMPRESSION,
    GEMINI,
    KEY_CHANGE,
    LONG,
    MESSAGES,
    RESPONSES,
    create_requests,
)
from brim.testing import ScriptedServer
from tests.support.gateway.accounts import PRICE, bearer_headers, create_secret
from tests.support.gateway.process import config_of, run_gateway

pytestmark = pytest.mark.gateway

CORPUS: Final[list[tuple[str, dict[str, Any], dict[str, Any]]]] = [
    ("/v1/chat/completions", CHAT, {"tools": [{"type": []}]}),
    ("/v1/chat/completions", CHAT, {"tools": [None]}),
    ("/v1/chat/completions", CHAT, {"tools": {"type": {}}}),
    ("/v1/chat/completions", CHAT, {"tools": [{"type": "function", "function": []}]}),
    ("/v1/chat/completions", CHAT, {"n": []}),
    ("/v1/chat/completions", CHAT, {"n": 10**40}),
    ("/v1/chat/completions", CHAT, {"max_tokens": 1e308}),
    ("/v1/chat/completions", CHAT, {"max_tokens": {}}),
    ("/v1/chat/completions", CHAT, {"modalities": {"audio": []}}),
    ("/v1/chat/completions", CHAT, {"web_search_options": []}),
    ("/v1/chat/completions", CHAT, {"stream_options": [], "stream": True}),
    ("/v1/chat/completions", CHAT, {"messages": [{"role": [], "content": {}}]}),
    ("/v1/chat/completions", CHAT, {"messages": {"role": "user"}}),
    ("/v1/chat/completions", CHAT, {"model": "\ud83d"}),
    ("/v1/chat/completions", CHAT, {"service_tier": []}),
    ("/v1/messages", MESSAGES, {"tools": [{"type": [], "name": {}}]}),
    ("/v1/messages", MESSAGES, {"thinking": {"type": [], "budget_tokens": []}}),
    ("/v1/messages", MESSAGES, {"system": {"text": 5}}),
    ("/v1/messages", MESSAGES, {"messages": [{"role": "user", "content": [{"type": {}}]}]}),
    ("/v1/messages", MESSAGES, {"max_tokens": None}),
    ("/v1/messages", MESSAGES, {"mcp_servers": "x", "container": 5}),
    ("/v1/responses", RESPONSES, {"input": [{"type": []}]}),
    ("/v1/responses", RESPONSES, {"tools": [{"type": {}}]}),
    ("/v1/responses", RESPONSES, {"reasoning": [], "text": 5}),
    ("/v1/responses", RESPONSES, {"previous_response_id": []}),
    ("/brim/keys/fuzzed", KEY_CHANGE, {"expires": 1e308}),
    ("/brim/keys/fuzzed", KEY_CHANGE, {"expires": 10**40}),
    ("/brim/keys/fuzzed", KEY_CHANGE, {"note": "\ud83d\x00"}),
    ("/brim/keys/fuzzed", KEY_CHANGE, {"models": ["\ud83d"]}),
    ("/brim/keys/fuzzed", KEY_CHANGE, {"caps": ["9" * 400 + "/day"]}),
    ("/brim/caps", CAP_CHANGE, {"scope": "project:\x00"}),
    ("/brim/caps", CAP_CHANGE, {"caps": ["60 requests/minute", "8 concurrent"]}),
    ("/v1/messages/count_tokens", MESSAGES, {"model": "\ud83d"}),
    ("/v1/messages", MESSAGES, {"metadata": {"user_id": "\ud83d\x00"}}),
    ("/v1/chat/completions", CHAT, {"user": "\ud83d" * 200}),
    ("/v1beta/models/gemini-2.5-flash:countTokens", GEMINI, {"generateContentRequest": None}),
    ("/v1/compress", COMPRESSION, {"messages": [
        CHAT["messages"][2], {"role": "tool", "tool_call_id": "c1", "content": [3, LONG]},
        {"role": "user", "content": "hi"}]}),
]  # fmt: skip
"""Paths, valid bodies, and fields that were once, or nearly, too much."""
METHODS: Final = {"/brim/keys/fuzzed": "PATCH", "/brim/caps": "PUT"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a gateway with capped keys."""
    with pytest.MonkeyPatch.context() as patch, ScriptedServer("Hello.", window=4_000) as upstream:
        patch.setenv("BRIM_STATE", str(tmp_path_factory.mktemp("state")))
        client = create_secret("client", "1000000/day")
        create_secret("fuzzed")
        operator = create_secret("operator", is_operator=True)

        def authorize(request: httpx.Request) -> None:
            secret = operator if request.url.path.startswith("/brim/") else client
            request.headers.update(bearer_headers(secret))

        hooks = {"request": [authorize]}
        config = config_of(upstream.url, price=PRICE, reply=50)
        with (
            run_gateway(config) as served,
            httpx.Client(base_url=served.url, event_hooks=hooks, timeout=60) as found,
        ):
            yield found


def test_no_request_of_the_corpus_causes_an_internal_error(client: httpx.Client) -> None:
    for path, body, fields in CORPUS:
        raw = json.dumps({**body, **fields}).encode()
        answer = client.request(METHODS.get(path, "POST"), path, content=raw)
        assert answer.status_code < 500, (path, fields, answer.text)


def test_no_fuzzed_request_causes_an_internal_error(client: httpx.Client) -> None:
    for request in create_requests(seed=3, number=150):
        heads = [each.split(": ", 1) for each in request.headers]
        answer = client.request(
            request.method,
            request.path,
            content=request.body,
            headers=[(name.encode(), value.strip().encode("latin-1")) for name, value in heads],
        )
        assert answer.status_code < 500, (request, answer.text)


def test_the_same_seed_gives_the_same_requests() -> None:
    assert [*create_requests(5, 40)] == [*create_requests(5, 40)]
    assert [*create_requests(5, 40)] != [*create_requests(6, 40)]


def test_leaks_are_found() -> None:
    rest = GatewayState(descriptors=30, memory=100, running=0, reserved=0.0)
    assert find_leaks(rest, rest) == []
    bad = GatewayState(descriptors=80, memory=200, running=1, reserved=0.5)
    assert len(find_leaks(rest, bad)) == 3
    assert is_flat([1, 50, 80, 90, 95, 100, 100, 101, 100, 103])
    assert not is_flat([10, 20, 30, 40, 50, 60, 70, 80, 90, 100])
