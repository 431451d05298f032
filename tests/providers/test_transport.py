from __future__ import annotations

import asyncio
import json
import pickle
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from brim.errors import (
    AuthenticationError,
    ConnectionFailedError,
    ContextLengthError,
    InputError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from brim.providers import http_connection
from brim.providers.endpoint import Endpoint
from brim.providers.errors import parse_retry_after
from brim.providers.http_connection import SendState
from brim.providers.network import create_ssl_context
from brim.providers.transport import Transport
from tests.support.providers.scripted import Naps, by_path, in_turn, run, run_raw, run_scripted

CHAT = "/v1/chat/completions"
TOO_LONG = {
    "error": {
        "code": 400,
        "type": "exceed_context_size_error",
        "message": "request (300 tokens) exceeds the available context size (256 tokens)",
        "n_prompt_tokens": 300,
        "n_ctx": 256,
    }
}


def reply(status: int, body: Any = None, **headers: str) -> web.Response:
    text = body if isinstance(body, str) else json.dumps(body or {"error": {"message": "no"}})
    return web.Response(
        status=status,
        body=text.encode(),
        headers={k.replace("_", "-"): v for k, v in headers.items()},
    )


def post_once(*answers: web.Response, naps: Naps | None = None, **settings: Any) -> tuple[Any, int]:
    """Return the result or error of a POST, and the number of requests."""

    async def work() -> tuple[Any, int]:
        async with run_scripted(in_turn(*answers)) as server:
            asking = Transport(Endpoint(server.url, **settings), sleep=naps or Naps())
            async with asking:
                try:
                    return await asking.post(CHAT, {"model": "m"}), len(server.requests)
                except ProviderError as error:
                    return error, len(server.requests)

    return run(work())


def read_stream(*events: Any, status: int = 200, **settings: Any) -> list[Any]:
    """Return the events of a stream, and the error that ends it last."""
    text = "".join(
        f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events
    )
    return events_of(
        web.Response(status=status, text=text, content_type="text/event-stream"), **settings
    )


def events_of(answer: web.Response, **settings: Any) -> list[Any]:
    async def work() -> list[Any]:
        async with run_scripted(in_turn(answer)) as server:
            return await collect_events(Transport(Endpoint(server.url, **settings), sleep=Naps()))

    return run(work())


async def collect_events(asking: Transport) -> list[Any]:
    found: list[Any] = []
    async with asking:
        try:
            async for event in asking.stream(CHAT, {"model": "m", "stream": True}):
                found.append(event)  # noqa: PERF401 - what came before the error is kept
        except ProviderError as error:
            found.append(error)
    return found


def test_a_request_is_sent_as_json_with_the_key() -> None:
    async def work() -> None:
        async with run_scripted(by_path({CHAT: {"id": 1}})) as server:
            endpoint = Endpoint(server.url + "/v1/", key="sk-1", headers={"x-team": "a"})
            async with Transport(endpoint) as asking:
                assert await asking.post(endpoint.chat_path, {"text": "ü\ud83d"}) == {"id": 1}
            request = server.requests[0]
            assert request.path == CHAT
            assert request.body == {"text": "ü\ufffd"}  # half a character cannot be sent
            assert request.headers["Authorization"] == "Bearer sk-1"
            assert request.headers["x-team"] == "a"
            assert request.headers["Content-Type"] == "application/json"
            assert request.headers["User-Agent"].startswith("brim/")

    run(work())


def test_a_closed_transport_reopens_at_the_next_request() -> None:
    async def work() -> None:
        async with run_scripted(by_path({"/x": [1]})) as server:
            asking = Transport(Endpoint(server.url))
            for _ in range(2):
                assert await asking.get("/x") == [1]
                await asking.close()

    run(work())


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (reply(401), AuthenticationError, "rejected the API key"),
        (reply(403), AuthenticationError, "does not permit"),
        (reply(404), ProviderError, "does not support /v1/chat/completions"),
        (reply(400, {"error": {"message": "bad role"}}), ProviderError, "400.*: bad role"),
        (reply(400, {"detail": "bad role"}), ProviderError, ": bad role"),
        (reply(400, "<html>nginx</html>"), ProviderError, "a web page"),
        (reply(400, "x" * 9_000), ProviderError, "x…$"),
        (reply(400, TOO_LONG), ContextLengthError, r"300 tokens, limit 256"),
        (reply(307, location="https://new.example/v1?a=b"), ProviderError, "new.example/v1; use"),
        (reply(500, {"error": {"message": "images are not supported"}}), ProviderError, "image"),
        (reply(500, "jinja2.exceptions: Conversation roles must alternate"), ProviderError, "500"),
        (reply(429, {"error": {"code": "insufficient_quota"}}), RateLimitError, "limiting the"),
        (
            reply(429, {"error": {"type": "tokens", "code": "rate_limit_exceeded", "message":
                 "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested "
                 "45000."}}),
            ContextLengthError,
            "45,000 tokens, limit 30,000",
        ),
        (reply(429, retry_after="3600"), RateLimitError, "retry after 3,600 s"),
        (reply(200, "<html>hi</html>"), ProviderError, "not JSON"),
        (reply(200, "[" * 100_000), ProviderError, "not JSON"),
        (reply(200, "[1]"), ProviderError, "not an object"),
        (reply(200, {"error": TOO_LONG["error"]}), ContextLengthError, "too long"),
        (reply(200, {"error": {"code": 402, "message": "no credit"}}), ProviderError, "no credit"),
        (
            reply(200, {"status": "failed", "output": [], "error":
                 {"code": "context_length_exceeded", "message": "exceeds the context window"}}),
            ContextLengthError,
            "context window",
        ),
    ],
)  # fmt: skip
def test_permanent_errors_are_not_retried(
    answer: web.Response, kind: type[ProviderError], words: str
) -> None:
    error, requests = post_once(answer, key="sk-long-secret")
    assert type(error) is kind
    assert requests == 1
    assert error.args
    with pytest.raises(kind, match=words):
        raise error
    assert "127.0.0.1" in str(error)
    assert len(str(error)) < 700
    assert "Traceback" not in str(error)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_temporary_errors_are_retried(status: int) -> None:
    naps = Naps()
    answer, requests = post_once(reply(status), reply(status), reply(200, {"id": 1}), naps=naps)
    assert (answer, requests) == ({"id": 1}, 3)
    assert 0.37 <= naps.taken[0] <= 0.63 <= naps.taken[1] <= 1.26


