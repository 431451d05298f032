"""A local model server for tests that sends scripted replies.

    script = ["Hello.", ToolCallReply("read", {"path": "a"}), ErrorReply(500), "Done."]
    with ScriptedServer(script) as provider:
        client = brim.Client(provider.url)

It supports OpenAI chat completions and responses, Anthropic messages and Gemini, streamed or not,
counts requests as brim does, and rejects those that exceed its window. It records the requests that
it receives.

The same request to the same script gets the same bytes, headers included: ids are hashes of request
and reply, and the time is constant. Only the reported cache usage, if enabled, depends on earlier
requests.
"""

from __future__ import annotations

import json
import re
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
    REPLY_FORMATS,
    find_reply_format,
    list_models,
    make_context_length_error,
    make_reply_id,
    stream_error,
)
from brim.testing.script import Body, ErrorReply, ReceivedRequest, TextReply, ToolCallReply
from brim.tokens import counter_for
from brim.wire.formats import (
    ANTHROPIC,
    CHAT,
    FORMATS,
    FORMATS_BY_PATH,
    GEMINI,
    detect_format,
    read_messages,
    read_tools,
)

ScriptedReply = str | ToolCallReply | TextReply | ErrorReply
Script = (
    ScriptedReply
    | Sequence[ScriptedReply | Callable[[Body], ScriptedReply]]
    | Callable[[Body], ScriptedReply]
)

_COUNT_PATHS: Final = {format.version + format.count_path: format for format in FORMATS.values()}


