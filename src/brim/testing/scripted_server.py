"""Scripted: a model server for tests, on this machine, that says what it is told to say.

    with Scripted(["Hello.", Call("read", {"path": "a"}), Fault(500), "Done."]) as provider:
        client = brim.Client(provider.url)

It speaks OpenAI's chat completions and responses and Anthropic's messages, whole or streamed,
counts what it is sent as brim does, and refuses what is longer than its window. What it was asked
is kept.

The same request to the same script gets the same bytes, headers included: ids are made of what was
asked and said, and the time stands still. Only what was in the cache, where one is kept, depends on
what came before.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal, Self

from brim.errors import BrimError, InputError
from brim.fitting.api import count
from brim.models.pricing import Usage
from brim.testing.prompt_cache import MARK, MAX_MARKS, PromptCache, count_cache_marks
from brim.testing.reply_formats import (
    CHAT,
    MESSAGES,
    REPLY_FORMATS,
    RESPONSES,
    Body,
    ErrorReply,
    ReceivedRequest,
    TextReply,
    ToolCallReply,
    list_models,
    make_context_length_error,
    make_reply_id,
    stream_error,
)
from brim.tokens import counter_for
from brim.wire import (
    Format,
    anthropic,
    detect_format,
    openai_chat,
    openai_responses,
    read_messages,
    read_tools,
)

__all__ = [
    "ErrorReply",
    "ReceivedRequest",
    "Script",
    "ScriptedReply",
    "ScriptedServer",
    "TextReply",
    "ToolCallReply",
]

ScriptedReply = str | ToolCallReply | TextReply | ErrorReply
Script = (
    ScriptedReply
    | Sequence[ScriptedReply | Callable[[Body], ScriptedReply]]
    | Callable[[Body], ScriptedReply]
)

_FORMATS: Final[dict[str, Format]] = {
    CHAT: openai_chat,
    MESSAGES: anthropic,
    RESPONSES: openai_responses,
}
_COUNT_PATHS: Final = {
    f"{CHAT}/input_tokens": CHAT,
    f"{MESSAGES}/count_tokens": MESSAGES,
    f"{RESPONSES}/input_tokens": RESPONSES,
}
_REPLY_KEYS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")


class ScriptedServer:
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
        counts: bool = False,
        caches: bool = False,
        refuses: Literal["at once", "in stream"] = "at once",
    ) -> None:
        """A list is said in turn, all else every time. Without a `window` nothing is too long.

        `counted_as` names the model whose tokenizer counts; without one it is o200k. `like` says
        whose words a refusal has; one like llama.cpp can also be asked for counts of chats. The
        window is told where servers tell it, unless `tells_window` is false. With `counts` it can
        be asked for counts of messages and responses; with `caches` it remembers prompts and tells
        how much of each it knew; `refuses` says whether what is too long gets an error at once, or
        inside of a stream that has begun.
        """
        self.window = window
        self.reported_window = window if tells_window else None
        """The window that the server reports; None: it reports none."""
        self.model = model
        self.like = like
        self.requests: list[ReceivedRequest] = []
        """All that asked for an answer, the refused ones too."""
        self.counted: list[ReceivedRequest] = []
        """All that asked for a count."""
        self.refused: list[ReceivedRequest] = []
        """Those that were longer than the window."""
        self.abandoned: list[ReceivedRequest] = []
        """Those whose client hung up before the answer was complete."""
        self._counted_as = counted_as
        self._counts = counts
        self._cache = PromptCache() if caches else None
        self._refuses_in_stream = refuses == "in stream"
        self._always = None if _is_list(answers) else answers
        self._waiting = list(answers) if _is_list(answers) else []  # type: ignore[arg-type]
        self._lock = threading.Lock()
        self._server = _HTTPServer(self)
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

    def counts_at(self, path: str) -> bool:
        """Whether there are counts to be had at a path."""
        at = _COUNT_PATHS.get(path)
        return at is not None and (self.like == "llama.cpp" if at == CHAT else self._counts)

    def prompt_tokens(self, path: str, body: Body) -> int:
        """What a request takes in the format that is spoken at its path."""
        form, counter = _FORMATS[path], counter_for(self._counted_as)
        messages = sum(map(counter.message, read_messages(body, form)))
        return counter.overhead + counter.tools(read_tools(body)) + messages

    def usage(self, asked: ReceivedRequest, said: TextReply) -> Usage:
        """What an answer has taken, and what of it was in the cache."""
        output = self.tokens(said.text) + sum(self.tokens(str(call)) for call in said.calls)
        usage = Usage(asked.tokens, said.cached, output)
        if said.cached or self._cache is None:
            return usage
        is_marked = asked.path == MESSAGES
        with self._lock:
            read, written = self._cache.take(
                asked.body, lambda body: self.prompt_tokens(asked.path, body), marks=is_marked
            )
        # Old thinking counts for nothing, so a beginning can take more than it does in the whole.
        cached = min(read, asked.tokens)
        return replace(usage, cached=cached, written=min(written, asked.tokens - cached))

    def answer(self, asked: ReceivedRequest) -> TextReply | ErrorReply:
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
                following = ErrorReply(400, "the script has no more answers")
        said = following(asked.body) if callable(following) else following
        if isinstance(said, ToolCallReply):
            return TextReply(calls=(said,))
        return TextReply(said) if isinstance(said, str) else said

    def _refusal(self, asked: ReceivedRequest) -> ErrorReply | None:
        """What a prompt gets that leaves no room for the answer."""
        wanted = next(filter(None, map(asked.body.get, _REPLY_KEYS)), 1)
        room = 1 if self.like == "llama.cpp" else int(wanted)
        if self.window is None or asked.tokens + room <= self.window:
            return None
        error = make_context_length_error(self.like, asked, room, self.window)
        return ErrorReply(400, error=error, in_stream=self._refuses_in_stream)


def _is_list(answers: object) -> bool:
    return isinstance(answers, Sequence) and not isinstance(answers, str)


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, provider: ScriptedServer) -> None:
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
    server: _HTTPServer

    def log_message(self, *_: object) -> None: ...

    def version_string(self) -> str:
        return "scripted"

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Always the same moment: equal answers are to be equal bytes."""
        return super().date_time_string(0 if timestamp is None else timestamp)

    def do_GET(self) -> None:
        provider = self.server.provider
        if self.path == "/v1/models":
            self._send(200, list_models(provider.like, provider.model, provider.reported_window))
        elif self.path.partition("?")[0] == "/props" and provider.like == "llama.cpp":
            self._send(200, {"default_generation_settings": {"n_ctx": provider.reported_window}})
        else:
            self._send_error(404, "not found")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            self._answer(raw)
        except (BrimError, TypeError, ValueError) as wrong:
            self._send_error(400, str(wrong))

    def _answer(self, raw: bytes) -> None:
        provider, path = self.server.provider, self.path.partition("?")[0]
        if path in REPLY_FORMATS:
            asked = self._asked(path, raw)
            self._say(asked, provider.answer(asked))
        elif provider.counts_at(path):
            asked = self._asked(_COUNT_PATHS[path], raw)
            provider.counted.append(asked)
            self._send(200, REPLY_FORMATS[asked.path].counted(asked.tokens))
        elif path == "/tokenize" and provider.like == "llama.cpp":
            text = str(json.loads(raw).get("content", ""))
            self._send(200, {"tokens": [0] * provider.tokens(text)})
        else:
            self._send_error(404, "not found")

    def _asked(self, path: str, raw: bytes) -> ReceivedRequest:
        body, key = json.loads(raw), _FORMATS[path].MESSAGES
        if not isinstance(body, dict) or key not in body:
            raise InputError(f"a request here is an object with `{key}`")
        detect_format(body)
        tokens = self.server.provider.prompt_tokens(path, body)
        if path == MESSAGES and (found := count_cache_marks(body)) > MAX_MARKS:
            raise InputError(f"at most {MAX_MARKS} blocks can have `{MARK}`, not {found}")
        given = {name: ", ".join(self.headers.get_all(name, ())) for name in self.headers}
        return ReceivedRequest(path, body, given, time.time(), tokens, raw)

    def _say(self, asked: ReceivedRequest, said: TextReply | ErrorReply) -> None:
        is_streamed = bool(asked.body.get("stream"))
        try:
            if isinstance(said, TextReply):
                self._speak(asked, said, is_streamed)
            elif said.in_stream and is_streamed:
                self._stream(stream_error(asked, said, self.server.provider.model), TextReply())
            else:
                self._fail(asked, said)
        except OSError:
            self.server.provider.abandoned.append(asked)
            self.close_connection = True

    def _speak(self, asked: ReceivedRequest, said: TextReply, is_streamed: bool) -> None:
        provider, form = self.server.provider, REPLY_FORMATS[asked.path]
        name, usage = make_reply_id(asked, said), provider.usage(asked, said)
        answer = form.whole(said, name, provider.model, usage)
        if is_streamed:
            self._stream(form.events(answer, asked.body), said, form.HELD)
        else:
            self._send(200, answer, cut=said.cut_after is not None)

    def _fail(self, asked: ReceivedRequest, fault: ErrorReply) -> None:
        wait = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
        error = REPLY_FORMATS[asked.path].failure(fault.error_object)
        self._send(fault.status, error if fault.raw is None else fault.raw, wait)

    def _send_error(self, status: int, message: str) -> None:
        """An error that both Anthropic's client and the others can read."""
        self._send(
            status, REPLY_FORMATS[MESSAGES].failure(ErrorReply(message=message).error_object)
        )

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

    def _stream(self, pieces: Iterable[str | bytes], said: TextReply, held: int = 0) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for place, piece in enumerate(pieces):
            if place == said.cut_after:
                self.close_connection = True
                return
            self._wait(said.pause, said.hold if place == held else None)
            raw = piece if isinstance(piece, bytes) else piece.encode()
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