def test_the_number_of_retries_is_limited() -> None:
    error, requests = post_once(reply(503), retries=1)
    assert (error.status, requests) == (503, 2)
    assert post_once(reply(503), retries=0)[1] == 1


def test_retry_after_is_respected() -> None:
    naps = Naps()
    assert post_once(reply(429, retry_after="7"), reply(200, {"id": 1}), naps=naps)[0] == {"id": 1}
    assert naps.taken == [7.0]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0.0),
    ],
)
def test_retry_after_is_parsed_in_both_headers(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert parse_retry_after(headers) == seconds


def test_retry_after_may_be_a_date() -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert 90 < (parse_retry_after({"retry-after": then}) or 0) <= 100


def test_the_key_is_removed_from_error_bodies() -> None:
    error, _ = post_once(
        reply(401, {"error": {"message": "bad key sk-long-secret"}}), key="sk-long-secret"
    )
    assert "sk-long" not in f"{error} {error!r} {error.body} {error.args}"


def test_errors_can_be_pickled() -> None:
    error, _ = post_once(reply(400, TOO_LONG))
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert copy.overflow == error.overflow
    assert (copy.overflow.limit, copy.overflow.sent, copy.status) == (256, 300, 400)
    other, _ = post_once(reply(404))
    assert pickle.loads(pickle.dumps(other)).status == 404


def test_an_endless_response_is_rejected() -> None:
    begun = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"id": "'

    async def work() -> None:
        async with (
            run_raw(chain([begun], repeat(b"x" * 2**20)), pause=0) as server,
            Transport(Endpoint(server.url), sleep=Naps()) as asking,
        ):
            with pytest.raises(ProviderError, match="more than 67,108,864 bytes"):
                await asking.post(CHAT, {})
            assert len(server.heads) == 1

    run(work())


def test_an_unreachable_server_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"

        async def work() -> None:
            naps = Naps()
            async with Transport(Endpoint(url), sleep=naps) as asking:
                with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1.*cannot be reached"):
                    await asking.post(CHAT, {})
            assert len(naps.taken) == 2

        run(work())


def test_a_connection_that_breaks_before_the_response_is_retried() -> None:
    whole = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"id":1}'

    async def work() -> None:
        async with (
            run_raw([], [whole[:-3]], [whole]) as server,
            Transport(Endpoint(server.url), sleep=Naps()) as asking,
        ):
            assert await asking.post(CHAT, {}) == {"id": 1}

    run(work())


# Connections that are kept


ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"id":1}'
Breaking = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Lines:
    """What a server received over its connections."""

    url: str
    opened: int = 0
    seconds: int = 0
    """Connections with a second request."""


