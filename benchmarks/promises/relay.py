"""A relay between a client and a model server that records all requests and responses.

It does not use brim, so its records can be compared with brim's own.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import urlsplit

Options = Callable[[Mapping[str, Any]], Mapping[str, Any]]

CHAT: Final = "/chat/completions"
_FORWARDED_HEADERS: Final = ("authorization", "content-type", "accept")
_PROMPT: Final = re.compile(rb'"prompt_tokens": ?(\d+)')


@dataclass
class Exchange:
    """A request for a completion, and its response so far."""

    body: Mapping[str, Any]
    status: int = 0
    received: bytes = b""
    is_over: bool = False
    """Whether the response ended while the client was still connected."""
    pieces: int = 0

    @property
    def text(self) -> str:
        """The text of the response."""
        lines = self.received.decode(errors="replace").splitlines()
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
        choices = (choice for event in events for choice in _json(event).get("choices", ()))
        return "".join(choice.get("delta", {}).get("content") or "" for choice in choices)

    @property
    def prompt_tokens(self) -> int:
        """The prompt tokens that the server reported; 0 if it did not."""
        found = _PROMPT.findall(self.received)
        return int(found[-1]) if found else 0

    @property
    def last_text(self) -> str:
        """The text of the last message."""
        return str(self.body["messages"][-1]["content"])


def select_exchanges(exchanges: Sequence[Exchange], text: str) -> list[Exchange]:
    """Return the exchanges whose last message ends with this text."""
    return [each for each in exchanges if each.last_text.endswith(text)]


class Relay:
    """A local address that forwards to another server."""

    def __init__(self, url: str, options: Options | None = None) -> None:
        """`options` returns fields to add to a request, given its body."""
        self.exchanges: list[Exchange] = []
        self._upstream = urlsplit(url)
        self._options = options or (lambda _body: {})
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}{self._upstream.path}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def rejected(self) -> int:
        """Number of requests for a completion that got an error."""
        return sum(exchange.status >= 400 for exchange in self.exchanges)

    def saw(self, text: str) -> list[Exchange]:
        """Return the requests whose last message ends with this text."""
        return select_exchanges(self.exchanges, text)

    def wait_for_pieces(self, text: str, number: int, timeout: float = 120) -> bool:
        """Wait for the start or end of the response to this text; return whether it is running."""

        def has_begun() -> bool:
            return any(each.pieces >= number or each.is_over for each in self.saw(text)[-1:])

        with self._changed:
            if not self._changed.wait_for(has_begun, timeout):
                raise AssertionError(f"no response to {text!r} began within {timeout:g} s")
            return not self.saw(text)[-1].is_over

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: object) -> None: ...

            def handle(self) -> None:
                with suppress(ConnectionError):  # a killed client disconnects at any time
                    super().handle()

            def do_GET(self) -> None:
                relay._forward(self, None)

            def do_POST(self) -> None:
                relay._forward(self, self.rfile.read(int(self.headers.get("content-length") or 0)))

        return Handler

    def _forward(self, incoming: BaseHTTPRequestHandler, raw: bytes | None) -> None:
        exchange = None
        if raw is not None and incoming.path.endswith(CHAT):
            exchange, raw = self._record_request(raw)
        connection = HTTPConnection(self._upstream.netloc, timeout=600)
        headers = {
            name: incoming.headers[name] for name in _FORWARDED_HEADERS if incoming.headers[name]
        }
        try:
            connection.request(incoming.command, incoming.path, raw, headers)
            with connection.getresponse() as response:
                self._forward_response(response, incoming, exchange)
        except OSError:  # one side disconnected
            incoming.close_connection = True
        finally:
            connection.close()

    def _record_request(self, raw: bytes) -> tuple[Exchange, bytes]:
        exchange = Exchange(json.loads(raw))
        body = {**exchange.body, **self._options(exchange.body)}
        with self._changed:
            self.exchanges.append(exchange)
        return exchange, json.dumps(body).encode()

    def _forward_response(
        self, response: HTTPResponse, incoming: BaseHTTPRequestHandler, exchange: Exchange | None
    ) -> None:
        if exchange is not None:
            exchange.status = response.status
        incoming.send_response(response.status)
        incoming.send_header("Content-Type", response.headers["content-type"] or "application/json")
        incoming.send_header("Transfer-Encoding", "chunked")
        incoming.end_headers()
        while piece := response.read1(65_536):
            incoming.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self._record_part(exchange, piece)
        incoming.wfile.write(b"0\r\n\r\n")
        self._record_part(exchange, b"")

    def _record_part(self, exchange: Exchange | None, piece: bytes) -> None:
        """Record a part of a response; an empty part ends it."""
        if exchange is None:
            return
        with self._changed:
            exchange.received += piece
            exchange.pieces += bool(piece)
            exchange.is_over = not piece
            self._changed.notify_all()


def _json(text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:  # an incomplete event
        return {}
    return found
