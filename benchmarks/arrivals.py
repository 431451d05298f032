"""A model server in its own process that records when requests arrive and replies briefly.

    python -m benchmarks.arrivals WINDOW

It prints its port. `GET /arrivals` returns the times (of `time.monotonic`) at which the first and
the last byte of each request arrived.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

MODEL = "bench"
ANSWER = "Yes, that is so."


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    window: ClassVar[int] = 0
    arrivals: ClassVar[list[tuple[float, float]]] = []

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if self.path == "/arrivals":
            self._send(self.arrivals)
        elif self.path != "/v1/models":
            self._write(b"{}", "application/json", 404)
        else:
            row = {"id": MODEL, "object": "model", "context_length": self.window}
            self._send({"object": "list", "data": [row]})

    def do_POST(self) -> None:
        first = time.monotonic()
        self.rfile.read(int(self.headers["content-length"]))
        if self.path != "/v1/chat/completions":
            self._write(b"{}", "application/json", 404)
            return
        self.arrivals.append((first, time.monotonic()))
        choice = {"index": 0, "delta": {"content": ANSWER}, "finish_reason": "stop"}
        event = {"object": "chat.completion.chunk", "model": MODEL, "choices": [choice]}
        self._write(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")

    def _send(self, answer: Any) -> None:
        self._write(json.dumps(answer).encode(), "application/json")

    def _write(self, raw: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def main(window: str) -> None:
    Handler.window = int(window)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
