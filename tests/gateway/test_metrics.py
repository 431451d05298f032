"""Prometheus metrics, with a bounded number of series."""

from __future__ import annotations

import threading
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from brim.config import Config
from brim.gateway import bodies
from brim.gateway.metrics import BUCKETS, MAX_MODELS, Metrics, render
from brim.gateway.records import RequestRecord
from brim.models.pricing import Price, Usage
from brim.testing import ErrorReply, ScriptedServer, TextReply
from tests.support.gateway.metrics import Numbers, read_metrics
from tests.support.gateway.process import config_of, run_gateway
from tests.support.gateway.requests import CHAT, PATHS, ask, begin_stream, get_record

TURNS = [f"turn {place}: " + "some words that take room " * 20 for place in range(41)]
DRY_RUN = {"brim-fitting": "dry-run"}
ROUTE = {"upstream": "upstream-1", "model": "scripted"}

each_format = pytest.mark.parametrize("path", PATHS)


def of(metrics: Metrics) -> Numbers:
    return Numbers(render(metrics.snapshot()).decode())


def make_record(model: str, **more: Any) -> RequestRecord:
    """The record of an answered request."""
    record = RequestRecord("/v1/chat/completions", "openai")
    settled = {"upstream": "up", "status": 200, "end": "completed", "usage": Usage(5, 0, 1)}
    for name, value in {"model": model, **settled, **more}.items():
        setattr(record, name, value)
    return record


# Values


@each_format
def test_metrics_match_the_record_of_a_request(path: str) -> None:
    price = Price(Decimal(1), Decimal("0.5"), Decimal(10))
    reply = TextReply("one two three", cached=5)
    with (
        ScriptedServer(reply) as provider,
        run_gateway(config_of(provider.url, window=3_000, price=price)) as server,
    ):
        request = get_record(server, ask(server, path, *TURNS))
        numbers = read_metrics(server)
        ended = {"format": bodies.PATHS[path].name, "status": "2xx", "end": "completed"}
        assert numbers("brim_requests_total", **ROUTE, **ended) == 1
        assert numbers("brim_tokens_before_total", **ROUTE) == request["tokens_before"]
        assert numbers("brim_tokens_after_total", **ROUTE) == request["tokens"]
        left_out = request["tokens_before"] - request["tokens"]
        assert numbers("brim_tokens_trimmed_total", **ROUTE) == left_out > 0
        for outcome, messages in request["trimmed"].items():
            assert numbers("brim_trimmed_requests_total", outcome=outcome, **ROUTE) == 1
            assert numbers("brim_trimmed_messages_total", outcome=outcome, **ROUTE) == messages
        usage = request["usage"]
        assert numbers("brim_input_tokens_total", **ROUTE) == usage["input"]
        assert numbers("brim_cached_input_tokens_total", **ROUTE) == 5
        assert numbers("brim_output_tokens_total", **ROUTE) == usage["output"]
        assert numbers("brim_cost_dollars_total", **ROUTE) == pytest.approx(request["cost"])
        assert numbers("brim_unknown_cost_requests_total", **ROUTE) == 0
        assert numbers("brim_unreported_usage_requests_total", **ROUTE) == 0


def test_requests_are_summed() -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config_of(provider.url)) as server:
        for path in PATHS:
            for _ in range(3):
                ask(server, path, "hi")
        numbers = read_metrics(server)
        assert numbers("brim_requests_total") == 9
        assert numbers("brim_requests_total", format="responses") == 3
        assert numbers("brim_unknown_cost_requests_total") == 9


def test_durations_are_counted_in_buckets() -> None:
    metrics = Metrics([], [], [])
    metrics.add(make_record("m", first_byte=0.3, seconds=700.0))
    metrics.add(make_record("m", first_byte=None, seconds=1.0))
    numbers = of(metrics)
    assert numbers("brim_first_byte_seconds_bucket", le="0.25") == 0
    assert numbers("brim_first_byte_seconds_bucket", le="0.5") == 1
    assert numbers("brim_first_byte_seconds_count") == 1
    assert numbers("brim_request_seconds_bucket", le="1.0") == 1
    assert numbers("brim_request_seconds_bucket", le=str(BUCKETS[-1])) == 1
    assert numbers("brim_request_seconds_bucket", le="+Inf") == 2
    assert numbers("brim_request_seconds_sum") == 701


def test_running_requests_are_counted() -> None:
    goes_on = threading.Event()
    with (
        ScriptedServer(TextReply("one two three", hold=goes_on)) as provider,
        run_gateway(config_of(provider.url)) as server,
    ):
        with begin_stream(server, CHAT, goes_on):
            assert read_metrics(server)("brim_running_requests") == 1
        assert read_metrics(server)("brim_running_requests") == 0


