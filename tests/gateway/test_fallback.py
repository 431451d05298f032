"""If an upstream fails, its fallback gets the request, fitted to its own window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from brim.config import Config, UpstreamConfig
from brim.gateway.server import open_listener
from brim.testing import (
    ErrorReply,
    ReceivedRequest,
    Script,
    ScriptedReply,
    ScriptedServer,
    TextReply,
)
from tests.support.gateway.clients import long_talk, openai_client
from tests.support.gateway.process import FORMATS, Running, run_gateway
from tests.support.gateway.requests import (
    CHAT,
    MESSAGES,
    PATHS,
    Turn,
    body_of,
    post,
    read_spoken,
    turns_in,
)

TURNS = long_talk(60)
"""About 2,500 tokens: they fit the first upstream, and not the second."""
LARGE, SMALL = 8_000, 1_000


def config(first: str, second: str, **settings: Any) -> Config:
    """Return a configuration with an upstream for `large` and its fallback, `small`."""
    given = {"format": FORMATS, "models": ("small",), "window": SMALL, "reply": 20, **settings}
    return Config(
        upstreams={
            "first": UpstreamConfig(
                first, FORMATS, models=("large",), window=LARGE, reply=20, fallback=("small",)
            ),
            "second": UpstreamConfig(endpoint=second, **given),
        }
    )


@contextmanager
def two(
    first: Script, second: Script, **settings: Any
) -> Iterator[tuple[Running, list[ReceivedRequest]]]:
    """Run a gateway with two scripted upstreams; yield it and the requests to the second."""
    with (
        ScriptedServer(first, window=LARGE) as large,
        ScriptedServer(second, window=SMALL) as small,
        run_gateway(config(large.url, small.url, **settings)) as gateway,
    ):
        yield gateway, small.requests


@contextmanager
def unused_address() -> Iterator[str]:
    """Yield an address without a server."""
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    yield f"http://127.0.0.1:{port}/v1"


def for_large(path: str, *turns: Turn, **more: Any) -> dict[str, Any]:
    """Return a request for the first upstream."""
    return body_of(path, *turns, model="large", reply=20, **more)


FAILURES: dict[str, ScriptedReply] = {
    "500": ErrorReply(500),
    "503": ErrorReply(503),
    "529": ErrorReply(529, error={"type": "overloaded_error", "message": "Overloaded"}),
    "429": ErrorReply(429, "slow down", retry_after=30),
    "an answer that breaks off": TextReply("It is", cut_after=0),
}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("path", PATHS)
def test_a_failure_is_answered_by_the_fallback(
    path: str, failure: ScriptedReply, is_streamed: bool
) -> None:
    body = for_large(path, *TURNS, stream=is_streamed, unknown={"a": 1})
    with two(failure, "Blue.") as (gateway, requests):
        answer = post(gateway.url, path, body)
        assert (answer.status_code, read_spoken(answer)) == (200, "Blue.")
        assert answer.headers["brim-fallback"] == "small"
        assert answer.headers["brim-upstream"] == "second"
        assert int(answer.headers["brim-limit"]) < SMALL
        (sent,) = requests
    assert sent.tokens <= SMALL - 20
    assert sent.body["model"] == "small"
    assert sent.body["unknown"] == {"a": 1}
    assert turns_in(path, sent.body)[-1]["content"] == "Name a colour!"


def test_an_unreachable_upstream_is_replaced_by_its_fallback() -> None:
    with (
        unused_address() as first,
        ScriptedServer("Blue.", window=SMALL) as small,
        run_gateway(config(first, small.url)) as gateway,
        openai_client(gateway.url) as client,
    ):
        messages: Any = [{"role": "user", "content": "Name a colour!"}]
        answer = client.chat.completions.create(model="large", messages=messages)
        assert answer.choices[0].message.content == "Blue."


def test_a_reply_that_has_begun_is_not_restarted() -> None:
    body = for_large(CHAT, *TURNS, stream=True)
    with two(TextReply("It is blue.", cut_after=2), "Green.") as (gateway, requests):
        answer = post(gateway.url, CHAT, body)
        assert b'"content": "It"' in answer.content
        assert b"Green" not in answer.content
        assert b'"error"' in answer.content.rpartition(b"data: ")[2]
        assert "brim-fallback" not in answer.headers
        assert not requests


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_an_error_about_the_request_is_relayed(status: int) -> None:
    body = for_large(CHAT, *TURNS)
    with two(ErrorReply(status, "no"), "Blue.") as (gateway, requests):
        answer = post(gateway.url, CHAT, body)
        assert answer.status_code == status
        assert answer.json()["error"]["message"] == "no"
        assert not requests


LATER = ErrorReply(429, "slow down", retry_after=30)
CANNOT: dict[str, ScriptedReply] = {
    "it fails too": ErrorReply(503, "second", retry_after=3),
    "it has no key": ErrorReply(401, "second"),
    "it breaks off": TextReply("It is", cut_after=0),
    "it is too busy, in the stream": ErrorReply(
        529, error={"type": "overloaded_error", "message": "second"}, in_stream=True
    ),
}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("second", CANNOT.values(), ids=CANNOT)
@pytest.mark.parametrize("path", PATHS)
def test_the_first_error_is_relayed_if_the_fallback_fails_too(
    path: str, second: ScriptedReply, is_streamed: bool
) -> None:
    body = for_large(path, *TURNS, stream=is_streamed)
    with two(LATER, second) as (gateway, requests):
        answer = post(gateway.url, path, body)
        assert len(requests) == 1
    assert (answer.status_code, answer.json()["error"]["message"]) == (429, "slow down")
    assert answer.headers["retry-after"] == "30"
    assert answer.headers["brim-upstream"] == "first"
    assert int(answer.headers["brim-limit"]) > SMALL
    assert "brim-fallback" not in answer.headers


def test_the_first_error_is_relayed_if_the_fallback_is_unreachable() -> None:
    with (
        ScriptedServer(LATER, window=LARGE) as large,
        unused_address() as second,
        run_gateway(config(large.url, second)) as gateway,
    ):
        answer = post(gateway.url, CHAT, for_large(CHAT, *TURNS))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "30")
    assert "brim-fallback" not in answer.headers


BUSY: dict[str, dict[str, Any]] = {
    "Anthropic's": {"type": "overloaded_error", "message": "Overloaded"},
    "by its code": {"code": "503", "message": "Provider returned error"},
    "by its word": {"code": "server_error", "message": "The server had an error"},
}


@pytest.mark.parametrize("error", BUSY.values(), ids=BUSY)
@pytest.mark.parametrize("path", PATHS)
def test_an_overload_in_a_stream_before_the_first_token_uses_the_fallback(
    path: str, error: dict[str, Any]
) -> None:
    busy = ErrorReply(529, error=error, in_stream=True)
    body = for_large(path, *TURNS, stream=True)
    with two(busy, "Blue.") as (gateway, requests):
        answer = post(gateway.url, path, body)
        assert (answer.status_code, read_spoken(answer)) == (200, "Blue.")
        assert answer.headers["brim-fallback"] == "small"
        assert len(requests) == 1


@pytest.mark.parametrize("path", PATHS)
def test_an_overload_with_a_success_status_uses_the_fallback(path: str) -> None:
    busy = ErrorReply(200, error={"code": 503, "message": "Provider returned error"})
    with two(busy, "Blue.") as (gateway, _):
        answer = post(gateway.url, path, for_large(path, *TURNS))
        assert (answer.status_code, read_spoken(answer)) == (200, "Blue.")


def test_the_first_stream_is_relayed_whole_if_the_fallback_fails() -> None:
    busy = ErrorReply(529, error={"type": "overloaded_error", "message": "first"}, in_stream=True)
    body = for_large(MESSAGES, *TURNS, stream=True)
    with two(busy, ErrorReply(500)) as (gateway, requests):
        answer = post(gateway.url, MESSAGES, body)
        assert len(requests) == 1
    assert answer.status_code == 200
    assert answer.content.startswith(b"event: message_start")
    assert json.loads(answer.content.rpartition(b"data: ")[2])["error"]["message"] == "first"


@pytest.mark.parametrize("path", PATHS)
def test_both_upstreams_unreachable_is_an_error(path: str) -> None:
    with (
        unused_address() as first,
        unused_address() as second,
        run_gateway(config(first, second)) as gateway,
    ):
        answer = post(gateway.url, path, for_large(path, *TURNS))
        assert answer.status_code == 502
        assert "cannot be reached" in answer.json()["error"]["message"]
        if path == MESSAGES:
            assert answer.json()["type"] == "error"
        else:
            assert answer.json()["error"]["code"] == "upstream_unreachable"


def test_a_fallback_with_another_format_is_not_used() -> None:
    body = for_large(CHAT, *TURNS)
    with two(ErrorReply(500, "first"), "Blue.", format=("anthropic",)) as (gateway, requests):
        answer = post(gateway.url, CHAT, body)
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "first")
        assert "brim-fallback" not in answer.headers
        assert not requests


@pytest.mark.parametrize("path", PATHS)
def test_a_request_that_cannot_fit_the_fallback_gets_the_first_error(path: str) -> None:
    with two(LATER, "Blue.") as (gateway, requests):
        answer = post(gateway.url, path, for_large(path, ("user", "word " * 2_000)))
        assert not requests
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "30")
    assert int(answer.headers["brim-tokens"]) > SMALL


def test_each_upstream_gets_its_own_key() -> None:
    upstreams = config("http://first", "http://second").upstreams
    with ScriptedServer(ErrorReply(500)) as large, ScriptedServer("Blue.") as small:
        settings = Config(
            upstreams={
                name: UpstreamConfig(url, FORMATS, models=each.models, fallback=each.fallback,
                                     key_env=name)
                for (name, each), url in zip(upstreams.items(), (large.url, small.url), strict=True)
            }
        )  # fmt: skip
        with run_gateway(settings, {"first": "one", "second": "two"}) as gateway:
            heads = {"authorization": "Bearer mine"}
            post(gateway.url, CHAT, for_large(CHAT, *TURNS), heads)
        keys = [each.headers["Authorization"] for each in (*large.requests, *small.requests)]
    assert keys == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("path", PATHS)
def test_the_fallback_does_not_get_the_clients_key(path: str) -> None:
    names = ("x-api-key", "api-key", "x-goog-api-key", "openai-organization", "openai-project")
    keys = {"authorization": "Bearer of-the-client"} | dict.fromkeys(names, "of-the-client")
    with two(ErrorReply(500), "Blue.") as (gateway, requests):
        answer = post(gateway.url, path, for_large(path, *TURNS), keys)
    assert answer.headers["brim-fallback"] == "small"
    assert "of-the-client" not in str(requests[0].headers)
