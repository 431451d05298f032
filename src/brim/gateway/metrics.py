"""Prometheus metrics of the gateway since it started."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Info,
    Metric,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from brim import __version__
from brim.gateway.account_service import AccountService
from brim.gateway.model_route import ModelRoute
from brim.gateway.records import RequestRecord
from brim.models.pricing import Usage

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_MODELS: Final = 200
"""Models with their own series, besides those in the configuration: names come from clients."""
OTHER_MODELS: Final = "other"
NO_UPSTREAM: Final = "none"
"""The upstream of a request that was not sent."""
LABELS: Final = ("upstream", "model")
BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""Upper bounds in seconds; a reasoning model takes minutes."""
NO_USAGE: Final = Usage()
STATUS_CLASSES: Final = {0: "none", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}
"""By the first digit; 0 is a client that disconnected before the response."""

_COUNTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "brim_requests": ("Finished requests.", "format", "status", "end"),
    "brim_errors": ("Requests that the gateway answered with its own error.", "code"),
    "brim_trimmed_requests": ("Requests with messages of this outcome.", "outcome"),
    "brim_trimmed_messages": ("Messages with this outcome.", "outcome"),
    "brim_upstream_problems": ("Attempts at this upstream without an answer.", "problem"),
}
"""Each counter with its help, and its labels besides upstream and model."""
_SUMS: Final[Mapping[str, str]] = {
    "brim_tokens_before": "Tokens of requests as received.",
    "brim_tokens_after": "Tokens of the same requests after fitting.",
    "brim_tokens_trimmed": "Tokens that fitting saved in trimmed requests.",
    "brim_input_tokens": "Prompt tokens including cached ones; reported, or counted by brim.",
    "brim_cached_input_tokens": "Prompt tokens read from an upstream's cache.",
    "brim_cache_written_tokens": "Prompt tokens written to an upstream's cache.",
    "brim_output_tokens": "Output tokens including reasoning; reported, or counted by brim.",
    "brim_unreported_usage_requests": "Responses whose usage brim counted, as none was reported.",
    "brim_cost_dollars": "Cost in dollars of responses with a known price.",
    "brim_unknown_cost_requests": "Responses whose cost is unknown.",
    "brim_resends": "Requests sent again, shorter, after a context-length error.",
    "brim_fallbacks": "Requests that this model answered as a fallback for another.",
}
"""The other counters, in the order in which `_measure` returns what a request adds to them."""
_HISTOGRAMS: Final[Mapping[str, str]] = {
    "brim_first_byte_seconds": "Time until a response began.",
    "brim_request_seconds": "Time until a request ended.",
}


