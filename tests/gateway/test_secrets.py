"""Message content and keys never leak.

All content of clients and upstreams contains a marker. For every outcome of a request, no log line,
metric, record or error of brim contains the marker.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from brim.config import GatewayConfig
from brim.gateway import logs
from brim.testing import ErrorReply, Script, ScriptedServer, TextReply, ToolCallReply
from tests.support.gateway.process import Running, config_of, restored_loggers, run_gateway
from tests.support.gateway.requests import CHAT, MESSAGES, PATHS, RESPONSES, messages_key, post

MARK = "zqx-"
UPSTREAM_KEY = f"{MARK}upstream-key"
HEADERS = {
    "authorization": f"Bearer {MARK}client-key",
    "x-api-key": f"{MARK}client-key",
    "x-custom": f"{MARK}header",
    "cookie": f"{MARK}cookie",
    "user-agent": f"{MARK}agent",
}
LONG_TEXT = f"{MARK}words that take room " * 400

each_format = pytest.mark.parametrize("path", PATHS)
streamed_and_not = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])

SCHEMA = {"type": "object", "properties": {f"{MARK}property": {"type": "string"}}}
TOOL = {"name": f"{MARK}tool", "description": f"{MARK}what it does"}
ARGUMENTS = {f"{MARK}argument": f"{MARK}value"}


def make_body(path: str, *, streamed: bool, long: bool = False) -> dict[str, Any]:
    """A conversation with a tool, with the marker in every part."""
    result = LONG_TEXT if long else f"{MARK}result"
    more = {"stream": streamed, "user": f"{MARK}name", "metadata": {"user_id": f"{MARK}id"}}
    return {"model": "scripted", **more, **_SAID[path](result)}


def _chat(result: str) -> dict[str, Any]:
    function = {"name": TOOL["name"], "arguments": json.dumps(ARGUMENTS)}
    calls = [{"id": f"{MARK}call", "type": "function", "function": function}]
    return {
        "tools": [{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}],
        "messages": [
            {"role": "system", "content": f"{MARK}system"},
            {"role": "tool", "tool_call_id": f"{MARK}orphan", "content": f"{MARK}orphan"},
            {"role": "user", "content": f"{MARK}user", "name": f"{MARK}speaker"},
            {"role": "assistant", "content": f"{MARK}assistant", "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"{MARK}call", "content": result},
            {"role": "user", "content": f"{MARK}last"},
        ],
    }


def _anthropic(result: str) -> dict[str, Any]:
    call = {"type": "tool_use", "id": f"{MARK}call", "name": TOOL["name"], "input": ARGUMENTS}
    results = [
        {"type": "tool_result", "tool_use_id": f"{MARK}{id}", "content": result}
        for id in ("call", "orphan")
    ]
    thinking = {"type": "thinking", "thinking": f"{MARK}thought", "signature": f"{MARK}signed"}
    return {
        "max_tokens": 50,
        "system": f"{MARK}system",
        "tools": [{**TOOL, "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": f"{MARK}user"},
            {"role": "assistant", "content": [thinking, call]},
            {"role": "user", "content": results},
            {"role": "assistant", "content": f"{MARK}assistant"},
            {"role": "user", "content": f"{MARK}last"},
        ],
    }


def _responses(result: str) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": f"{MARK}call", "name": TOOL["name"]}
    return {
        "instructions": f"{MARK}system",
        "tools": [{"type": "function", **TOOL, "parameters": SCHEMA}],
        "input": [
            {"role": "user", "content": f"{MARK}user"},
            {"type": "reasoning", "id": f"{MARK}id", "encrypted_content": f"{MARK}opaque"},
            {**call, "arguments": json.dumps(ARGUMENTS)},
            {"type": "function_call_output", "call_id": f"{MARK}call", "output": result},
            {"type": "function_call_output", "call_id": f"{MARK}orphan", "output": result},
            {"role": "user", "content": f"{MARK}last"},
        ],
    }


_SAID: Mapping[str, Callable[[str], dict[str, Any]]] = {
    CHAT: _chat,
    MESSAGES: _anthropic,
    RESPONSES: _responses,
}


@contextmanager
def run_watched(answers: Script, **settings: Any) -> Iterator[tuple[Running, ScriptedServer]]:
    """A gateway whose log, metrics and records are searched for the marker at the end."""
    lines = io.StringIO()
    gateway = GatewayConfig(**settings.pop("gateway", {}))
    with ScriptedServer(answers, **settings.pop("scripted", {})) as provider, restored_loggers():
        logs.configure_logging("json", lines)
        given = {"key_env": "KEY", "headers": {"x-team": f"{MARK}team"}, **settings}
        config = replace(config_of(provider.url, **given), gateway=gateway)
        with run_gateway(config, {"KEY": UPSTREAM_KEY}) as server:
            yield server, provider
            pages = [httpx.get(f"{server.url}{path}").text for path in _asked_about(server)]
    written = [*lines.getvalue().splitlines(), *pages]
    assert [text for text in written if MARK in text] == []
    assert len(lines.getvalue().splitlines()) >= 1


def _asked_about(server: Running) -> list[str]:
    kept = server.gateway.records.newest(1_000)
    return ["/metrics", "/brim/requests", *(f"/brim/requests/{record.id}" for record in kept)]


def post_marked(server: Running, path: str, body: Any, **headers: str) -> httpx.Response:
    """Send a body with markers in its headers; check that brim's headers have none."""
    answer = post(server.url, f"{path}?q={MARK}query", body, {**HEADERS, **headers})
    assert UPSTREAM_KEY not in answer.text
    added = {name: value for name, value in answer.headers.items() if name.startswith("brim-")}
    assert MARK not in str(added)
    return answer


