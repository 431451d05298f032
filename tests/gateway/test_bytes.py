"""If nothing has to be trimmed, requests and responses pass byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import httpx
import pytest
from aiohttp import web

from brim.providers.local import LocalServer
from brim.testing import ErrorReply, ScriptedReply, ScriptedServer, TextReply, ToolCallReply
from tests.support.gateway.process import config_of, run_gateway
from tests.support.gateway.requests import (
    CHAT,
    MESSAGES,
    RESPONSES,
    body_of,
    messages_key,
    post,
    read_spoken,
)
from tests.support.providers.scripted import by_path, run, run_scripted

TEXT = "Grüße,  世界\nand a second line 🙂"
HOP = {"connection", "content-length", "date", "server", "transfer-encoding"}
"""Hop-by-hop headers."""

BODIES: Mapping[str, bytes] = {
    CHAT: b"""{ "model":"m",
      "messages": [ {"role":"system", "content":"Be brief.", "x-note": [1, 2.50, null]},
        {"role":"user","content":[{"type":"text","text":"caf\\u00e9 \\ud83d\\ude42 / \\/"},
          {"type":"hologram","data":{"depth":1e2}}], "name":"ann"}],
      "temperature":0.10,"max_tokens":50, "seed": 12345678901234567890, "unknown":{"a":[]} }""",
    MESSAGES: b"""{"max_tokens":50,  "model":"m", "betas_of_mine": true,
      "system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral","ttl":"1h"}}],
      "messages":[{"role":"user","content":"Say it."},
        {"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"c2ln"},
          {"type":"redacted_thinking","data":"b3BhcXVl"},{"type":"text","text":"What?"}]},
        {"role":"user","content":[{"type":"text","text":"\\u00e9","cache_control":
          {"type":"ephemeral"}}, {"type":"hologram","data":7}]}]}""",
    RESPONSES: b"""{"model":"m","instructions":"Be brief.", "store":false, "max_output_tokens":50,
      "input":[{"role":"user","content":"Think."},
        {"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"b3BhcXVl"},
        {"type":"message","id":"msg_1","role":"assistant","status":"completed","content":
          [{"type":"output_text","text":"\\u00e9","annotations":[ ]}]},
        {"type":"compaction","id":"cmp_1","encrypted_content":"b3BhcXVl"},
        {"type":"hologram","data":{}}, {"role":"user","content":"And now?"}],
      "include":["reasoning.encrypted_content"], "unknown":null}""",
}
"""Unusual but valid bodies, with unknown fields."""


def make_streamed(raw: bytes, more: bytes = b"") -> bytes:
    """The same body with streaming."""
    return b'{"stream": true, ' + more + raw.lstrip()[1:]


def assert_same(through: httpx.Response, direct: httpx.Response) -> None:
    """Check that body and headers are the upstream's, and that only brim's headers are added."""
    assert through.status_code == direct.status_code
    assert through.content == direct.content
    expected = {name: value for name, value in direct.headers.items() if name not in HOP}
    assert {name: through.headers.get(name) for name in expected} == expected
    new = through.headers.keys() - expected.keys() - HOP
    assert new
    assert all(name.startswith("brim-") for name in new)


ANSWERS: Mapping[str, ScriptedReply] = {
    "text": TEXT,
    "nothing": "",
    "calls": TextReply(TEXT, [ToolCallReply("read", {"path": "ä.py"}), ToolCallReply("list")]),
    "cut short": TextReply(TEXT, finish="length"),
}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("path", BODIES)
def test_a_response_is_returned_byte_for_byte(
    path: str, answer: ScriptedReply, is_streamed: bool
) -> None:
    raw = make_streamed(BODIES[path]) if is_streamed else BODIES[path]
    with (
        ScriptedServer(answer, window=4_096) as upstream,
        run_gateway(config_of(upstream.url)) as gateway,
    ):
        assert_same(post(gateway.url, path, raw), post(upstream.url, path, raw))
        through, direct = upstream.requests
        if is_streamed and path == CHAT:
            assert direct.raw[1:] in through.raw
            assert {**direct.body, "stream_options": {"include_usage": True}} == through.body
        else:
            assert through.raw == direct.raw == raw


def test_a_client_that_requests_stream_usage_gets_it() -> None:
    raw = make_streamed(BODIES[CHAT], b'"stream_options":{"include_usage" : true}, ')
    with ScriptedServer(TEXT) as upstream, run_gateway(config_of(upstream.url)) as gateway:
        through = post(gateway.url, CHAT, raw)
        assert_same(through, post(upstream.url, CHAT, raw))
        assert b'"usage"' in through.content
        assert [each.raw for each in upstream.requests] == [raw, raw]


@pytest.mark.parametrize("options", [b"null", b"{}", b'{"include_usage":false}', b'{"other":1}'])
def test_a_client_that_does_not_request_stream_usage_does_not_see_it(options: bytes) -> None:
    raw = make_streamed(BODIES[CHAT], b'"stream_options":' + options + b",")
    with ScriptedServer(TEXT) as upstream, run_gateway(config_of(upstream.url)) as gateway:
        through = post(gateway.url, CHAT, raw)
        assert_same(through, post(upstream.url, CHAT, raw))
        assert b'"usage"' not in through.content
        sent, direct = (each.body for each in upstream.requests)
        assert sent["stream_options"]["include_usage"] is True
        assert {**sent, "stream_options": 0} == {**direct, "stream_options": 0}
    (record,) = gateway.gateway.records.newest(9)
    assert record.usage is not None
    assert record.usage.input == upstream.requests[0].tokens
    assert not record.is_usage_estimated


def test_an_upstream_without_stream_options_is_not_asked_for_usage() -> None:
    raw = make_streamed(BODIES[CHAT])
    with ScriptedServer(TEXT) as upstream:
        with run_gateway(config_of(upstream.url, stream_usage=False)) as gateway:
            assert_same(post(gateway.url, CHAT, raw), post(upstream.url, CHAT, raw))
        assert [each.raw for each in upstream.requests] == [raw, raw]
    (record,) = gateway.gateway.records.newest(9)
    assert record.is_usage_estimated
    assert record.usage is not None
    assert record.usage.output >= upstream.tokens(TEXT)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 429, 500, 503, 529])
@pytest.mark.parametrize("path", BODIES)
def test_upstream_errors_are_returned_unchanged(path: str, status: int, is_streamed: bool) -> None:
    raw = make_streamed(BODIES[path]) if is_streamed else BODIES[path]
    fault = ErrorReply(status, "no, because: ü", retry_after=7)
    with ScriptedServer(fault) as upstream, run_gateway(config_of(upstream.url)) as gateway:
        through = post(gateway.url, path, raw)
        assert_same(through, post(upstream.url, path, raw))
        assert through.status_code == status
        assert through.headers["retry-after"] == "7"
        assert len(upstream.requests) == 2


@pytest.mark.parametrize("path", BODIES)
def test_an_error_in_a_stream_is_returned_unchanged(path: str) -> None:
    raw, fault = make_streamed(BODIES[path]), ErrorReply(500, "broken", in_stream=True)
    with ScriptedServer(fault) as upstream, run_gateway(config_of(upstream.url)) as gateway:
        through = post(gateway.url, path, raw)
        assert_same(through, post(upstream.url, path, raw))
        assert through.status_code == 200
        assert b"broken" in through.content


# Headers and query strings

LIMITS = {
    "retry-after": "20",
    "request-id": "req_011CSHoEeqs5C35K2UUqR7Fy",
    "x-request-id": "one",
    "x-ratelimit-remaining-tokens": "0",
    "x-ratelimit-reset-tokens": "6m0s",
    "anthropic-ratelimit-tokens-reset": "2026-01-01T00:00:00Z",
    "x-should-retry": "false",
}


@pytest.mark.parametrize("status", [200, 429])
@pytest.mark.parametrize("path", BODIES)
def test_response_headers_of_a_provider_are_returned(path: str, status: int) -> None:
    response = web.json_response({"id": "x", "content": []}, status=status, headers=LIMITS)

    async def ask() -> None:
        async with run_scripted(by_path({path: response})) as upstream:
            with run_gateway(config_of(f"{upstream.url}/v1")) as gateway:
                through = await asyncio.to_thread(post, gateway.url, path, BODIES[path])
            direct = await asyncio.to_thread(post, upstream.url, path, BODIES[path])
        assert_same(through, direct)
        assert through.headers["x-ratelimit-reset-tokens"] == "6m0s"

    run(ask())


BETAS = {
    "anthropic-beta": "context-management-2025-06-27,compact-2026-01-12",
    "anthropic-version": "2023-06-01",
    "x-claude-code-session-id": "s-1",
    "openai-beta": "assistants=v2",
    "user-agent": "agent/1.0",
}
OWN = {
    "authorization": "Bearer mine",
    "x-api-key": "mine",
    "x-goog-api-key": "mine",
    "openai-organization": "mine",
    "openai-project": "mine",
    "cookie": "a=b",
    "brim-policy": "thrift",
}


@pytest.mark.parametrize("path", BODIES)
def test_beta_headers_and_query_strings_are_forwarded(path: str) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.rel_url.raw_query_string)
        return web.json_response({"content": []})

    async def ask() -> None:
        async with run_scripted(answer) as upstream:
            config = config_of(f"{upstream.url}/v1", key_env="KEY")
            with run_gateway(config, {"KEY": "the upstream's"}) as gateway:
                there = f"{path}?beta=true&x=a%20b%3D+"
                await asyncio.to_thread(post, gateway.url, there, BODIES[path], BETAS | OWN)
            *_, sent = upstream.requests
        assert sent.raw == BODIES[path]
        headers = {name.lower(): value for name, value in sent.headers.items()}
        assert {name: headers.get(name) for name in BETAS} == BETAS
        assert seen[-1] == "beta=true&x=a%20b%3D+"
        key = "x-api-key" if path == MESSAGES else "authorization"
        assert headers[key].endswith("the upstream's")
        assert "mine" not in " ".join(headers.values())
        assert not headers.keys() & {"cookie", "brim-policy"}

    run(ask())


def test_without_its_own_key_an_upstream_gets_the_client_key() -> None:
    with ScriptedServer("ok") as upstream, run_gateway(config_of(upstream.url)) as gateway:
        post(gateway.url, CHAT, BODIES[CHAT], {"authorization": "Bearer mine"})
        post(gateway.url, MESSAGES, BODIES[MESSAGES], {"x-api-key": "mine"})
        first, second = (
            {name.lower(): value for name, value in each.headers.items()}
            for each in upstream.requests
        )
    assert first["authorization"] == "Bearer mine"
    assert second["x-api-key"] == "mine"


# Trimmed requests


@pytest.mark.parametrize("path", BODIES)
def test_untrimmed_messages_are_unchanged(path: str) -> None:
    body = json.loads(BODIES[path])
    key = messages_key(path)
    *first, last = body[key]
    filler = [
        {"role": role, "content": f"{role} {n}: " + "word " * 60}
        for n in range(40)
        for role in ("user", "assistant")
    ]
    body[key] = [*filler, *first[path == CHAT :], last]
    with (
        ScriptedServer("ok", window=1_000) as upstream,
        run_gateway(config_of(upstream.url)) as gateway,
    ):
        answer = post(gateway.url, path, json.dumps(body).encode())
        assert answer.status_code == 200
        assert "dropped=" in answer.headers["brim-trimmed"]
        (sent,) = (each.body for each in upstream.requests)
    assert {**sent, key: 0} == {**body, key: 0}
    assert sent[key][-1] == last
    opaque = [item for item in first[1:] if item.get("type") in ("reasoning", "compaction")]
    assert all(item in sent[key] for item in opaque)


# A real model


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_a_real_model_answers_the_same_through_the_gateway(
    llama: LocalServer, path: str, is_streamed: bool
) -> None:
    settings = {"temperature": 0, "cache_prompt": False, "stream": is_streamed}
    body = body_of(path, "Hello!", reply=12, model=llama.model, **settings)
    key = {"authorization": f"Bearer {llama.key}"}
    with run_gateway(config_of(llama.url, key_env="KEY"), {"KEY": llama.key}) as gateway:
        through = post(gateway.url, path, body)
    direct = post(llama.url, path, body, key)
    assert through.status_code == direct.status_code == 200
    assert read_spoken(through) == read_spoken(direct) != ""