@each_format
def test_errors_are_counted_by_code(path: str) -> None:
    with ScriptedServer(ErrorReply(404, "no")) as provider:
        config = config_of(provider.url, window=500, reply=100, models=("scripted",))
        with run_gateway(config) as server:
            ask(server, path, "hi", model="unheard-of")
            ask(server, path, "a word " * 2_000)
            ask(server, path, "hi")
            numbers = read_metrics(server)
    form = bodies.PATHS[path].name
    assert numbers("brim_errors_total", code="model_not_found", upstream="none") == 1
    assert numbers("brim_errors_total", code="context_length_exceeded") == 1
    assert numbers("brim_errors_total") == 2  # an error of the upstream, not of brim
    assert numbers("brim_requests_total", status="4xx", end="rejected", format=form) == 3


def test_a_context_length_error_is_counted_and_its_window_exported() -> None:
    with (
        ScriptedServer("Hello.", window=1_000, reports_window=False) as provider,
        run_gateway(config_of(provider.url, window=4_000, reply=100)) as server,
    ):
        assert ask(server, CHAT, *TURNS, max_tokens=100).status_code == 200
        numbers = read_metrics(server)
        assert numbers("brim_resends_total", **ROUTE) == 1
        source = "a context-length error"
        assert numbers("brim_window_tokens", source=source, **ROUTE) == 1_000
        assert numbers("brim_calibration_ratio", **ROUTE) > 0


def test_a_fallback_model_is_counted_under_its_own_name() -> None:
    with ScriptedServer(ErrorReply(503)) as broken, ScriptedServer("Hello.") as well:
        first, second = config_of(broken.url, well.url).upstreams.values()
        upstreams = {
            "first": replace(first, models=("gpt-4o",), fallback=("spare",)),
            "second": replace(second, models=("spare",)),
        }
        with run_gateway(Config(upstreams=upstreams)) as server:
            assert ask(server, CHAT, "hi", model="gpt-4o").status_code == 200
            numbers = read_metrics(server)
    stood_in = {"upstream": "second", "model": "spare"}
    assert numbers("brim_fallbacks_total", **stood_in) == 1
    assert numbers("brim_requests_total", status="2xx", **stood_in) == 1
    assert numbers("brim_requests_total") == 1


# Labels


def test_an_unanswered_model_is_counted_as_other() -> None:
    no_model = ErrorReply(404, "no such model")
    with ScriptedServer(no_model) as provider, run_gateway(config_of(provider.url)) as server:
        for place in range(5):
            ask(server, CHAT, "hi", model=f"made-up-{place}")
            ask(server, CHAT, "hi", model=f"shown-{place}", headers=DRY_RUN)
        numbers = read_metrics(server)
    assert numbers.labels("brim_requests_total", "model") == {"other"}
    assert numbers("brim_requests_total", model="other") == 10


def test_a_configured_model_is_always_counted_by_name() -> None:
    with (
        ScriptedServer(ErrorReply(500)) as provider,
        run_gateway(config_of(provider.url, models=("ours", "gpt-*"))) as server,
    ):
        for model in ("ours", "gpt-made-up"):
            ask(server, CHAT, "hi", model=model)
        numbers = read_metrics(server)
    assert numbers.labels("brim_requests_total", "model") == {"ours", "other"}


def test_the_number_of_models_is_bounded() -> None:
    metrics = Metrics(["ours"], [], [])
    for place in range(MAX_MODELS + 50):
        metrics.add(make_record(f"model-{place}"))
    metrics.add(make_record("model-0"))
    metrics.add(make_record("ours"))
    numbers = of(metrics)
    assert len(numbers.labels("brim_requests_total", "model")) == MAX_MODELS + 2
    assert numbers("brim_requests_total", model="other") == 50
    assert numbers("brim_requests_total", model="model-0") == 2
    assert numbers("brim_requests_total", model="ours") == 1


@pytest.mark.parametrize(
    "model",
    ['a "quoted" one', "two\nlines", "back\\slash", "half \ud83d an emoji", "\x00\x7f\x9b", "世界"],
)
def test_every_model_name_is_escaped(model: str) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config_of(provider.url)) as server:
        assert ask(server, CHAT, "hi", model=model).status_code == 200
        (label,) = read_metrics(server).labels("brim_requests_total", "model")
        assert label.isprintable()
        assert label == (model if model.isprintable() else ascii(model)[1:-1])


# The text format


def test_every_metric_has_a_help_text() -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config_of(provider.url)) as server:
        ask(server, CHAT, "hi")
        families = {family.name: family for family in read_metrics(server).families}
    own = [family for name, family in families.items() if name.startswith("brim_")]
    assert len(own) > 15
    assert all(family.documentation.endswith(".") for family in own)
    assert "process_resident_memory_bytes" in families
    assert "process_open_fds" in families


def test_gateways_in_one_process_have_separate_metrics() -> None:
    with ScriptedServer("Hello.") as provider:
        config = config_of(provider.url)
        with run_gateway(config) as one, run_gateway(config) as other:
            ask(one, CHAT, "hi")
            assert read_metrics(one)("brim_requests_total") == 1
            assert read_metrics(other)("brim_requests_total") == 0