@asynccontextmanager
async def run_breaking(breaking: Breaking, lines: int = 1) -> AsyncIterator[Lines]:
    """A server that answers the first request of a connection, and breaks at the second.

    The first ones wait for each other, so that there are that many connections.
    """
    together, busy = asyncio.Barrier(lines), set[asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        busy.add(asyncio.current_task())
        found.opened += 1
        await read(reader)
        if found.opened <= lines:
            await together.wait()
        writer.write(ANSWER)
        if await reader.read(1):
            found.seconds += 1
            await breaking(writer)
        writer.transport.abort()

    async def read(reader: asyncio.StreamReader) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(b"{}"))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    found = Lines("http://{}:{}".format(*server.sockets[0].getsockname()))
    try:
        yield found
    finally:
        server.close()
        await asyncio.gather(*(task for task in busy if task))
        await server.wait_closed()


async def at_once(_: asyncio.StreamWriter) -> None:
    """Do not read the rest of the request."""


@pytest.mark.parametrize("lines", [1, 3])
def test_stale_connections_do_not_count_as_attempts(
    lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is.
    monkeypatch.setattr("brim.providers.http_connection.STALE_SECONDS", 60.0)

    async def work() -> tuple[int, int]:
        async with run_breaking(at_once, lines) as server:
            async with Transport(Endpoint(server.url, retries=0)) as asking:
                await asyncio.gather(*(asking.post(CHAT, {}) for _ in range(lines)))
                assert await asking.post(CHAT, {}) == {"id": 1}
            return server.seconds, server.opened

    assert run(work()) == (lines, lines + 1)


async def late(_: asyncio.StreamWriter) -> None:
    """Wait for longer than it takes to close a connection."""
    await asyncio.sleep(2 * http_connection.STALE_SECONDS)


async def in_the_answer(writer: asyncio.StreamWriter) -> None:
    writer.write(ANSWER[:12])
    await writer.drain()
    await asyncio.sleep(0.01)  # an immediate close would discard the bytes


@pytest.mark.parametrize(("breaking", "quick"), [(late, 0.05), (in_the_answer, 60.0)])
def test_a_request_that_a_server_may_have_processed_is_not_sent_again(
    breaking: Breaking, quick: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "STALE_SECONDS", quick)

    async def work() -> tuple[int, int]:
        sending = SendState()
        async with run_breaking(breaking, 3) as server:
            async with Transport(Endpoint(server.url, retries=0)) as asking:
                await asyncio.gather(*(asking.post(CHAT, {}) for _ in range(3)))
                with pytest.raises(ConnectionFailedError, match="broke before the response"):
                    await asking.open("POST", CHAT, b"{}", [], sending)
                assert sending.is_sent
            return server.seconds, server.opened

    assert run(work()) == (1, 3)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and its certificate, and the certificate of its authority."""
    authority = trustme.CA()
    both = tmp_path_factory.mktemp("tls") / "both.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(both)
    authority.cert_pem.write_to_path(both.with_name("authority.pem"))
    return both


def test_only_trusted_certificates_are_accepted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def work() -> None:
        async with run_scripted(in_turn(reply(200, {"id": 1})), ssl=context) as server:
            naps = Naps()
            async with Transport(Endpoint(server.url), sleep=naps) as asking:
                with pytest.raises(ConnectionFailedError, match=r"not trusted.*SSL_CERT_FILE"):
                    await asking.post(CHAT, {})
            assert naps.taken == []
            for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
                with monkeypatch.context() as patch:
                    patch.setenv(name, str(certificate.with_name("authority.pem")))
                    async with Transport(Endpoint(server.url)) as asking:
                        assert await asking.post(CHAT, {}) == {"id": 1}
                    patch.setenv(name, "/nowhere.pem")
                    async with Transport(Endpoint(server.url)) as asking:
                        with pytest.raises(
                            InputError,
                            match=rf"^{name} names no usable certificates: /nowhere\.pem",
                        ):
                            await asking.post(CHAT, {})

    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    run(work())
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    with pytest.raises(
        InputError, match=r"SSL_CERT_FILE names no usable certificates: /nowhere\.pem"
    ):
        create_ssl_context()


def silent(seconds: float) -> Callable[[web.Request], Any]:
    async def answer(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return web.json_response({})

    return answer


@pytest.mark.parametrize("whole", [None, 0.3])
def test_a_timeout_is_not_retried(whole: float | None) -> None:
    async def work() -> None:
        async with run_scripted(silent(5)) as server:
            endpoint = Endpoint(server.url, timeout=5 if whole else 0.3)
            async with Transport(endpoint, sleep=Naps()) as asking:
                with pytest.raises(ProviderTimeoutError, match=r"did not respond within 0\.3 s"):
                    await asking.request_json("POST", CHAT, {}, timeout=whole)
            assert len(server.requests) == 1

    run(work())


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_gets_its_password_and_the_key_only_if_necessary(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> bytes:
        async with run_raw([b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"]) as proxy:
            login = proxy.url.replace("http://", "http://me:word@")
            monkeypatch.setenv(f"{scheme}_proxy", login)
            monkeypatch.setenv("no_proxy", "")
            endpoint = Endpoint(f"{scheme}://model.example", key="sk-1", retries=0)
            async with Transport(endpoint) as asking:
                with pytest.raises(ProviderError) as caught:
                    await asking.post(CHAT, {})
            assert "word" not in f"{caught.value!r}"
            assert len(proxy.heads) == 1
            return proxy.heads[0]

    head = run(work())
    assert b"Proxy-Authorization: Basic bWU6d29yZA==" in head
    # A proxy sees what goes to a server without encryption.
    assert (b"sk-1" in head) == (scheme == "http")
    assert head.startswith(b"POST http://model.example/" if scheme == "http" else b"CONNECT model")


HELLO = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
WORD = {"choices": [{"delta": {"content": "ü"}}]}


def test_a_stream_yields_its_events_until_done() -> None:
    assert read_stream(HELLO, WORD, WORD, "[DONE]", WORD) == [HELLO, WORD, WORD]
    assert read_stream(HELLO) == [HELLO]


def test_a_stream_may_arrive_in_any_chunks() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    raw = ': hi\r\n\r\nevent: x\r\ndata: {\r\ndata: "a":"ü"}\r\n\r\ndata: {"b":1}'.encode()

    async def work() -> None:
        async with run_raw([head, *(bytes([byte]) for byte in raw)]) as server:
            assert await collect_events(Transport(Endpoint(server.url))) == [{"a": "ü"}, {"b": 1}]

    run(work())


def test_a_connection_is_reused_after_a_stream() -> None:
    ports = []

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.append(request.transport.get_extra_info("peername"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"a":1}\n\ndata: [DONE]\n\n')
        await asyncio.sleep(0.01)
        return response

    async def work() -> None:
        async with run_scripted(answer) as server, Transport(Endpoint(server.url)) as asking:
            for _ in range(3):
                assert [event async for event in asking.stream(CHAT, {})] == [{"a": 1}]

    run(work())
    assert len(set(ports)) == 1


@pytest.mark.parametrize(
    "events",
    [
        [TOO_LONG],
        [HELLO, TOO_LONG],
        [{"choices": [], "prompt_filter_results": []}, HELLO, TOO_LONG],
        [
            {"type": "message_start", "message": {}},
            {"type": "ping"},
            {"type": "error", "error": {"type": "invalid_request_error",
             "message": "prompt is too long: 300 tokens > 256 maximum"}},
        ],
        [
            {"type": "response.created", "response": {"error": None}},
            {"type": "response.in_progress", "response": {"error": None}},
            {"type": "response.failed", "response": {"error": {"code": "context_length_exceeded",
             "message": "Your input exceeds the context window of this model"}}},
        ],
        [{"type": "error", "code": "context_length_exceeded", "message": "no", "param": None}],
    ],
)  # fmt: skip
def test_a_context_length_error_is_raised_before_any_event(events: list[Any]) -> None:
    (error,) = read_stream(*events)
    assert type(error) is ContextLengthError


def test_a_context_length_status_is_raised_before_any_event() -> None:
    (error,) = read_stream(status=400) and events_of(reply(400, TOO_LONG))
    assert type(error) is ContextLengthError
    assert error.overflow.limit == 256


def test_other_errors_inside_a_stream_are_events() -> None:
    busy = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    assert read_stream(busy) == [busy]
    assert read_stream(HELLO, WORD, TOO_LONG) == [HELLO, WORD, TOO_LONG]
    text = 'event: error\ndata: {"message": "gone"}\n\n'
    assert events_of(web.Response(text=text)) == [{"type": "error", "error": {"message": "gone"}}]
    assert events_of(web.Response(text='error: {"code":500,"message":"gone"}\n\n')) == [
        {"type": "error", "error": {"code": 500, "message": "gone"}}
    ]
    assert events_of(web.Response(text="event: error\ndata: gone\n\n")) == [
        {"type": "error", "error": {"message": "gone"}}
    ]


def test_a_server_that_does_not_stream_yields_one_event() -> None:
    answer = {"choices": [{"message": {"content": "hi"}}], "pad": "x" * 100_000}
    assert events_of(reply(200, answer)) == [answer]
    (error,) = events_of(reply(200, TOO_LONG))
    assert type(error) is ContextLengthError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no events"),
        ("<html><body>login</body></html>", "no events"),
        ("data: [DONE]\n\n", "no events"),
        ("data: hello\n\n", "an event that is not JSON"),
        ("data: 7\n\n", "an event that is not an object"),
        ('{"a": ', "neither JSON nor events"),
    ],
)
def test_an_invalid_stream_raises(text: str, words: str) -> None:
    (error,) = events_of(web.Response(text=text))
    assert type(error) is ProviderError
    assert words in str(error)


def test_a_stream_is_retried_only_before_its_first_event() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    chunk = b"%x\r\n%s\r\n" % (len(event), event)
    busy = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"

    async def work() -> None:
        async with run_raw([], [busy], [head, chunk]) as server:
            *events, error = await collect_events(Transport(Endpoint(server.url), sleep=Naps()))
        assert type(error) is ConnectionFailedError
        assert [event["choices"][0]["delta"]["content"] for event in events] == ["a"]

    run(work())


def test_a_stalled_stream_times_out() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(f"data: {json.dumps(WORD)}\n\n".encode())
        await asyncio.sleep(5)
        return response

    async def work() -> None:
        async with run_scripted(answer) as server:
            events = await collect_events(Transport(Endpoint(server.url, timeout=0.1)))
        assert events[0] == WORD
        assert type(events[1]) is ProviderTimeoutError

    run(work())


@pytest.mark.parametrize("way", ["close", "cancel", "cancel before the answer"])
def test_disconnecting_reaches_the_server_immediately(way: str) -> None:
    gone = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        try:
            if way != "cancel before the answer":
                await response.prepare(request)
            while True:
                if response.prepared:
                    await response.write(f"data: {json.dumps(WORD)}\n\n".encode())
                await asyncio.sleep(0.01)
        finally:
            gone.set()

    async def listen(asking: Transport, begun: asyncio.Event) -> None:
        async for _ in asking.stream(CHAT, {}):
            begun.set()

    async def work() -> None:
        async with run_scripted(answer) as server, Transport(Endpoint(server.url)) as asking:
            if way == "close":
                async with aclosing(asking.stream(CHAT, {})) as events:
                    await anext(events)
            else:
                begun = asyncio.Event()
                task = asyncio.create_task(listen(asking, begun))
                if way == "cancel":
                    await begun.wait()
                else:
                    await asyncio.sleep(0.1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await asyncio.wait_for(gone.wait(), 2)

    run(work())


# What is waited for before anything is sent


def test_nothing_is_sent_before_the_hook_has_run() -> None:
    async def work() -> list[int]:
        seen: list[int] = []
        async with (
            run_scripted(in_turn(reply(200, {}))) as server,
            Transport(Endpoint(server.url)) as asking,
        ):

            async def ready() -> None:
                await asyncio.sleep(0.05)
                seen.append(len(server.requests))

            response = await asking.open("POST", CHAT, b"{}", [], SendState(ready))
            response.close()
            return [*seen, len(server.requests)]

    assert run(work()) == [0, 1]


@pytest.mark.parametrize(
    "error",
    [KeyError(), OSError(24, "Too many open files"), TimeoutError(), ValueError("odd")],
    ids=repr,
)
def test_an_error_of_the_hook_is_raised_and_nothing_is_sent(error: Exception) -> None:
    async def work() -> tuple[int, bool]:
        async with (
            run_scripted(in_turn(reply(200, {}))) as server,
            Transport(Endpoint(server.url)) as asking,
        ):

            async def ready() -> None:
                raise error

            sending = SendState(ready)
            with pytest.raises(type(error)) as caught:
                await asking.open("POST", CHAT, b"{}", [], sending)
            assert caught.value is error
            return len(server.requests), sending.is_sent

    assert run(work()) == (0, False)


def test_the_send_state_tells_a_broken_connection_from_an_unreachable_server() -> None:
    async def was_sent(endpoint: Endpoint) -> bool:
        sending = SendState()
        async with Transport(endpoint) as asking:
            with pytest.raises(ConnectionFailedError):
                await asking.open("POST", CHAT, b"{}", [], sending)
        return sending.is_sent

    async def work() -> tuple[bool, bool]:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        there = await was_sent(Endpoint(f"http://127.0.0.1:{port}"))
        server.close()
        await server.wait_closed()
        return there, await was_sent(Endpoint(f"http://127.0.0.1:{port}"))

    assert run(work()) == (True, False)
