"""Requests that are too long: recovery from context-length errors, and errors of the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anthropic
import httpx
import openai
import pytest

import brim
from brim.gateway import model_route
from brim.testing import ErrorReply, Script, ScriptedReply, ScriptedServer
from brim.wire.overflow import parse_overflow
from tests.support.gateway.clients import anthropic_client, long_talk, openai_client
from tests.support.gateway.process import Running, config_of, run_gateway
from tests.support.gateway.requests import (
    CHAT,
    MESSAGES,
    PATHS,
    RESPONSES,
    body_of,
    post,
    read_spoken,
)

TURNS = long_talk(100)
"""About 4,000 tokens."""
ACTUAL_WINDOW = 3_800
"""The window of the upstream, which the gateway does not know."""
ASSUMED_WINDOW = 7_000


def before(upstream: ScriptedServer, window: int = ASSUMED_WINDOW, **settings: Any) -> Any:
    """Run a gateway that assumes a larger window than the upstream has."""
    config = config_of(upstream.url, window=window, reply=20, **settings)
    return run_gateway(config)


def ask(gateway: Running, path: str, *, is_streamed: bool = False, **more: Any) -> httpx.Response:
    return post(gateway.url, path, body_of(path, *TURNS, reply=20, stream=is_streamed, **more))


@pytest.mark.parametrize("refuses", ["immediate", "in_stream"])
@pytest.mark.parametrize("path", PATHS)
def test_a_context_length_error_is_recorded_and_the_request_sent_again(
    path: str, refuses: Any
) -> None:
    with (
        ScriptedServer(
            "Blue.", window=ACTUAL_WINDOW, reports_window=False, context_errors=refuses
        ) as upstream,
        before(upstream) as gateway,
    ):
        first = ask(gateway, path, is_streamed=True)
        assert (first.status_code, read_spoken(first)) == (200, "Blue.")
        assert first.headers["brim-resent"] == "1"
        assert int(first.headers["brim-tokens"]) <= int(first.headers["brim-limit"])
        assert "dropped=" in first.headers["brim-trimmed"]
        assert len(upstream.requests) == 2
        assert len(upstream.rejected) == 1
        second = ask(gateway, path)
        assert (second.status_code, read_spoken(second)) == (200, "Blue.")
        assert "brim-resent" not in second.headers
        assert int(second.headers["brim-limit"]) < ACTUAL_WINDOW
        assert len(upstream.requests) == 3


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_reported_limit_survives_a_restart(path: str) -> None:
    with ScriptedServer("Blue.", window=ACTUAL_WINDOW, reports_window=False) as upstream:
        with before(upstream) as gateway:
            assert read_spoken(ask(gateway, path)) == "Blue."
        with before(upstream) as gateway:
            again = ask(gateway, path)
        assert read_spoken(again) == "Blue."
        assert "brim-resent" not in again.headers
        assert len(upstream.rejected) == 1


def reject_above(limit: int, fault: ErrorReply) -> Script:
    """Return a script that rejects every longer request."""

    def answer(body: Any) -> ScriptedReply:
        return fault if brim.count({**body, "model": None}) > limit else "Blue."

    return answer


TPM = (
    "Request too large for m in organization org-1 on tokens per min (TPM): Limit 3800, "
    "Requested 4310. The input or output tokens must be reduced in order to run successfully."
)
OF_ONE_CLIENT = {
    "tokens per minute": ErrorReply(
        429, error={"message": TPM, "type": "tokens", "code": "rate_limit_exceeded"}
    ),
    "tokens per minute, 413": ErrorReply(
        413, error={"message": TPM, "type": "tokens", "code": "rate_limit_exceeded"}
    ),
    "size": ErrorReply(
        413,
        error={"type": "request_too_large", "message": "Request exceeds the maximum size"},
    ),
}
OF_THE_MODEL = {
    "a flat body": ErrorReply(
        400,
        raw=b'{"object":"error","message":"The input (4310 tokens) is longer than the model\'s '
        b'context length (3800 tokens).","type":"BadRequestError","code":400}',
    ),
    "a whole answer with status 200": ErrorReply(
        200, error={"message": "prompt is too long: 4310 tokens > 3800 maximum", "code": 400}
    ),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fault", OF_THE_MODEL.values(), ids=OF_THE_MODEL)
def test_context_length_errors_are_recognized_in_every_shape(path: str, fault: ErrorReply) -> None:
    with (
        ScriptedServer(reject_above(ACTUAL_WINDOW, fault)) as upstream,
        before(upstream) as gateway,
    ):
        first = ask(gateway, path)
        assert (first.status_code, read_spoken(first)) == (200, "Blue.")
        assert first.headers["brim-resent"] == "1"
        assert int(first.headers["brim-tokens"]) <= int(first.headers["brim-limit"])
        assert read_spoken(ask(gateway, path)) == "Blue."
        assert len(upstream.requests) == 3


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fault", OF_ONE_CLIENT.values(), ids=OF_ONE_CLIENT)
def test_a_limit_of_one_client_is_not_recorded_for_others(path: str, fault: ErrorReply) -> None:
    with (
        ScriptedServer(reject_above(ACTUAL_WINDOW, fault)) as upstream,
        before(upstream) as gateway,
    ):
        for _ in range(2):
            answer = ask(gateway, path)
            assert (answer.status_code, read_spoken(answer)) == (200, "Blue.")
            assert answer.headers["brim-resent"] == "1"
        assert len(upstream.requests) == 4


def test_a_rate_limit_does_not_trim_the_request() -> None:
    message = (
        "Rate limit reached for m on tokens per min (TPM): Limit 30000, Used 29000, Requested 4"
    )
    error = {"message": f"{message}310.", "type": "tokens", "code": "rate_limit_exceeded"}
    with ScriptedServer(ErrorReply(429, error=error)) as upstream, before(upstream) as gateway:
        assert ask(gateway, CHAT).json() == {"error": error}
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_second_context_length_error_is_relayed(path: str, is_streamed: bool) -> None:
    error = {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"}
    fault = ErrorReply(400, error=error, in_stream=is_streamed)
    with ScriptedServer(fault) as upstream:
        with before(upstream) as gateway:
            through = ask(gateway, path, is_streamed=is_streamed)
        assert len(upstream.requests) == 2
        sent = upstream.requests[1]
        direct = post(upstream.url, path, sent.raw)
    assert through.status_code == direct.status_code == (200 if is_streamed else 400)
    assert through.content == direct.content
    assert through.headers["brim-resent"] == "1"


def test_a_history_stored_by_the_server_is_relayed() -> None:
    with (
        ScriptedServer("Blue.", window=ACTUAL_WINDOW, reports_window=False) as upstream,
        before(upstream) as gateway,
    ):
        answer = ask(gateway, RESPONSES, previous_response_id="resp_1")
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert answer.headers["brim-count"] == "unknown"
        assert len(upstream.requests) == 1
        assert read_spoken(ask(gateway, RESPONSES)) == "Blue."


def test_a_conversation_stored_by_the_server_is_relayed() -> None:
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    with (
        ScriptedServer("Blue.", window=ACTUAL_WINDOW, reports_window=False) as upstream,
        before(upstream) as gateway,
    ):
        answer = ask(gateway, MESSAGES, thread=thread)
        assert answer.status_code == 400
        assert "prompt is too long" in answer.json()["error"]["message"]
        assert answer.headers["brim-count"] == "unknown"
        assert len(upstream.requests) == 1


def test_a_shorter_reply_can_be_enough() -> None:
    message = (
        "input length and `max_tokens` exceed context limit: 4211 + 9000 > 12000, decrease input "
    )
    error = {"type": "invalid_request_error", "message": f"{message}length or `max_tokens`"}
    with (
        ScriptedServer([ErrorReply(400, error=error), "Blue."]) as upstream,
        before(upstream, window=16_000) as gateway,
    ):
        answer = post(gateway.url, MESSAGES, body_of(MESSAGES, *TURNS, reply=8_000))
        assert read_spoken(answer) == "Blue."
        assert answer.headers["brim-trimmed"] == "none"
        first, second = (request.body for request in upstream.requests)
    assert first["max_tokens"] == 8_000
    assert 20 < second["max_tokens"] <= 12_000 - 4_211
    assert second["messages"] == first["messages"]


@pytest.mark.parametrize("reply", [20, 3_000])
@pytest.mark.parametrize("path", PATHS)
def test_without_fitting_everything_is_relayed(path: str, reply: int) -> None:
    body = body_of(path, *TURNS, reply=reply)
    with ScriptedServer("Blue.", window=ACTUAL_WINDOW) as upstream:
        with run_gateway(config_of(upstream.url)) as gateway:
            by_header = post(gateway.url, path, body, {"brim-fitting": "off"})
        with run_gateway(config_of(upstream.url, policy="off")) as gateway:
            by_setting = post(gateway.url, path, body)
        direct = post(upstream.url, path, body)
        assert len({each.raw for each in upstream.requests}) == 1
        assert len(upstream.requests) == 3
    assert direct.status_code == by_header.status_code == by_setting.status_code == 400
    assert direct.content == by_header.content == by_setting.content
    assert by_header.headers["brim-trimmed"] == by_setting.headers["brim-trimmed"] == "none"
    assert by_header.headers["brim-policy"] == by_setting.headers["brim-policy"] == "off"


# What cannot fit


HUGE: Any = [{"role": "user", "content": "word " * 5_000}]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_that_cannot_fit_is_an_error_for_the_openai_client(is_streamed: bool) -> None:
    with ScriptedServer("Blue.", window=1_000) as upstream:
        with (
            run_gateway(config_of(upstream.url, reply=20)) as gateway,
            openai_client(gateway.url) as client,
        ):
            chat, responses = client.chat.completions, client.responses
            with pytest.raises(openai.BadRequestError) as in_chat:
                chat.create(model="gpt-4o", messages=HUGE, stream=is_streamed)
            with pytest.raises(openai.BadRequestError) as in_responses:
                responses.create(model="gpt-4o", input=HUGE, stream=is_streamed)
        assert not upstream.requests
    for error, param in ((in_chat.value, "messages"), (in_responses.value, "input")):
        assert error.code == "context_length_exceeded"
        assert error.param == param
        assert error.type == "invalid_request_error"
        overflow = parse_overflow(400, error.response.content)
        assert overflow is not None
        assert (overflow.limit, overflow.output) == (1_000, 20)
        assert overflow.sent == brim.count({"messages": HUGE}, model="gpt-4o")
        assert error.response.headers["brim-request-id"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_that_cannot_fit_is_an_error_for_the_anthropic_client(is_streamed: bool) -> None:
    with ScriptedServer("Blue.", window=1_000) as upstream:
        with (
            run_gateway(config_of(upstream.url, reply=20)) as gateway,
            anthropic_client(gateway.url) as client,
            pytest.raises(anthropic.BadRequestError) as raised,
        ):
            client.messages.create(model="gpt-4o", max_tokens=9, messages=HUGE, stream=is_streamed)
        assert not upstream.requests
    error = raised.value
    sent = brim.count({"messages": HUGE}, model="gpt-4o")
    assert f"prompt is too long: {sent} tokens > 980 maximum" in error.message
    assert error.type == "invalid_request_error"
    overflow = parse_overflow(400, error.response.content)
    assert overflow is not None
    assert (overflow.sent, overflow.limit) == (sent, 980)


def test_an_unproven_limit_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare = ErrorReply(400, error={"code": "context_length_exceeded", "message": "too long"})
    for seconds, is_whole in ((model_route.UNPROVEN_SECONDS, False), (0.0, True)):
        monkeypatch.setattr(model_route, "UNPROVEN_SECONDS", seconds)
        with ScriptedServer([bare, "Blue.", "Blue."]) as upstream, before(upstream) as gateway:
            assert ask(gateway, CHAT).headers["brim-resent"] == "1"
            later = ask(gateway, CHAT)
        assert (later.headers["brim-trimmed"] == "none") is is_whole


@pytest.mark.parametrize("window", [900, 3_000])
def test_errors_without_numbers_shrink_every_request_if_the_window_is_unknown(window: int) -> None:
    sizes: list[int] = []

    def answer(body: Mapping[str, Any]) -> str | ErrorReply:
        sizes.append(int(brim.count(body["messages"], model="gpt-4o")))
        if sizes[-1] <= window:
            return "Yes."
        return ErrorReply(400, error={"code": "context_length_exceeded", "message": "too long"})

    messages: list[dict[str, str]] = []
    upstream = ScriptedServer(answer, reports_window=False)
    with upstream, run_gateway(config_of(upstream.url)) as gateway:
        for number in range(40):
            messages.append({"role": "user", "content": f"{number} " + "word " * 99})
            answered = post(gateway.url, CHAT, {"model": "unknown", "messages": messages})
            assert answered.status_code == 200
            assert "brim-limit" not in answered.headers
            messages.append({"role": "assistant", "content": "Yes."})
    rejected = [size for size in sizes if size > window]
    assert len(rejected) == 1
    assert max(sizes[sizes.index(rejected[0]) + 1 :]) < rejected[0]
