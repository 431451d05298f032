"""Limits and counts of one client do not affect others; those of the model are recorded once."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from brim.config import Config, GatewayConfig, UpstreamConfig
from brim.errors import ContextOverflowError, Overflow
from brim.fitting.prefix_cache import PrefixCache
from brim.gateway.fit_request import BodyAdditions, ClientRequest, FittedRequest, RequestFit
from brim.gateway.model_route import ModelRoute
from brim.gateway.upstreams import Upstream
from brim.models.pricing import Usage
from brim.storage.calibration_store import CalibrationStore
from brim.testing import ErrorReply, ScriptedServer
from brim.testing.script import Body, TextReply
from brim.testing.script import ReceivedRequest as Request
from brim.wire import formats
from tests.support.gateway.process import Running, config_of, run_gateway
from tests.support.gateway.requests import CHAT, MESSAGES, RESPONSES, ask, body_of, post

BARE = ErrorReply(
    400,
    error={
        "message": "Your input exceeds the context window of this model.",
        "code": "context_length_exceeded",
    },
)
TALK = [("user", "word " * 20_000), ("assistant", "yes"), ("user", "word " * 20_000)]
TALK += [("assistant", "yes"), ("user", "and?")]
"""About 40,000 tokens."""


@contextmanager
def gateway_before(upstream: ScriptedServer, **more: Any) -> Iterator[Running]:
    with run_gateway(config_of(upstream.url, **more)) as gateway:
        yield gateway


def send(gateway: Running, path: str, *turns: Any, key: str = "", **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    given = {"model": "gpt-4o", "reply": 20, **more}
    return ask(gateway, path, *turns, headers=headers, **given)


def limit(gateway: Running, path: str, **more: Any) -> int:
    """Return the current limit of every client."""
    return int(send(gateway, path, ("user", "hi"), **more).headers["brim-limit"])


# Refusals of one request


PDF = {"type": "input_file", "file_id": "file-1"}
PICTURE = {
    "type": "image",
    "source": {
        "type": "base64",
        "media_type": "image/png",
        "data": base64.b64encode(b"\x89PNG" + bytes(2_000)).decode(),
    },
}
TOO_LARGE = ErrorReply(
    413, error={"type": "request_too_large", "message": "Request exceeds the maximum size"}
)
ODD = {
    "a file that the server holds": (RESPONSES, PDF, BARE),
    "too many bytes": (MESSAGES, PICTURE, TOO_LARGE),
    "nothing that is to be seen": (CHAT, {"type": "text", "text": "hello"}, BARE),
}


@pytest.mark.parametrize(("path", "part", "fault"), ODD.values(), ids=ODD)
def test_an_error_about_a_small_request_does_not_affect_others(
    path: str, part: Any, fault: ErrorReply
) -> None:
    def answer(body: Body) -> str | ErrorReply:
        return fault if part in body_parts(body) else "Blue."

    with ScriptedServer(answer) as upstream, gateway_before(upstream) as gateway:
        before = limit(gateway, path)
        for _ in range(6):
            response = send(gateway, path, {"role": "user", "content": [part]})
            assert response.status_code == fault.status
            assert "brim-resent" not in response.headers
            assert int(response.headers["brim-limit"]) == before
        assert limit(gateway, path) == before
        assert len(upstream.requests) == 8
        direct = post(upstream.url, path, upstream.requests[1].raw)
        assert response.content == direct.content


def body_parts(body: Body) -> list[Any]:
    turns = body.get("messages") or body["input"]
    return [part for turn in turns if isinstance(turn["content"], list) for part in turn["content"]]


class Tiered(ScriptedServer):
    """A server with a smaller rate limit for one key."""

    def choose_reply(self, request: Request) -> TextReply | ErrorReply:
        if request.headers.get("authorization") != "Bearer low" or request.tokens <= 30_000:
            return super().choose_reply(request)
        self.requests.append(request)
        message = "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): "
        message += (
            f"Limit 30000, Requested {request.tokens}. The input or output tokens must be reduced"
        )
        return ErrorReply(429, message)


def test_a_limit_of_one_key_does_not_affect_others() -> None:
    with Tiered("Blue.") as upstream:
        for _ in range(2):
            with gateway_before(upstream) as gateway:
                low = send(gateway, CHAT, *TALK, key="low")
                high = send(gateway, CHAT, *TALK, key="high")
            assert (low.status_code, low.headers["brim-resent"]) == (200, "1")
            assert low.headers["brim-trimmed"] != "none"
            assert (high.status_code, high.headers["brim-trimmed"]) == (200, "none")


def test_a_limit_that_repeats_the_clients_text_does_not_affect_others() -> None:
    def answer(body: Body) -> str | ErrorReply:
        name = body.get("user")
        return ErrorReply(400, f"Invalid value for user: '{name}'") if name else "Blue."

    with ScriptedServer(answer) as upstream, gateway_before(upstream) as gateway:
        before = limit(gateway, CHAT)
        words = "maximum context length is 70 tokens"
        response = send(gateway, CHAT, ("user", "word " * 200), user=words)
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]
        assert len(upstream.requests) == 2
        assert limit(gateway, CHAT) == before


# Reports of more than was sent


class Searching(ScriptedServer):
    """A server that reports content of its own tools and files as a part of the prompt."""

    def usage(self, request: Request, reply: TextReply) -> Usage:
        usage, raw = super().usage(request, reply), request.raw
        brings = b"web_search" in raw or b'"document"' in raw
        return replace(usage, input=usage.input + 40_000) if brings else usage


BRINGING: dict[str, tuple[Any, dict[str, Any]]] = {
    "a search": (
        "word " * 20_000,
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    ),
    "a file": (
        [
            {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
            {"type": "text", "text": "word " * 20_000},
        ],
        {},
    ),
}


@pytest.mark.parametrize(("content", "more"), BRINGING.values(), ids=BRINGING)
def test_content_that_a_server_adds_does_not_calibrate_estimates(
    content: Any, more: dict[str, Any]
) -> None:
    model = "claude-sonnet-4-5"
    server = Searching("Blue.", tokenizer_model=model)
    with server as upstream, gateway_before(upstream) as gateway:
        before = limit(gateway, MESSAGES, model=model)
        for _ in range(3):
            turn = {"role": "user", "content": content}
            assert send(gateway, MESSAGES, turn, model=model, **more).status_code == 200
        after = send(gateway, MESSAGES, *TALK, model=model)
    assert int(after.headers["brim-limit"]) == before
    assert int(after.headers["brim-tokens-before"]) == upstream.requests[-1].tokens


# What a server adds to each request


class Hidden(ScriptedServer):
    """A server that adds a prompt of its own to each request."""

    def prompt_tokens(self, path: str, body: Body) -> int:
        return super().prompt_tokens(path, body) + 1_200


def grown(gateway: Running, turns: int) -> Iterator[httpx.Response]:
    messages = [("user", "start here")]
    for n in range(turns):
        messages += [("assistant", f"answer {n} " + "word " * 60)]
        messages += [("user", f"question {n} " + "word " * 60)]
        yield send(gateway, CHAT, *messages, reply=300)


def count_moves(upstream: ScriptedServer) -> int:
    """Return how often a request does not begin with the previous one."""
    sent = [request.body["messages"] for request in upstream.requests]
    return sum(after[: len(before)] != before for before, after in pairwise(sent))


SERVERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one that only answers": ({"reports_window": False}, {"window": 8_000}),
    "one that counts each request": ({"like": "llama.cpp", "model": "gpt-4o"}, {"count": "always"}),
}


@pytest.mark.parametrize(("server", "more"), SERVERS.values(), ids=SERVERS)
def test_a_shortfall_is_recorded_before_a_request_is_too_long(
    server: dict[str, Any], more: dict[str, Any]
) -> None:
    with Hidden("Blue.", window=8_000, **server) as upstream:
        with gateway_before(upstream, reply=500, **more) as gateway:
            answers = list(grown(gateway, 75))
            counted = send(gateway, CHAT, ("user", "hi")).headers["brim-count"]
        assert {answer.status_code for answer in answers} == {200}
        assert not upstream.rejected
        assert sum(answer.headers["brim-trimmed"] != "none" for answer in answers) > 20
        assert count_moves(upstream) <= 8
    assert counted == ("server" if "count" in more else "estimate")


def test_a_shortfall_survives_a_restart() -> None:
    with Hidden("Blue.", window=8_000, reports_window=False) as upstream:
        with gateway_before(upstream, window=8_000, reply=500) as gateway:
            assert send(gateway, CHAT, ("user", "word " * 6_000)).status_code == 200
        with gateway_before(upstream, window=8_000, reply=500) as gateway:
            assert limit(gateway, CHAT) <= 7_500 - 1_200


# Questions


def test_a_conversation_that_is_too_long_is_not_counted_again_as_it_grows() -> None:
    with ScriptedServer(
        "Blue.", window=4_000, tokenizer_model="gpt-4o", like="llama.cpp"
    ) as upstream:
        with gateway_before(upstream, reply=500) as gateway:
            turns = [("user", "start here")]
            for n in range(62):
                turns += [("assistant", f"answer {n} " + "word " * 60), ("user", f"so {n}?")]
                answer = send(gateway, CHAT, *turns, model="m")
                assert answer.status_code == 200
        refusing = [each for each in upstream.count_requests if each.tokens > 3_500]
    assert answer.headers["brim-trimmed"] != "none"
    assert len(refusing) <= 1


class Tokenizing(ScriptedServer):
    """A server that counts only texts, and whose template adds 40 tokens to each request."""

    def counts_at(self, _path: str) -> bool:
        return False

    def usage(self, request: Request, reply: TextReply) -> Usage:
        return replace(super().usage(request, reply), input=request.tokens + 40)


def test_reported_usage_corrects_counts_by_texts() -> None:
    turns = [("user", "Which color?"), ("assistant", "Blue."), ("user", "And the sea?")]
    with (
        Tokenizing("Blue.", window=4_000, like="llama.cpp") as upstream,
        gateway_before(upstream, count="always") as gateway,
    ):
        for length in (1, 3):
            answer = send(gateway, CHAT, *turns[:length], model="m")
    assert int(answer.headers["brim-tokens"]) == upstream.requests[-1].tokens + 40


# Any sequence of errors


rejections = st.builds(
    Overflow,
    st.none() | st.integers(1, 20_000),
    st.none() | st.integers(1, 20_000),
    st.none() | st.integers(1, 20_000),
    st.sampled_from(["window", "rate", "size"]),
    st.booleans(),
)
happenings = st.lists(
    st.tuples(st.integers(0, 100), rejections | st.integers(0, 30_000)), max_size=12
)


def route_at(folder: Path, model: str, mark: float | None = None) -> ModelRoute:
    config = UpstreamConfig(endpoint="http://127.0.0.1:9/v1", window=8_000, reply=500)
    upstream = Upstream("one", config, None, CalibrationStore(folder / "learned"))
    defaults = Config(gateway=GatewayConfig(low_water_mark=mark))
    return ModelRoute(upstream, model, defaults, PrefixCache())


def fit_turns(route: ModelRoute, turns: int) -> FittedRequest:
    messages = [("user", "start here"), *[("assistant", "word " * 90), ("user", "so?")] * turns]
    body = body_of(CHAT, *messages, reply=20, model=route.model)
    fitting = RequestFit(
        route.fitter("steady"),
        ClientRequest(body, orjson.dumps(body), formats.CHAT),
        BodyAdditions(),
        "off",
        None,
    )
    out = fitting.step()
    assert isinstance(out, FittedRequest)
    return out


def test_the_gateways_low_water_mark_applies_to_policies_that_have_one(tmp_path: Path) -> None:
    tokens = [fit_turns(route_at(tmp_path, "gpt-4o", mark), 90).plan.tokens for mark in (None, 0.5)]
    assert tokens[0] > 0.85 * 7_500
    assert tokens[1] < 0.75 * 7_500
    assert route_at(tmp_path, "gpt-4o", 0.5).fitter("sliding").policy.low_water_mark is None


@pytest.mark.parametrize("model", ["gpt-4o", "m"])
@example(happened=[(13, Overflow(1_648, None)), (9, Overflow(None, None))])
@given(happened=happenings)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_limit_falls_below_an_answered_request_or_far_without_numbers(
    model: str, tmp_path: Path, happened: list[tuple[int, Overflow | int]]
) -> None:
    route = route_at(tmp_path, model)
    for turns, reported in happened:
        try:
            out = fit_turns(route, turns)
        except ContextOverflowError:
            continue
        if isinstance(reported, Overflow):
            route.record_rejection(out, reported)
        else:
            route.record_report(out, reported)
        budget = route.fitter("steady").budget
        assert budget.window >= route.profile.accepted
        assert budget.window >= (route.profile.calibration.window or 8_000) // 2
