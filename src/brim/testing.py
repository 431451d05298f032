"""Scripted: a model server for tests, on this machine, that says what it is told to say.

    with Scripted(["Hello.", Call("read", {"path": "a"}), Fault(500), "Done."]) as provider:
        client = brim.Client(provider.url)

It speaks OpenAI's chat completions and Anthropic's messages, whole or streamed, counts what it is
sent as brim does, and refuses what is longer than its window. What it was asked is kept.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

from brim.api import count
from brim.errors import BrimError
from brim.scripted import (
    CHAT,
    HELD,
    MESSAGES,
    Asked,
    Body,
    Call,
    Fault,
    Say,
    error,
    events,
    listing,
    refusal,
    whole,
)

__all__ = ["Answer", "Asked", "Call", "Fault", "Say", "Script", "Scripted"]

Answer = str | Call | Say | Fault
Script = Answer | Sequence[Answer | Callable[[Body], Answer]] | Callable[[Body], Answer]


class Scripted:
    """A server that gives one answer after the other, or always the same, or a function's."""

    def __init__(
        self,
        answers: Script,
        *,
        window: int | None = None,
        model: str = "scripted",
        counted_as: str | None = None,
        like: Literal["openai", "llama.cpp"] = "openai",
        tells_window: bool = True,
    ) -> None:
        """A list is said in turn, all else every time. Without a `window` nothing is too long.

        `counted_as` names the model whose tokenizer counts; without one it is o200k. `like` says
        whose words a refusal has; one like llama.cpp can also be asked for counts. The window is
        told where servers tell it, unless `tells_window` is false.
        """
        self.window = window
        self.told = window if tells_window else None
        """The window as the server tells it."""
        self.model = model
        self.like = like
        self.requests: list[Asked] = []
        """All that asked for an answer, the refused ones too."""
        self.refused: list[Asked] = []
        """Those that were longer than the window."""
        self.abandoned: list[Asked] = []
        """Those whose client hung up before the answer was complete."""
        self._counted_as = counted_as
        self._always = None if _is_list(answers) else answers
        self._waiting = list(answers) if _is_list(answers) else []  # type: ignore[arg-type]
        self._lock = threading.Lock()
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def tokens(self, given: str | Body) -> int:
        """What a text or a request takes here."""
        named = given if isinstance(given, str) else {**given, "model": self._counted_as}
        return count(named, model=self._counted_as)

    def answer(self, asked: Asked) -> Say | Fault:
        """Write a request down, and say what it gets."""
        with self._lock:
            self.requests.append(asked)
            if (refused := self._refusal(asked)) is not None:
                self.refused.append(asked)
                return refused
            following: Any = self._always
            if self._waiting:
                following = self._waiting.pop(0)
            elif following is None:
                following = Fault(400, "the script has no more answers")
        said = following(asked.body) if callable(following) else following
        if isinstance(said, Call):
            return Say(calls=(said,))
        return Say(said) if isinstance(said, str) else said

    def _refusal(self, asked: Asked) -> Fault | None:
        """What a prompt gets that leaves no room for the answer."""
        wanted = asked.body.get("max_completion_tokens") or asked.body.get("max_tokens") or 1
        room = 1 if self.like == "llama.cpp" else int(wanted)
        if self.window is None or asked.tokens + room <= self.window:
            return None
        like = self.like if asked.path == CHAT else "anthropic"
        return refusal(like, asked.tokens, room, self.window)


def _is_list(answers: object) -> bool:
    return isinstance(answers, Sequence) and not isinstance(answers, str)


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, provider: Scripted) -> None:
        self.provider = provider
        self.is_over = threading.Event()
        self._sockets: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, address: Any) -> None:
        self._sockets.add(request)
        super().process_request(request, address)

    def handle_error(self, request: Any, address: Any) -> None:
        """A client that went away is no error; what the script itself raises is one."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, address)

    def stop(self) -> None:
        """End every connection and the threads behind them."""
        self.is_over.set()
        self.shutdown()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        provider = self.server.provider
        if self.path == "/v1/models":
            self._send(200, listing(provider.like, provider.model, provider.told))
        elif self.path.partition("?")[0] == "/props" and provider.like == "llama.cpp":
            self._send(200, {"default_generation_settings": {"n_ctx": provider.told}})
        else:
            self._send(404, error("not found"))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            self._answer(json.loads(raw))
        except (BrimError, ValueError) as wrong:
            self._send(400, error(str(wrong)))

    def _answer(self, body: Body) -> None:
        provider, path = self.server.provider, self.path.partition("?")[0]
        if path in (CHAT, MESSAGES):
            asked = Asked(path, body, dict(self.headers), time.time(), provider.tokens(body))
            self._say(asked, provider.answer(asked))
        elif path == f"{CHAT}/input_tokens" and provider.like == "llama.cpp":
            self._send(200, {"input_tokens": provider.tokens(body)})
        elif path == "/tokenize" and provider.like == "llama.cpp":
            self._send(200, {"tokens": [0] * provider.tokens(str(body.get("content", "")))})
        else:
            self._send(404, error("not found"))

    def _say(self, asked: Asked, said: Say | Fault) -> None:
        if isinstance(said, Fault):
            wait = {} if said.retry_after is None else {"Retry-After": f"{said.retry_after:g}"}
            self._send(said.status, error(said.message) if said.raw is None else said.raw, wait)
            return
        provider = self.server.provider
        output = provider.tokens(said.text) + sum(provider.tokens(str(call)) for call in said.calls)
        number = len(provider.requests)
        answer = whole(said, asked, model=provider.model, number=number, output=output)
        try:
            if asked.body.get("stream"):
                self._stream(events(answer, asked), said, HELD[asked.path])
            else:
                self._send(200, answer, cut=said.cut_after is not None)
        except OSError:
            provider.abandoned.append(asked)
            self.close_connection = True

    def _send(
        self, status: int, answer: Any, headers: Body | None = None, *, cut: bool = False
    ) -> None:
        raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        known = {"Content-Type": "application/json", "Content-Length": str(len(raw))}
        for name, value in (known | dict(headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw[: len(raw) // 2] if cut else raw)
        self.close_connection = self.close_connection or cut

    def _stream(self, pieces: Iterator[str], said: Say, held: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for place, piece in enumerate(pieces):
            if place == said.cut_after:
                self.close_connection = True
                return
            self._wait(said.pause, said.hold if place == held else None)
            raw = piece.encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(raw), raw))
        self.wfile.write(b"0\r\n\r\n")

    def _wait(self, pause: float, hold: threading.Event | None) -> None:
        """Wait as the script says, but no longer than the server lives and somebody listens."""
        end = time.monotonic() + pause
        while (hold is not None and not hold.is_set()) or time.monotonic() < end:
            if self.server.is_over.wait(min(0.02, pause) or 0.02) or self._is_alone():
                raise ConnectionResetError

    def _is_alone(self) -> bool:
        """Whether the client has hung up."""
        if not select.select([self.connection], [], [], 0)[0]:
            return False
        return not self.connection.recv(1, socket.MSG_PEEK)
