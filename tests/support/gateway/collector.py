"""A collector of OpenTelemetry data: it decodes what the SDK's own exporter sends."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """The spans and metrics that arrived."""

    def __init__(self) -> None:
        self.raw = b""
        self.url = ""
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}

    def add(self, path: str, raw: bytes) -> None:
        self.raw += raw
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(raw)
            for resource in traces.resource_spans:
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        else:
            metrics = ExportMetricsServiceRequest.FromString(raw)
            for found in metrics.resource_metrics:
                self.metrics |= {
                    metric.name: metric for scope in found.scope_metrics for metric in scope.metrics
                }


def read_attributes(holder: Any) -> dict[str, Any]:
    """Return the attributes of a span, an event or a data point."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in holder.attributes
    }


@contextmanager
def run_collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                raw = gzip.decompress(raw)
            collector.add(self.path, raw)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
