"""Metrics: what the gateway has done since it began to serve, in numbers for Prometheus.

A request that is over is added to plain sums, one set for each model at an upstream; what
Prometheus reads is made of them when it asks. Both happen on the event loop, so nothing is locked;
only the text, which takes longer, can be written elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from brim import __version__

if TYPE_CHECKING:
    from prometheus_client import Metric

    from brim.gateway.records import RequestRecord
    from brim.gateway.reservations import AccountService
    from brim.gateway.routes import ModelRoute

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_MODELS: Final = 200
"""So many models are told apart, beside those that the configuration names: names come from
clients, and each is a set of series in somebody's database."""
OTHER_MODELS: Final = "other"
NO_UPSTREAM: Final = "none"
"""The upstream of a request that went to none."""
LABELS: Final = ("upstream", "model")
BOUNDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""Seconds; a model that thinks takes minutes."""
_BUCKETS: Final = (*map(str, BOUNDS), "+Inf")


class Times:
    """How often something took how long."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * len(_BUCKETS)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """How many took at most so long, for each bound."""
        return list(zip(_BUCKETS, accumulate(self.counts), strict=True))


@dataclass(slots=True)
class Sums:
    """All requests for one model at one upstream."""

    ends: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By format, by the class of the status, and by how the request ended."""
    faults: Counter[str] = field(default_factory=Counter)
    before: int = 0
    tokens: int = 0
    left_out: int = 0
    cut: Counter[str] = field(default_factory=Counter)
    cut_messages: Counter[str] = field(default_factory=Counter)
    input: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0
    unreported: int = 0
    cost: float = 0.0
    unpriced: int = 0
    resent: int = 0
    fallbacks: int = 0
    first_byte: Times = field(default_factory=Times)
    whole: Times = field(default_factory=Times)

    def add(self, record: RequestRecord) -> None:
        """Take in a request that is over."""
        status = _CLASSES.get(record.status // 100, OTHER_MODELS)
        self.ends[record.form, status, record.end] += 1
        if record.code is not None:
            self.faults[record.code] += 1
        self.resent += record.resent
        self.fallbacks += record.fallback is not None
        self.whole.add(record.seconds)
        if record.first_byte is not None:
            self.first_byte.add(record.first_byte)
        self._add_fit(record)
        self._add_usage(record)

    def _add_fit(self, record: RequestRecord) -> None:
        if record.before is None or record.tokens is None:
            return
        self.before += record.before
        self.tokens += record.tokens
        if record.cut:
            self.left_out += max(0, record.before - record.tokens)
            for outcome, messages in record.cut.items():
                self.cut[outcome] += 1
                self.cut_messages[outcome] += messages

    def _add_usage(self, record: RequestRecord) -> None:
        usage = record.usage
        if usage is None:
            return
        self.input += usage.input
        self.cached += usage.cached
        self.written += usage.written
        self.output += usage.output
        self.unreported += record.is_usage_counted
        if record.cost is None:
            self.unpriced += 1
        else:
            self.cost += float(record.cost)


_CLASSES: Final = {0: "none", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}
"""By the first figure of a status; a client that hung up early got none."""

_NUMBERS: Final[tuple[tuple[str, str, Callable[[Sums], float]], ...]] = (
    (
        "brim_tokens_before",
        "Tokens of requests as they came in.",
        lambda sums: sums.before,
    ),
    (
        "brim_tokens_after",
        "Tokens of the same requests after fitting.",
        lambda sums: sums.tokens,
    ),
    (
        "brim_tokens_left_out",
        "Tokens that fitting saved in the requests that it cut.",
        lambda sums: sums.left_out,
    ),
    (
        "brim_input_tokens",
        "Tokens of prompts, cached ones included; reported, or else counted by brim.",
        lambda sums: sums.input,
    ),
    (
        "brim_cached_input_tokens",
        "Tokens of prompts that upstreams had in their cache.",
        lambda sums: sums.cached,
    ),
    (
        "brim_cache_written_tokens",
        "Tokens of prompts that upstreams put into their cache.",
        lambda sums: sums.written,
    ),
    (
        "brim_output_tokens",
        "Tokens of answers, thinking included; reported, or else counted by brim.",
        lambda sums: sums.output,
    ),
    (
        "brim_unreported_usage_requests",
        "Answers whose usage brim counted, because the upstream's report did not come.",
        lambda sums: sums.unreported,
    ),
    (
        "brim_cost_dollars",
        "Dollars that answers cost, as far as their price is known.",
        lambda sums: sums.cost,
    ),
    (
        "brim_unknown_cost_requests",
        "Answers whose cost nobody knows.",
        lambda sums: sums.unpriced,
    ),
    (
        "brim_resends",
        "Requests that an upstream refused as too long and that were sent again, smaller.",
        lambda sums: sums.resent,
    ),
    (
        "brim_fallbacks",
        "Requests for another model that this one stood in for.",
        lambda sums: sums.fallbacks,
    ),
)
_COUNTS: Final[tuple[tuple[str, str, str, Callable[[Sums], Counter[str]]], ...]] = (
    (
        "brim_faults",
        "Requests that brim answered with an error of its own, or broke off.",
        "code",
        lambda sums: sums.faults,
    ),
    (
        "brim_cut_requests",
        "Requests of which messages met this outcome.",
        "outcome",
        lambda sums: sums.cut,
    ),
    (
        "brim_cut_messages",
        "Messages that met this outcome.",
        "outcome",
        lambda sums: sums.cut_messages,
    ),
)
_TIMES: Final[tuple[tuple[str, str, Callable[[Sums], Times]], ...]] = (
    (
        "brim_first_byte_seconds",
        "Time until an answer began.",
        lambda sums: sums.first_byte,
    ),
    (
        "brim_request_seconds",
        "Time until a request was over.",
        lambda sums: sums.whole,
    ),
)


class Metrics:
    """The numbers of one gateway."""

    def __init__(
        self, named: Iterable[str], lanes: Iterable[ModelRoute], running: Collection[object]
    ) -> None:
        """`named` are the models of the configuration; the others are read when somebody asks."""
        self._lanes = lanes
        self._running = running
        self._models = set(named)
        self._most = len(self._models) + MAX_MODELS
        self._sums: dict[tuple[str, str], Sums] = {}

    def add(self, record: RequestRecord) -> None:
        """Take in a request that is over."""
        key = (record.upstream or NO_UPSTREAM, self._label(record))
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = Sums()
        sums.add(record)

    def _label(self, record: RequestRecord) -> str:
        """The model that was asked, by its name once an upstream has answered to it."""
        model = record.fallback or record.model
        if model in self._models:
            return model
        if record.usage is None or len(self._models) >= self._most:
            return OTHER_MODELS
        self._models.add(model)
        return model

    def collect(self) -> Iterator[Metric]:
        """All numbers as they are now."""
        yield InfoMetricFamily("brim_build", "What serves.", {"version": __version__})
        yield GaugeMetricFamily(
            "brim_running_requests", "Requests that are not over.", len(self._running)
        )
        yield self._requests()
        yield from self._numbers()
        yield from self._counts()
        yield from self._times()
        yield from self._known()

    def _requests(self) -> Metric:
        family = CounterMetricFamily(
            "brim_requests", "Requests that are over.", labels=(*LABELS, "format", "status", "end")
        )
        for labels, sums in self._sums.items():
            for end, number in sums.ends.items():
                family.add_metric((*labels, *end), number)
        return family

    def _numbers(self) -> Iterator[Metric]:
        for name, meaning, number in _NUMBERS:
            family = CounterMetricFamily(name, meaning, labels=LABELS)
            for labels, sums in self._sums.items():
                family.add_metric(labels, number(sums))
            yield family

    def _counts(self) -> Iterator[Metric]:
        for name, meaning, by, counts in _COUNTS:
            family = CounterMetricFamily(name, meaning, labels=(*LABELS, by))
            for labels, sums in self._sums.items():
                for kind, number in counts(sums).items():
                    family.add_metric((*labels, kind), number)
            yield family

    def _times(self) -> Iterator[Metric]:
        for name, meaning, times in _TIMES:
            family = HistogramMetricFamily(name, meaning, labels=LABELS)
            for labels, sums in self._sums.items():
                taken = times(sums)
                family.add_metric(labels, taken.buckets(), taken.seconds)
            yield family

    def _known(self) -> Iterator[Metric]:
        """What is known now of the models that are told apart."""
        windows = GaugeMetricFamily(
            "brim_window_tokens",
            "The window that requests are fitted to, and where it is known from.",
            labels=(*LABELS, "source"),
        )
        ratios = GaugeMetricFamily(
            "brim_learned_ratio",
            "True tokens for one that brim estimates, as upstreams reported them.",
            labels=LABELS,
        )
        for lane in self._lanes:
            labels = (lane.upstream.name, lane.model)
            if lane.model not in self._models:
                continue
            if not lane.is_guessed:
                source = lane.target.window_source
                windows.add_metric((*labels, source), lane.fitter(lane.policy).budget.window)
            if lane.target.calibration.ratios:
                ratios.add_metric(labels, lane.target.calibration.ratio)
        yield from (windows, ratios)


def collect_account_metrics(accounts: AccountService) -> Iterator[Metric]:
    """How the books are, where keys are asked for."""
    if accounts.is_required:
        yield GaugeMetricFamily(
            "brim_books_away",
            "Whether the store of keys, caps and spending cannot be reached.",
            int(accounts.is_away),
        )
        yield GaugeMetricFamily(
            "brim_unsettled_requests",
            "Requests that are over and not booked yet.",
            accounts.unsettled,
        )


def render_metrics(families: Iterable[Metric]) -> bytes:
    """Numbers as Prometheus reads them, with those of the process."""
    return generate_latest(_Together(families))


class _Together(Collector):
    """What is read at once; a registry would outlive it, and be one more thing to share."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
        yield from ProcessCollector(registry=None).collect()
