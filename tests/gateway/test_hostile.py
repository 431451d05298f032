"""Invalid bodies get an error in the format of the client's library.

Invalid HTTP is in `test_hostile_connections.py`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from brim.config import GatewayConfig
from brim.testing import ScriptedServer
from tests.support.gateway.process import SECRET, Running, config_of, run_gateway
from tests.support.gateway.requests import (
    CHAT,
    COUNT_TOKENS,
    INPUT_TOKENS,
    MESSAGES,
    PATHS,
    RESPONSES,
    body_of,
    messages_key,
)

ALL_PATHS = (*PATHS, COUNT_TOKENS, INPUT_TOKENS)
HIDDEN = "a-word-that-is-never-repeated"


@pytest.fixture
def client(served: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.post(CHAT, json=body_for(CHAT)).status_code == 200


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    """The smallest valid body for a path, with changed fields."""
    return body_of(path, "Hello?", **{"model": "m", **fields})


def conversation(path: str, value: object) -> dict[str, Any]:
    """A body with an invalid value in place of the messages."""
    return body_for(path, **{messages_key(path): value})


def post_raw(client: httpx.Client, path: str, raw: bytes, **headers: str) -> httpx.Response:
    sent = {"content-type": "application/json", **headers}
    return client.post(path, content=raw, headers=sent)


def fault_in(answer: httpx.Response) -> str:
    """Check the format of an error; return its message."""
    assert answer.headers["content-type"] == "application/json"
    for leak in (SECRET, HIDDEN, "Traceback", ".py", "Error("):
        assert leak not in answer.text
    body = answer.json()
    if answer.request.url.path.startswith(MESSAGES):
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
        assert body["error"]["type"].endswith(("_error", "_too_large"))
    else:
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["type"] in ("invalid_request_error", "server_error")
    message: str = body["error"]["message"]
    return message


def post_rejected(client: httpx.Client, path: str, raw: bytes) -> str:
    answer = post_raw(client, path, raw)
    assert answer.status_code == 400, answer.text
    return fault_in(answer)


DEEP = b"[" * 100_000 + b"]" * 100_000
NO_OBJECTS = {
    "nothing": (b"", "Invalid JSON"),
    "blanks": (b" \n", "Invalid JSON"),
    "half an object": (b'{"model": "m", "messages": [', "Invalid JSON"),
    "a form": (b"model=m&messages=Hello", "Invalid JSON"),
    "null": (b"null", "a JSON null"),
    "a list": (b'[{"role": "user"}]', "a JSON list"),
    "a text": (b'"Hello?"', "a JSON string"),
    "a number": (b"5", "a JSON number"),
    "a boolean": (b"true", "a JSON boolean"),
    "two objects": (b"{}{}", "Invalid JSON"),
    "an object and a zero byte": (b"{}\x00", "Invalid JSON"),
    "not a number": (b'{"model": "m", "max_tokens": NaN}', "Invalid JSON"),
    "bytes that are no text": (b'{"model": "\xff\xfe"}', "Invalid JSON"),
    "half an emoji as bytes": (b'{"model": "\xed\xa0\xbd"}', "Invalid JSON"),
    "a zero byte in a text": (b'{"model": "a\x00b"}', "Invalid JSON"),
    "UTF-16": ('{"model": "m"}'.encode("utf-16"), "Invalid JSON"),
    "100,000 lists": (DEEP, "nested too deeply"),
    "100,000 lists in a field": (b'{"model": "m", "messages": ' + DEEP + b"}", "too deeply"),
    "a number with 5,000 digits": (b'{"max_tokens": 1' + b"0" * 5_000 + b"}", "Invalid JSON"),
    "a number beyond all": (b'{"max_tokens": 1e400}', "Invalid JSON"),
}


@pytest.mark.parametrize(("raw", "expected"), NO_OBJECTS.values(), ids=NO_OBJECTS)
def test_a_body_that_is_not_a_json_object_is_rejected(
    client: httpx.Client, raw: bytes, expected: str
) -> None:
    for path in ALL_PATHS:
        assert expected in post_rejected(client, path, raw), path


NO_CONVERSATIONS: Mapping[str, object] = {
    "null": None,
    "a number": 5,
    "a boolean": True,
    "an object": {"role": "user", "content": HIDDEN},
    "a list of texts": [HIDDEN],
    "a list of nulls": [None],
    "a list of lists": [[]],
    "a message without a role": [{"content": HIDDEN}],
    "a role that is a number": [{"role": 5, "content": HIDDEN}],
    "a content that is a number": [{"role": "user", "content": 5}],
    "a content that is an object": [{"role": "user", "content": {"text": HIDDEN}}],
}


@pytest.mark.parametrize("path", [CHAT, MESSAGES, COUNT_TOKENS])
@pytest.mark.parametrize("value", [*NO_CONVERSATIONS.values(), "Hello?"],
                         ids=[*NO_CONVERSATIONS, "a text"])  # fmt: skip
def test_invalid_messages_are_rejected(client: httpx.Client, path: str, value: object) -> None:
    assert post_rejected(client, path, json.dumps(conversation(path, value)).encode())


@pytest.mark.parametrize("path", [CHAT, MESSAGES, COUNT_TOKENS])
def test_a_body_without_messages_is_rejected(client: httpx.Client, path: str) -> None:
    assert "`messages` must be a list" in post_rejected(client, path, b"{}")


@pytest.mark.parametrize("path", [RESPONSES, INPUT_TOKENS])
@pytest.mark.parametrize(
    "name", [name for name in NO_CONVERSATIONS if name != "null"]
)  # a stored prompt needs no input
def test_an_invalid_input_is_rejected(client: httpx.Client, path: str, name: str) -> None:
    raw = json.dumps(conversation(path, NO_CONVERSATIONS[name])).encode()
    assert post_rejected(client, path, raw)


WRONG: Mapping[str, Mapping[str, Any]] = {
    "a model that is a number": {"model": 5},
    "a model that is a list": {"model": ["m"]},
    "tools that are an object": {"tools": {"name": "f"}},
    "tools that are a text": {"tools": "f"},
    "tools that are a number": {"tools": 5},
}


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
def test_a_field_of_the_wrong_type_is_rejected(
    client: httpx.Client, path: str, fields: Mapping[str, Any]
) -> None:
    assert "must be" in post_rejected(client, path, json.dumps(body_for(path, **fields)).encode())


@pytest.mark.parametrize("calls", [[HIDDEN], [5], {}, "x", [{"function": 5}], [{"function": "f"}]])
def test_invalid_tool_calls_are_rejected(client: httpx.Client, calls: object) -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": calls}]
    message = post_rejected(client, CHAT, json.dumps(body_for(CHAT, messages=messages)).encode())
    assert message.startswith("message 0: ")


PASSED_ON: Mapping[str, Mapping[str, Any]] = {
    "less than nothing": {"max_tokens": -1},
    "a half": {"max_tokens": 0.5},
    "a huge number": {"seed": 10**300},
    "a switch that is a text": {"stream": "no"},
    "options that are a text": {"stream_options": "x"},
    "tools that are texts": {"tools": ["f", None, 5]},
    "a tool without a function": {"tools": [{"type": []}]},
    "thinking that is a number": {"thinking": 5},
    "unknown fields": {"": 0, "x" * 1_000: [{}], "_pin": True},
    "a null model": {"model": None},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", PASSED_ON.values(), ids=PASSED_ON)
def test_unknown_values_are_forwarded_byte_for_byte(
    client: httpx.Client, upstream: ScriptedServer, path: str, fields: Mapping[str, Any]
) -> None:
    raw = json.dumps(body_for(path, **fields)).encode()
    assert post_raw(client, path, raw).status_code == 200
    assert upstream.requests[-1].raw == raw


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "text", [b'"\\ud83d"', b'"\\udc00 and \\ud83d\\ud83d"', b'"\\u0000"', b'"\\ufeff"'],
    ids=["half an emoji", "three halves", "a zero", "a byte order mark"],
)  # fmt: skip
def test_unusual_characters_are_forwarded_unchanged(
    client: httpx.Client, upstream: ScriptedServer, path: str, text: bytes
) -> None:
    """Some clients truncate text in the middle of an emoji."""
    raw = json.dumps(body_for(path)).encode().replace(b'"Hello?"', text)
    assert post_raw(client, path, raw).status_code == 200
    assert upstream.requests[-1].raw == raw


@pytest.mark.parametrize("path", PATHS)
def test_a_lone_surrogate_is_replaced_in_a_trimmed_body(
    client: httpx.Client, upstream: ScriptedServer, path: str
) -> None:
    messages: list[Any] = [
        {"role": "user", "content": f"{n} {'word ' * 100}\ud83d"} for n in range(99)
    ]
    for turn in messages[1::2]:
        turn["role"] = "assistant"
    answer = post_raw(client, path, json.dumps(conversation(path, messages)).encode())
    assert answer.status_code == 200
    assert answer.headers["brim-trimmed"].startswith("dropped=")
    last = upstream.requests[-1].body[messages_key(path)][-1]
    assert last["content"] == messages[-1]["content"].replace("\ud83d", "\ufffd")


@pytest.mark.parametrize(
    "fields",
    [{"messages": [{"role": "user"}]}, {"messages": []}, {"tools": ["f", None]},
     {"system": [5]}, {"messages": [{"role": "user", "content": [
         {"type": [], "cache_control": "always"}]}]}],
)  # fmt: skip
def test_cache_marks_are_set_only_where_possible(
    client: httpx.Client, fields: dict[str, Any]
) -> None:
    raw = json.dumps(body_for(MESSAGES, **fields)).encode()
    answer = post_raw(client, MESSAGES, raw, **{"brim-cache-marks": "on"})
    assert answer.status_code in (200, 400)


def test_the_last_value_of_a_duplicate_field_counts(client: httpx.Client) -> None:
    raw = json.dumps(body_for(CHAT)).encode().replace(b'"model": "m"', b'"model": "m", "model": 5')
    assert "`model` must be a string" in post_rejected(client, CHAT, raw)


DEEP_PLACES: Mapping[str, Any] = {
    "a field": lambda deep: {"metadata": deep},
    "a tool": lambda deep: {"tools": [{"type": "function", "function": deep}]},
    "the system text": lambda deep: {"system": [deep]},
    "the instructions": lambda deep: {"instructions": deep},
    "a part": lambda deep: {"messages": [{"role": "user", "content": [deep]}]},
    "an item": lambda deep: {"input": [{"role": "user", "content": [deep]}]},
}


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("place", DEEP_PLACES)
def test_deeply_nested_bodies_are_accepted_or_rejected(
    client: httpx.Client, path: str, place: str
) -> None:
    """Parsers and serializers have different limits, and none may cause an internal error."""
    whole = json.dumps(body_for(path, **DEEP_PLACES[place]({"deep": 0}))).encode()
    for depth in (250, 700, 980, 1_015):
        raw = whole.replace(b'{"deep": 0}', b'{"type":' * depth + b"0" + b"}" * depth)
        answer = post_raw(client, path, raw, **{"brim-fitting": "dry-run"})
        assert answer.status_code in (200, 400)
        assert answer.status_code == 200 or "error" in answer.json()


@pytest.mark.parametrize("model", ["m\r\nset-cookie: a=b", "m\x00", "\ud83d", "ü" * 256, "../x"])
def test_a_model_may_have_any_name(client: httpx.Client, model: str) -> None:
    answer = post_raw(client, CHAT, json.dumps(body_for(CHAT, model=model)).encode())
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    found = client.get(f"/brim/requests/{answer.headers['brim-request-id']}").json()
    assert found["model"].isprintable()
    assert len(found["model"]) < 256


# Sizes


def test_a_body_of_40000_messages_does_not_block_others(
    client: httpx.Client, served: Running
) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 20_000
    raw = json.dumps(body_for(CHAT, messages=messages)).encode()
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(post_raw(client, CHAT, raw)))
    thread.start()
    with httpx.Client(base_url=served.url, timeout=5) as other:
        while thread.is_alive():
            assert other.get("/healthz").status_code == 200
            thread.join(0.05)
    assert answers[0].status_code == 200
    assert answers[0].headers["brim-trimmed"].startswith("dropped=")


@pytest.mark.parametrize("path", ALL_PATHS)
def test_a_body_above_the_limit_is_rejected(upstream: ScriptedServer, path: str) -> None:
    config = config_of(upstream.url)
    small = GatewayConfig(max_body_bytes=10_000)
    with run_gateway(replace(config, gateway=small)) as served, httpx.Client() as client:
        for raw in (b"x" * 10_001, [b"x" * 6_000, b"x" * 6_000]):
            answer = client.post(served.url + path, content=raw)
            assert answer.status_code == 413
            assert "10,000 bytes" in fault_in(answer)
        exact = json.dumps(body_for(path, user="x" * 9_000)).encode().ljust(10_000)
        assert client.post(served.url + path, content=exact).status_code == 200
