"""A server that lists models, for discovery and for the doctor."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VLLM = {"/v1/models": {"data": [{"id": "Qwen/Q-7B", "owned_by": "vllm", "max_model_len": 32768}]}}


@dataclass
class ModelListServer:
    """A running server, and the requests that it received."""

    port: int
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serve_models(
    answers: Mapping[str, Any], *, server: str = "scripted", status: int = 200, **headers: str
) -> Iterator[ModelListServer]:
    """Run a server with a response for each path: JSON, or raw bytes; else 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.paths.append(self.path)
            state.keys.append(self.headers["Authorization"])
            answer = answers.get(self.path, answers.get("*"))
            raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(404 if answer is None else status)
            for name, value in {**headers, "Content-Length": str(len(raw))}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(raw)

        def version_string(self) -> str:
            return server

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = ModelListServer(listening.server_address[1])
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield state
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def free_port() -> int:
    """Return a port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port