class Durations:
    """A histogram of seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """The upper bounds, each with the number of durations up to it."""
        return [*zip([*map(str, BUCKETS), "+Inf"], accumulate(self.counts), strict=True)]


@dataclass(slots=True)
class RouteSums:
    """What all requests of a model at an upstream add up to."""

    sums: list[float] = field(default_factory=lambda: [0] * len(_SUMS))
    first_byte: Durations = field(default_factory=Durations)
    seconds: Durations = field(default_factory=Durations)


class Metrics(Collector):
    """The metrics of one gateway. All methods run on the event loop.

    Counts are plain numbers until they are read, because prometheus_client's own counters take
    5 % of the CPU time of a small request (`benchmarks.gateway`).
    """

    def __init__(
        self,
        named: Iterable[str],
        routes: Iterable[ModelRoute],
        running: Collection[object],
        accounts: AccountService | None = None,
    ) -> None:
        """`named` are the models in the configuration."""
        self._registry = registry = CollectorRegistry()
        Info("brim_build", "Version of the gateway.", registry=registry).info(
            {"version": __version__}
        )
        requests = Gauge("brim_running_requests", "Requests in flight.", registry=registry)
        requests.set_function(lambda: len(running))
        self._counts: Counter[tuple[str, ...]] = Counter()
        """By the name and the labels of a counter."""
        self._routes: defaultdict[tuple[str, str], RouteSums] = defaultdict(RouteSums)
        self._models = set(named)
        self._max_models = len(self._models) + MAX_MODELS
        self._state = _StateCollector(routes, self._models, accounts)
        registry.register(self._state)
        registry.register(self)

    def follow(self, named: Iterable[str], routes: Iterable[ModelRoute]) -> None:
        """Report on the routes of another configuration, which names these models."""
        self._models.update(named)
        self._max_models = max(self._max_models, len(self._models) + MAX_MODELS)
        self._state.routes = routes

    def add(self, record: RequestRecord) -> None:
        """Count a finished request."""
        upstream, model = where = (record.upstream or NO_UPSTREAM, self._model_label(record))
        status, counts = STATUS_CLASSES.get(record.status // 100, "other"), self._counts
        counts["brim_requests", upstream, model, record.format, status, record.end] += 1
        if record.code is not None:
            counts["brim_errors", upstream, model, record.code] += 1
        for attempted, name, problem in record.problems:
            label = name if name in self._models else OTHER_MODELS
            counts["brim_upstream_problems", attempted, label, problem] += 1
        for outcome, messages in record.trimmed.items():
            counts["brim_trimmed_requests", upstream, model, outcome] += 1
            counts["brim_trimmed_messages", upstream, model, outcome] += messages
        route = self._routes[where]
        sums = route.sums
        for place, amount in enumerate(_measure(record)):
            if amount:
                sums[place] += amount
        route.seconds.add(record.seconds)
        if record.first_byte is not None:
            route.first_byte.add(record.first_byte)

    def _model_label(self, record: RequestRecord) -> str:
        """Return the model's name, if it is configured or an upstream has answered for it."""
        model = record.fallback or record.model
        if model in self._models:
            return model
        if record.usage is None or len(self._models) >= self._max_models:
            return OTHER_MODELS
        self._models.add(model)
        return model

    def collect(self) -> Iterator[Metric]:
        """Return what was counted, as Prometheus reads it."""
        families = {
            name: CounterMetricFamily(name, help, labels=(*LABELS, *labels))
            for name, (help, *labels) in _COUNTERS.items()
        }
        for (name, *labels), count in self._counts.items():
            families[name].add_metric(labels, count)
        sums = [CounterMetricFamily(name, help, labels=LABELS) for name, help in _SUMS.items()]
        first_byte, seconds = (
            HistogramMetricFamily(name, help, labels=LABELS) for name, help in _HISTOGRAMS.items()
        )
        for where, route in self._routes.items():
            for family, amount in zip(sums, route.sums, strict=True):
                family.add_metric(where, amount)
            first_byte.add_metric(where, route.first_byte.buckets, route.first_byte.sum)
            seconds.add_metric(where, route.seconds.buckets, route.seconds.sum)
        yield from (*families.values(), *sums, first_byte, seconds)

    def snapshot(self) -> list[Metric]:
        """Return all metrics as they are now; `render` can then run in a thread."""
        return list(self._registry.collect())


def _measure(record: RequestRecord) -> Sequence[float]:
    """Return what a request adds to each of `_SUMS`."""
    usage, is_answered = record.usage or NO_USAGE, record.usage is not None
    before, after = record.tokens_before or 0, record.tokens or 0
    return (
        before,
        after,
        max(0, before - after) if record.trimmed else 0,
        usage.input,
        usage.cached,
        usage.written,
        usage.output,
        is_answered and record.is_usage_estimated,
        float(record.cost or 0),
        is_answered and record.cost is None,
        record.resent,
        record.fallback is not None,
    )


@dataclass(eq=False)
class _StateCollector(Collector):
    """What is known now about the models that have their own series, and the account store."""

    routes: Iterable[ModelRoute]
    _models: Collection[str]
    _accounts: AccountService | None

    def collect(self) -> Iterator[Metric]:
        windows = GaugeMetricFamily(
            "brim_window_tokens",
            "The context window that requests are fitted to, and its source.",
            labels=(*LABELS, "source"),
        )
        ratios = GaugeMetricFamily(
            "brim_calibration_ratio",
            "Reported tokens for each token that brim estimates.",
            labels=LABELS,
        )
        available = GaugeMetricFamily(
            "brim_route_available",
            "Whether requests are sent to an upstream (1), or it cools down after failures (0).",
            labels=LABELS,
        )
        now = time.monotonic()
        for route in self.routes:
            labels = (route.upstream.name, route.model)
            if route.model not in self._models:
                continue
            available.add_metric(labels, int(route.health.is_available(now)))
            profile = route.profile
            if not route.is_guessed:
                window = route.fitter(route.policy).budget.window
                windows.add_metric((*labels, profile.window_source), window)
            if profile.calibration.ratios:
                ratios.add_metric(labels, profile.calibration.ratio)
        yield from (available, windows, ratios)
        if self._accounts is not None and self._accounts.requires_keys:
            yield GaugeMetricFamily(
                "brim_account_store_unavailable",
                "Whether the account store is unavailable (1) or not (0).",
                int(self._accounts.is_unavailable),
            )
            yield GaugeMetricFamily(
                "brim_unsettled_requests",
                "Finished requests that the account store does not have yet.",
                self._accounts.unsettled,
            )


def render(snapshot: Iterable[Metric]) -> bytes:
    """Return metrics in Prometheus' text format, with those of the process."""
    return generate_latest(_Snapshot(snapshot))


class _Snapshot(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics
        yield from ProcessCollector(registry=None).collect()