# Upstreams

ANSWERS: Mapping[str, Script] = {
    "an answer": f"{MARK}answer",
    "a call": ToolCallReply(f"{MARK}tool", ARGUMENTS),
    "an answer that breaks off": TextReply(f"{MARK}one {MARK}two {MARK}three", cut_after=6),
    "a refusal": ErrorReply(400, f"{MARK}no"),
    "a wrong key": ErrorReply(401, f"Incorrect API key provided: {UPSTREAM_KEY}"),
    "too many requests": ErrorReply(429, f"{MARK}later", retry_after=1),
    "a failure": ErrorReply(500, f"{MARK}trace"),
    "a fault in a stream": ErrorReply(500, f"{MARK}trace", in_stream=True),
    "a wrong key in a stream": ErrorReply(401, f"Incorrect key: {UPSTREAM_KEY}", in_stream=True),
    "a wrong key with a status of success": ErrorReply(200, f"Incorrect key: {UPSTREAM_KEY}"),
    "a wrong key in what is no answer": ErrorReply(200, raw=UPSTREAM_KEY.encode()),
    "garbage": ErrorReply(200, raw=f"{MARK}garbage \N{SNOWMAN}".encode() + b"\xff\xfe"),
    "garbage with an error's status": ErrorReply(500, raw=f"<html>{MARK}{UPSTREAM_KEY}".encode()),
    "JSON that is no answer": ErrorReply(200, raw=json.dumps([MARK]).encode()),
}


@pytest.mark.parametrize("answers", ANSWERS.values(), ids=ANSWERS)
def test_no_response_reveals_content(answers: Script) -> None:
    with run_watched(answers) as (server, provider):
        for path in PATHS:
            for streamed in (True, False):
                post_marked(server, path, make_body(path, streamed=streamed))
        assert len(provider.requests) == 6
        for request in provider.requests:
            assert request.headers["Authorization"] == f"Bearer {UPSTREAM_KEY}"
            assert f"{MARK}client-key" not in str(request.headers)


@each_format
@streamed_and_not
@pytest.mark.parametrize("refuses", ["immediate", "in_stream"])
def test_a_trimmed_and_rejected_request_reveals_nothing(
    path: str, streamed: bool, refuses: str
) -> None:
    scripted = {"window": 1_500, "reports_window": False, "context_errors": refuses}
    with run_watched(f"{MARK}answer", scripted=scripted, window=3_000, reply=50) as (
        server,
        provider,
    ):
        answer = post_marked(server, path, make_body(path, streamed=streamed, long=True))
        assert answer.headers["brim-trimmed"] != "none"
        assert provider.rejected


@each_format
def test_an_unreachable_upstream_is_reported_without_content(path: str) -> None:
    with run_watched("never asked") as (server, provider):
        provider.__exit__()
        answer = post_marked(server, path, make_body(path, streamed=False))
        assert answer.status_code == 502
        assert MARK not in answer.text


# Clients


@each_format
def test_a_context_length_error_has_numbers_only(path: str) -> None:
    with run_watched("never asked", window=300, reply=50) as (server, provider):
        body = make_body(path, streamed=False)
        key = messages_key(path)
        body[key][-1]["content"] = LONG_TEXT
        answer = post_marked(server, path, body)
        assert answer.status_code == 400
        assert MARK not in answer.text
        assert provider.requests == []
        record = server.gateway.records.find(answer.headers["brim-request-id"])
        assert record is not None
        assert record.decisions()["plan"] is not None
        assert record.tokens is not None
        assert record.tokens > (record.limit or 0) == int(answer.headers["brim-limit"]) > 0
        assert answer.headers["brim-tokens"] == str(record.tokens)


BODIES: Mapping[str, Callable[[dict[str, Any], str], Any]] = {
    "no JSON": lambda body, _: json.dumps(body).encode()[:-1],
    "a list": lambda body, _: [body],
    "no conversation": lambda body, key: {**body, key: f"{MARK}text" if key == "messages" else 5},
    "turns that are none": lambda body, key: {**body, key: [f"{MARK}turn"]},
    "a turn without a role": lambda body, key: {**body, key: [{"content": f"{MARK}turn"}]},
    "a role that is none": lambda body, key: {**body, key: [{"role": [MARK], "content": MARK}]},
    "content that is none": lambda body, key: {
        **body,
        key: [{"role": "user", "content": {MARK: 1}}],
    },
    "tools that are none": lambda body, _: {**body, "tools": MARK},
    "a model that is none": lambda body, _: {**body, "model": {MARK: MARK}},
}


@each_format
def test_an_invalid_body_is_not_quoted(path: str) -> None:
    key = messages_key(path)
    with run_watched("Hello.") as (server, _):
        for changed in BODIES.values():
            answer = post_marked(server, path, changed(make_body(path, streamed=False), key))
            assert answer.status_code < 500
            assert MARK not in answer.text


@each_format
def test_a_too_large_body_is_not_quoted(path: str) -> None:
    with run_watched("never asked", gateway={"max_body_bytes": 500}) as (server, _):
        answer = post_marked(server, path, make_body(path, streamed=False))
        assert answer.status_code == 413
        assert MARK not in answer.text
