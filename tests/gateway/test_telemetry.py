"""OpenTelemetry traces and metrics, sent by the SDK's own exporter and decoded from its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from brim.gateway.records import TraceContext
from brim.testing import ErrorReply, Script, ScriptedServer
from tests.support.gateway.accounts import PRICE, create_secret, say_hi, with_gateway
from tests.support.gateway.collector import Collector, read_attributes, run_collector
from tests.support.gateway.process import Running, config_of, run_gateway
from tests.support.gateway.requests import CHAT, MESSAGES, PATHS, ask

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@contextmanager
def run_traced(script: Script) -> Iterator[tuple[Running, ScriptedServer, Collector]]:
    """Run a gateway that sends to a collector; all has arrived when the gateway has stopped."""
    with run_collector() as collector, ScriptedServer(script, window=4_000) as upstream:
        config = config_of(upstream.url, price=PRICE, window=4_000, reply=100)
        config = with_gateway(config, otlp_endpoint=collector.url)
        with run_gateway(config) as gateway:
            yield gateway, upstream, collector


@pytest.mark.parametrize("path", PATHS)
def test_a_request_is_a_span_of_the_clients_trace(path: str) -> None:
    with run_traced("It is blue.") as (gateway, upstream, collector):
        answer = ask(gateway, path, "What is it?", model="gpt-4o", headers=TRACEPARENT)
        sent = upstream.requests[0].headers["traceparent"].split("-")
    (span,) = collector.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert sent == ["00", TRACE, span.span_id.hex(), "01"]
    assert span.name == "chat gpt-4o"
    facts = read_attributes(span)
    assert facts["gen_ai.operation.name"] == "chat"
    assert facts["gen_ai.request.model"] == "gpt-4o"
    assert facts["gen_ai.usage.input_tokens"] == upstream.requests[0].tokens
    assert facts["gen_ai.usage.output_tokens"] == 4
    assert facts["server.address"] == "127.0.0.1"
    assert facts["http.response.status_code"] == 200
    assert facts["brim.request.id"] == answer.headers["brim-request-id"]
    assert facts["brim.cost.dollars"] > 0


def test_a_request_without_a_trace_begins_one() -> None:
    with run_traced("Blue.") as (gateway, upstream, collector):
        ask(gateway, CHAT, "hi", headers={"traceparent": "00-invalid"})
        version, trace, span_id, _ = upstream.requests[0].headers["traceparent"].split("-")
    (span,) = collector.spans
    assert (version, trace, span_id) == ("00", span.trace_id.hex(), span.span_id.hex())
    assert not span.parent_span_id


def test_a_trace_that_the_client_does_not_sample_is_not_sent() -> None:
    with run_traced("Blue.") as (gateway, upstream, collector):
        ask(gateway, CHAT, "hi", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
        assert upstream.requests[0].headers["traceparent"].endswith("-00")
    assert not collector.spans


def test_a_failure_is_an_error_with_its_problem() -> None:
    with run_traced(ErrorReply(503)) as (gateway, _, collector):
        ask(gateway, MESSAGES, "hi")
    (span,) = collector.spans
    assert span.status.code == 2
    assert read_attributes(span)["error.type"] == "503"
    (event,) = span.events
    assert read_attributes(event)["brim.problem"] == "server_error"


def test_metrics_follow_the_conventions() -> None:
    with run_traced("It is blue.") as (gateway, upstream, collector):
        ask(gateway, CHAT, "hi", model="gpt-4o", stream=True)
        tokens = upstream.requests[0].tokens
    points = collector.metrics["gen_ai.client.token.usage"].histogram.data_points
    sums = {read_attributes(point)["gen_ai.token.type"]: point.sum for point in points}
    assert sums == {"input": tokens, "output": 4}
    assert list(points[0].explicit_bounds)[:3] == [1, 4, 16]
    for name in ("gen_ai.client.operation.duration", "gen_ai.server.time_to_first_token"):
        (point,) = collector.metrics[name].histogram.data_points
        assert point.count == 1
        assert read_attributes(point)["gen_ai.request.model"] == "gpt-4o"


def test_no_content_and_no_key_is_sent() -> None:
    secret = create_secret("anna", "1/day")
    with run_traced("The answer is hidden.") as (gateway, _, collector):
        assert say_hi(gateway, secret, messages=[]).status_code != 401
        headers = {"authorization": f"Bearer {secret}"}
        assert ask(gateway, CHAT, "a private question", headers=headers).status_code == 200
    assert collector.raw
    for hidden in (secret, "private question", "hidden"):
        assert hidden.encode() not in collector.raw
    assert read_attributes(collector.spans[-1])["brim.key"] == "anna"


def test_without_an_endpoint_the_clients_header_is_forwarded() -> None:
    with (
        ScriptedServer("Blue.") as upstream,
        run_gateway(config_of(upstream.url, window=4_000)) as gateway,
    ):
        ask(gateway, CHAT, "hi", headers=TRACEPARENT)
        assert upstream.requests[0].headers["traceparent"] == TRACEPARENT["traceparent"]


@pytest.mark.parametrize(
    "header",
    [b"", b"00", b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", b"ff-" + TRACE.encode(), b"\xff"],
)
def test_an_invalid_header_begins_a_trace(header: bytes) -> None:
    context = TraceContext.of(header)
    assert context.parent_id is None
    assert context.trace_id
    assert TraceContext.of(context.header()).trace_id == context.trace_id


def test_an_unreachable_collector_does_not_disturb_requests() -> None:
    with ScriptedServer("Blue.") as upstream:
        config: Any = config_of(upstream.url, window=4_000)
        gateway_settings = replace(config.gateway, otlp_endpoint="http://127.0.0.1:9")
        with run_gateway(replace(config, gateway=gateway_settings)) as gateway:
            assert ask(gateway, CHAT, "hi").status_code == 200
