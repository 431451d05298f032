"""The gateway benchmark: its request bodies, its figures and its upstream."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import anthropic
import openai
import pytest

from benchmarks import gateway
from benchmarks import gateway_subjects as subjects
from benchmarks.gateway import FailedAnswersError, Load
from benchmarks.gateway_bodies import HISTORY, POOL, Ask, bodies
from benchmarks.gateway_processes import (
    Server,
    StartError,
    cpu_seconds,
    free_port,
    is_measurable,
    resident_bytes,
    start_server,
)

pytestmark = pytest.mark.skipif(not is_measurable(), reason="only Linux shows what a process uses")

HELLO: Any = [{"role": "user", "content": "Hello."}]


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with subjects.upstream() as address:
        yield address


@pytest.fixture(scope="module")
def relay(upstream: str) -> Iterator[Server]:
    with subjects.relay(upstream) as server:
        yield server


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    with gateway.start_load() as load:
        yield load


# The provider


def test_the_upstream_replies_like_openai(upstream: str) -> None:
    with openai.OpenAI(base_url=f"{upstream}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions
        whole = chat.create(model="any", messages=HELLO)
        *events, last = chat.create(
            model="any", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    assert whole.choices[0].message.content
    assert whole.usage is not None
    assert "".join(event.choices[0].delta.content or "" for event in events)
    assert last.usage is not None


def test_the_upstream_replies_like_anthropic(upstream: str) -> None:
    with anthropic.Anthropic(base_url=upstream, api_key="none", max_retries=0) as client:
        whole = client.messages.create(model="any", max_tokens=100, messages=HELLO)
        with client.messages.stream(model="any", max_tokens=100, messages=HELLO) as stream:
            streamed = stream.get_final_message()
    assert whole.content[0].type == streamed.content[0].type == "text"
    assert whole.stop_reason == streamed.stop_reason == "end_turn"
    assert whole.usage.input_tokens > 0


# What is asked


def test_seen_bodies_repeat_and_fresh_ones_do_not() -> None:
    seen = list(islice(bodies(Ask(), seed=1), 2 * POOL))
    fresh = [body for seed in (1, 2) for body in islice(bodies(Ask(text="fresh"), seed), POOL)]
    assert seen[:POOL] == seen[POOL:]
    assert len({*seen, *fresh}) == 3 * POOL
    assert all(600 < len(body) < 1_000 for body in [*seen, *fresh])


@pytest.mark.parametrize("format", ["chat", "messages"])
def test_a_history_grows_by_one_exchange_per_request(format: Any) -> None:
    ask = Ask(format, text="history")
    first, second = (json.loads(body)["messages"] for body in islice(bodies(ask, seed=0), 2))
    later = json.loads(next(bodies(ask, seed=1)))["messages"]
    assert len(json.dumps(first)) > HISTORY
    assert second[: len(first)] == first
    assert [turn["role"] for turn in second[len(first) :]][-1] == "user"
    assert later == second


# What is measured


@pytest.mark.parametrize("format", ["chat", "messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_every_response_through_the_relay_is_complete(
    load: Load, relay: Server, format: Any, stream: bool
) -> None:
    outcome = load.send(relay, Ask(format, stream=stream), requests=20, concurrency=4)
    assert (outcome.done, outcome.failed) == (20, 0)
    assert outcome.cpu > 0


def test_failed_responses_are_an_error(load: Load) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with subjects.relay(nowhere) as broken, pytest.raises(FailedAnswersError, match="500 Internal"):
        load.send(broken, Ask(), requests=20, concurrency=4)


def test_the_cpu_time_of_a_process_includes_its_children() -> None:
    before = cpu_seconds(os.getpid()), resident_bytes(os.getpid())
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.gateway_upstream", str(port)]
    with start_server("upstream", command, port, "/healthz", extra=subjects.OURS) as child:
        own = cpu_seconds(child.pid), resident_bytes(child.pid)
        assert cpu_seconds(os.getpid()) >= before[0] + own[0]
        assert resident_bytes(os.getpid()) >= own[1]


def test_the_error_of_a_server_that_does_not_start_is_shown() -> None:
    command = [sys.executable, "-c", "raise SystemExit('broken')"]
    with (
        pytest.raises(StartError, match="broken"),
        start_server("x", command, free_port(), "/"),
    ):
        pass