class ScriptedServer:
    """A server that sends a list of replies in turn, or the same reply every time."""

    def __init__(
        self,
        replies: Script,
        *,
        window: int | None = None,
        model: str = "scripted",
        tokenizer_model: str | None = None,
        like: Literal["openai", "llama.cpp"] = "openai",
        reports_window: bool = True,
        counts_tokens: bool = False,
        caches_prompts: bool = False,
        context_errors: Literal["immediate", "in_stream"] = "immediate",
    ) -> None:
        """A list is sent in turn, any other reply every time; a function gets the body.

        `window` is the context window; None: unlimited. `tokenizer_model` is the model whose
        tokenizer counts; None: o200k. `like` selects the wording of context-length errors; a server
        like llama.cpp also counts chat completions. The window is reported as real servers do,
        unless `reports_window` is False. With `counts_tokens` it counts messages and responses;
        with `caches_prompts` it has a prompt cache and reports its usage. `context_errors` says
        whether a request that is too long gets an error response, or an error inside a stream.
        """
        self.window = window
        self.reported_window = window if reports_window else None
        """The window that the server reports; None: it reports none."""
        self.model = model
        self.like = like
        self.requests: list[ReceivedRequest] = []
        """All requests for completions, including rejected ones."""
        self.count_requests: list[ReceivedRequest] = []
        """All requests for counts."""
        self.rejected: list[ReceivedRequest] = []
        """Requests that exceeded the window."""
        self.abandoned: list[ReceivedRequest] = []
        """Requests whose client disconnected before the response was complete."""
        self._tokenizer_model = tokenizer_model
        self._counts_tokens = counts_tokens
        self._cache = PromptCache() if caches_prompts else None
        self._fails_in_stream = context_errors == "in_stream"
        self._always = None if _is_list(replies) else replies
        self._remaining = list(replies) if _is_list(replies) else []  # type: ignore[arg-type]
        self._lock = threading.Lock()
        self._server = _HTTPServer(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._server.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def tokens(self, given: str | Body) -> int:
        """Return the tokens of a text or a request."""
        named = given if isinstance(given, str) else {**given, "model": self._tokenizer_model}
        return count(named, model=self._tokenizer_model)

    def counts_at(self, path: str) -> bool:
        """Whether a path supports count requests."""
        format = _COUNT_PATHS.get(path)
        if format is CHAT:
            return self.like == "llama.cpp"
        return format is not None and self._counts_tokens

    def prompt_tokens(self, path: str, body: Body) -> int:
        """Return the tokens of a request in the format of its path."""
        format, counter = FORMATS_BY_PATH[path], counter_for(self._tokenizer_model)
        messages = sum(map(counter.message, read_messages(body, format)))
        return counter.overhead + counter.tools(read_tools(body)) + messages

    def usage(self, request: ReceivedRequest, reply: TextReply) -> Usage:
        """Return the usage of a response, including its cached part."""
        output = self.tokens(reply.text) + sum(self.tokens(str(call)) for call in reply.calls)
        usage = Usage(request.tokens, reply.cached, output)
        if reply.cached or self._cache is None:
            return usage
        is_marked = FORMATS_BY_PATH[request.path] is ANTHROPIC
        with self._lock:
            read, written = self._cache.take(
                request.body, lambda body: self.prompt_tokens(request.path, body), marks=is_marked
            )
        # Old thinking is not counted, so a prefix can have more tokens than the whole prompt.
        cached = min(read, request.tokens)
        return replace(usage, cached=cached, written=min(written, request.tokens - cached))

    def choose_reply(self, request: ReceivedRequest) -> TextReply | ErrorReply:
        """Record a request and return its reply."""
        with self._lock:
            self.requests.append(request)
            if (rejected := self._check_length(request)) is not None:
                self.rejected.append(request)
                return rejected
            following: Any = self._always
            if self._remaining:
                following = self._remaining.pop(0)
            elif following is None:
                following = ErrorReply(400, "the script has no more replies")
        reply = following(request.body) if callable(following) else following
        if isinstance(reply, ToolCallReply):
            return TextReply(calls=(reply,))
        return TextReply(reply) if isinstance(reply, str) else reply

    def _check_length(self, request: ReceivedRequest) -> ErrorReply | None:
        """Return the error for a prompt that leaves no room for output; None if it fits."""
        format = FORMATS_BY_PATH[request.path]
        wanted = next(filter(None, map(format.options(request.body).get, format.reply_keys)), 1)
        room = 1 if self.like == "llama.cpp" else int(wanted)
        if self.window is None or request.tokens + room <= self.window:
            return None
        error = make_context_length_error(self.like, request, room, self.window)
        return ErrorReply(400, error=error, in_stream=self._fails_in_stream)


def _is_list(replies: object) -> bool:
    return isinstance(replies, Sequence) and not isinstance(replies, str)


def _find_template(path: str) -> str:
    """Return the path of Gemini's API with a placeholder for the model; other paths unchanged."""
    path = re.sub(r"^/v1/models/[^/:]+:", "/v1beta/models/{model}:", path)
    path = re.sub(r"^/v1beta/models/[^/:]+:", "/v1beta/models/{model}:", path)
    return path.replace(":streamGenerateContent", ":generateContent")


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, provider: ScriptedServer) -> None:
        self.provider = provider
        self.is_stopped = threading.Event()
        self._sockets: set[socket.socket] = set()
        self.thread = threading.Thread(target=self._accept, daemon=True)
        super().__init__(("127.0.0.1", 0), _Handler)

    def _accept(self) -> None:
        while not self.is_stopped.is_set():
            self.handle_request()

    def process_request(self, request: Any, address: Any) -> None:
        self._sockets.add(request)
        super().process_request(request, address)

    def handle_error(self, request: Any, address: Any) -> None:
        """Ignore clients that disconnect; report errors of the script."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, address)

    def stop(self) -> None:
        """Close every connection and end its thread."""
        self.is_stopped.set()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.server_port)):
            self.thread.join()  # it waits for a connection
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
        """Return a constant time, so that equal responses are equal bytes."""
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
            self._route(raw)
        except (BrimError, TypeError, ValueError) as wrong:
            self._send_error(400, str(wrong))

    def _route(self, raw: bytes) -> None:
        provider, path = self.server.provider, _find_template(self.path.partition("?")[0])
        if path in FORMATS_BY_PATH:
            request = self._receive(path, raw)
            self._respond(request, provider.choose_reply(request))
        elif provider.counts_at(path):
            request = self._receive(_COUNT_PATHS[path].versioned_path, raw)
            provider.count_requests.append(request)
            self._send(200, find_reply_format(request.path).build_count_response(request.tokens))
        elif path == "/tokenize" and provider.like == "llama.cpp":
            text = str(json.loads(raw).get("content", ""))
            self._send(200, {"tokens": [0] * provider.tokens(text)})
        else:
            self._send_error(404, "not found")

    def _receive(self, path: str, raw: bytes) -> ReceivedRequest:
        body, format = json.loads(raw), FORMATS_BY_PATH[path]
        body = body.get("generateContentRequest", body) if format is GEMINI else body
        if not isinstance(body, dict) or (key := format.messages_key) not in body:
            raise InputError(f"The request body must be an object with `{key}`.")
        detect_format(body)
        tokens = self.server.provider.prompt_tokens(path, body)
        if format is ANTHROPIC and (found := count_cache_marks(body)) > MAX_MARKS:
            raise InputError(f"At most {MAX_MARKS} blocks may have `{MARK}`, not {found}.")
        given = {name: ", ".join(self.headers.get_all(name, ())) for name in self.headers}
        return ReceivedRequest(path, body, given, time.time(), tokens, raw)

    def _respond(self, request: ReceivedRequest, reply: TextReply | ErrorReply) -> None:
        is_streamed = bool(request.body.get("stream")) or ":stream" in self.path
        try:
            if isinstance(reply, TextReply):
                self._send_reply(request, reply, is_streamed)
            elif reply.in_stream and is_streamed:
                self._stream(stream_error(request, reply, self.server.provider.model), TextReply())
            else:
                error = find_reply_format(request.path).build_error_body(reply.error_object)
                after = reply.retry_after
                wait = {} if after is None else {"Retry-After": f"{after:g}"}
                self._send(reply.status, error if reply.raw is None else reply.raw, wait)
        except OSError:
            self.server.provider.abandoned.append(request)
            self.close_connection = True

    def _send_reply(self, request: ReceivedRequest, reply: TextReply, is_streamed: bool) -> None:
        provider, reply_format = self.server.provider, find_reply_format(request.path)
        name, usage = make_reply_id(request, reply), provider.usage(request, reply)
        response = reply_format.build_response(reply, name, provider.model, usage)
        if is_streamed:
            events = reply_format.iter_events(response, request.body)
            self._stream(events, reply, reply_format.events_before_hold)
        else:
            self._send(200, response, cut=reply.cut_after is not None)

    def _send_error(self, status: int, message: str) -> None:
        """Send an error that the clients of all formats can read."""
        error = ErrorReply(message=message).error_object
        self._send(status, REPLY_FORMATS["anthropic"].build_error_body(error))

    def _send(
        self, status: int, response: Any, headers: Body | None = None, *, cut: bool = False
    ) -> None:
        raw = response if isinstance(response, bytes) else json.dumps(response).encode()
        self.send_response(status)
        known = {"Content-Type": "application/json", "Content-Length": str(len(raw))}
        for name, value in (known | dict(headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw[: len(raw) // 2] if cut else raw)
        self.close_connection = self.close_connection or cut

    def _stream(self, pieces: Iterable[str | bytes], reply: TextReply, hold_at: int = 0) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for place, piece in enumerate(pieces):
            if place == reply.cut_after:
                self.close_connection = True
                return
            self._wait(reply.pause, reply.hold if place == hold_at else None)
            raw = piece if isinstance(piece, bytes) else piece.encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(raw), raw))
        self.wfile.write(b"0\r\n\r\n")

    def _wait(self, pause: float, hold: threading.Event | None) -> None:
        """Wait as the script says, until the server stops or the client disconnects."""
        end = time.monotonic() + pause
        while (hold is not None and not hold.is_set()) or time.monotonic() < end:
            if self.server.is_stopped.wait(min(0.02, pause) or 0.02) or self._is_disconnected():
                raise ConnectionResetError

    def _is_disconnected(self) -> bool:
        """Whether the client has disconnected."""
        if not select.select([self.connection], [], [], 0)[0]:
            return False
        return not self.connection.recv(1, socket.MSG_PEEK)
