"""OpenTelemetry: a span and a few measurements for each finished request, never its content.

The span is made from the record of the request when it has ended; only its id is chosen before,
because the request to the upstream carries it. Finished requests are encoded together, with
OpenTelemetry's own message types: the SDK takes three times as much time for each request
(`python -m benchmarks.gateway`), so that tracing would cost more than fitting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    HistogramDataPoint,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from brim import __version__
from brim.errors import BrimError
from brim.gateway import genai_names as names
from brim.gateway.records import RequestRecord, TraceContext
from brim.providers.endpoint import Endpoint
from brim.providers.http_connection import encode_headers
from brim.providers.transport import Transport

Value = str | int | float
Labels = tuple[tuple[str, Value], ...]

MAX_WAITING: Final = 20_000
"""Finished requests that wait to be sent; further ones are not traced."""
METRIC_SECONDS: Final = 30.0
"""The interval between two exports of metrics."""
MAX_SERIES: Final = 1_000
"""Combinations of labels that are measured; names of models come from clients."""
TIMEOUT_SECONDS: Final = 10.0
_NANOSECONDS: Final = 1_000_000_000
_SCOPE: Final = "brim.gateway"
_HISTOGRAMS: Final[Mapping[str, tuple[str, Sequence[float]]]] = {
    names.TOKEN_USAGE: ("{token}", names.TOKEN_BUCKETS),
    names.OPERATION_DURATION: ("s", names.SECOND_BUCKETS),
    names.TIME_TO_FIRST_TOKEN: ("s", names.SECOND_BUCKETS),
}
"""The unit and the boundaries of each histogram."""
log = logging.getLogger("brim.gateway")


@dataclass(slots=True)
class _Distribution:
    """The measurements of one histogram with the same labels."""

    bounds: Sequence[float]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Telemetry:
    """Traces and metrics of one gateway, sent to an OTLP endpoint."""

    def __init__(
        self, endpoint: str, upstreams: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        """`upstreams` are the addresses of the upstreams by name."""
        headers = dict(_read_pairs(environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")))
        self._transport = Transport(Endpoint(endpoint, timeout=TIMEOUT_SECONDS, retries=0))
        self._headers = encode_headers({**headers, "content-type": "application/x-protobuf"})
        self._resource = [
            _to_attribute("service.name", environment.get("OTEL_SERVICE_NAME") or "brim"),
            _to_attribute("service.version", __version__),
            *(
                _to_attribute(*pair)
                for pair in _read_pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", ""))
            ),
        ]
        self._places = {name: _describe_upstream(url) for name, url in upstreams.items()}
        self._waiting: list[RequestRecord] = []
        self._distributions: dict[tuple[str, Labels], _Distribution] = {}
        self._began = time.time_ns()
        self._metrics_due = time.monotonic() + METRIC_SECONDS
        self._has_failed = False

    def add(self, record: RequestRecord) -> None:
        """Measure a finished request, and keep it until the next export."""
        labels = self._labels(record)
        self._measure(names.OPERATION_DURATION, labels, record.seconds)
        if record.streamed and record.first_byte is not None and record.status < 300:
            self._measure(names.TIME_TO_FIRST_TOKEN, labels, record.first_byte)
        if (usage := record.usage) is not None:
            self._measure(names.TOKEN_USAGE, (*labels, (names.TOKEN_TYPE, "input")), usage.input)
            self._measure(names.TOKEN_USAGE, (*labels, (names.TOKEN_TYPE, "output")), usage.output)
        is_traced = record.trace is not None and record.trace.is_sampled
        if is_traced and len(self._waiting) < MAX_WAITING:
            self._waiting.append(record)

    async def export(self, *, is_last: bool = False) -> None:
        """Send the spans of finished requests and, from time to time, the metrics."""
        records, self._waiting = self._waiting, []
        if records:
            raw = await asyncio.to_thread(self._encode_spans, records)
            await self._post("/v1/traces", raw)
        if self._distributions and (is_last or time.monotonic() >= self._metrics_due):
            self._metrics_due = time.monotonic() + METRIC_SECONDS
            await self._post("/v1/metrics", self._encode_metrics())

    async def close(self) -> None:
        """Send what is left."""
        await self.export(is_last=True)
        await self._transport.close()

    async def _post(self, path: str, raw: bytes) -> None:
        """Send a message; what the collector does not take is lost, and logged once."""
        reason: str | None = None
        try:
            response = await self._transport.open("POST", path, raw, self._headers)
            try:
                await self._transport.read_all(response)
            finally:
                response.close()
            if response.status >= 300:
                reason = f"status {response.status}"
        except BrimError as error:
            reason = str(error)
        if reason is not None and not self._has_failed:
            log.warning("telemetry not sent", extra={"fields": {"path": path, "reason": reason}})
        self._has_failed = reason is not None

    # Measurements

    def _labels(self, record: RequestRecord) -> Labels:
        provider, host, port = self._places.get(record.upstream or "", ("unknown", "", 0))
        labels: Labels = (
            (names.OPERATION, names.OPERATIONS.get(record.format, "chat")),
            (names.PROVIDER, provider),
            (names.REQUEST_MODEL, record.fallback or record.model),
        )
        if host:
            labels = (*labels, (names.SERVER_ADDRESS, host), (names.SERVER_PORT, port))
        error = _find_error(record)
        return labels if error is None else (*labels, (names.ERROR_TYPE, error))

    def _measure(self, name: str, labels: Labels, value: float) -> None:
        found = self._distributions.get((name, labels))
        if found is None:
            if len(self._distributions) >= MAX_SERIES:
                return
            found = self._distributions[name, labels] = _Distribution(_HISTOGRAMS[name][1])
        found.add(value)

    def _encode_metrics(self) -> bytes:
        message = ExportMetricsServiceRequest()
        resource = message.resource_metrics.add()
        resource.resource.attributes.extend(self._resource)
        scope = resource.scope_metrics.add()
        scope.scope.name, scope.scope.version = _SCOPE, __version__
        for name, (unit, _) in _HISTOGRAMS.items():
            metric = scope.metrics.add(name=name, unit=unit)
            metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.histogram.data_points.extend(
                self._to_point(labels, found)
                for (each, labels), found in self._distributions.items()
                if each == name
            )
        return bytes(message.SerializeToString())

    def _to_point(self, labels: Labels, found: _Distribution) -> HistogramDataPoint:
        return HistogramDataPoint(
            attributes=_to_attributes(labels),
            start_time_unix_nano=self._began,
            time_unix_nano=time.time_ns(),
            count=sum(found.counts),
            sum=found.total,
            bucket_counts=found.counts,
            explicit_bounds=found.bounds,
        )

    # Spans

    def _encode_spans(self, records: Sequence[RequestRecord]) -> bytes:
        message = ExportTraceServiceRequest()
        resource = message.resource_spans.add()
        resource.resource.attributes.extend(self._resource)
        scope = resource.scope_spans.add()
        scope.scope.name, scope.scope.version = _SCOPE, __version__
        shared: dict[Labels, list[KeyValue]] = {}
        for record in records:
            labels = (*self._labels(record), *_list_labels(record))
            attributes = shared.get(labels)
            if attributes is None:
                attributes = shared[labels] = _to_attributes(labels)
            assert record.trace is not None
            span = scope.spans.add()
            _fill_span(span, record, record.trace)
            span.attributes.extend(attributes)
            span.attributes.extend(_to_attributes(_list_facts(record)))
        return bytes(message.SerializeToString())


def _fill_span(span: Span, record: RequestRecord, trace: TraceContext) -> None:
    begun = int(record.time * _NANOSECONDS)
    operation = names.OPERATIONS.get(record.format, "chat")
    span.name = f"{operation} {record.fallback or record.model}".rstrip()
    span.kind = Span.SPAN_KIND_CLIENT
    span.trace_id = trace.trace_id.to_bytes(16)
    span.span_id = trace.span_id.to_bytes(8)
    if trace.parent_id is not None:
        span.parent_span_id = trace.parent_id.to_bytes(8)
    span.start_time_unix_nano = begun
    span.end_time_unix_nano = begun + int(record.seconds * _NANOSECONDS)
    for upstream, model, problem in record.problems:
        event = span.events.add(name=names.PROBLEM_EVENT, time_unix_nano=span.end_time_unix_nano)
        facts = {names.UPSTREAM: upstream, names.REQUEST_MODEL: model, names.PROBLEM: problem}
        event.attributes.extend(_to_attributes(facts.items()))
    if (error := _find_error(record)) is not None:
        span.status.code, span.status.message = Status.STATUS_CODE_ERROR, error


def _list_labels(record: RequestRecord) -> Iterator[tuple[str, Value]]:
    """Yield attributes that many requests have in common; they are encoded once."""
    yield names.STATUS_CODE, record.status
    yield names.END, record.end
    yield names.ATTEMPTS, record.attempts
    texts = {names.UPSTREAM: record.upstream, names.KEY: record.key, names.PROJECT: record.project}
    for name, text in texts.items():
        if text:
            yield name, text


def _list_facts(record: RequestRecord) -> Iterator[tuple[str, Value]]:
    """Yield the attributes of one request."""
    yield names.REQUEST_ID, record.id
    if record.tokens is not None and record.tokens_before is not None:
        yield names.TOKENS_TRIMMED, record.tokens_before - record.tokens
    if record.cost is not None:
        yield names.COST, float(record.cost)
    if (usage := record.usage) is not None:
        yield names.INPUT_TOKENS, usage.input
        yield names.OUTPUT_TOKENS, usage.output
        yield names.CACHE_READ_TOKENS, usage.cached
        yield names.CACHE_WRITTEN_TOKENS, usage.written


def _find_error(record: RequestRecord) -> str | None:
    """Return the kind of failure of a request; None if it was answered."""
    if record.end == "completed":
        return None
    return record.code or (str(record.status) if record.status >= 400 else record.end)


def _to_attributes(pairs: Iterable[tuple[str, Value]]) -> list[KeyValue]:
    return [_to_attribute(name, value) for name, value in pairs]


def _to_attribute(name: str, value: Value) -> KeyValue:
    if isinstance(value, str):
        return KeyValue(key=name, value=AnyValue(string_value=_to_unicode(value)))
    if isinstance(value, int):
        return KeyValue(key=name, value=AnyValue(int_value=value))
    return KeyValue(key=name, value=AnyValue(double_value=value))


def _to_unicode(text: str) -> str:
    """Return a text that can be encoded: names of models may contain lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def _describe_upstream(url: str) -> tuple[str, str, int]:
    """Return the provider of an address, and its host and port."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    ends = (name for end, name in names.PROVIDER_DOMAINS.items() if host.endswith(end))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return names.PROVIDERS.get(host) or next(ends, host), host, port


def _read_pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a variable of OpenTelemetry: `name=value,name=value`, with URL escapes."""
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if equals and name.strip():
            yield name.strip(), unquote(value.strip())
