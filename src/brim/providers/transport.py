"""Connection: requests to one endpoint, and the answers as they came."""

from __future__ import annotations

import asyncio
import json
import os
import random
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import aiohttp
from aiohttp.http import HttpProcessingError
from yarl import URL

from brim.errors import (
    ConnectionFailedError,
    InputError,
    ProviderError,
    ProviderTimeoutError,
    UnreachableError,
)
from brim.providers import errors
from brim.providers.http_connection import (
    ConnectionPool,
    Header,
    Response,
    SendState,
    encode_headers,
    encode_request_head,
    format_host,
)
from brim.providers.network import create_ssl_context, find_proxy
from brim.providers.sse import EventParser, ServerSentEvent
from brim.wire.reply_parser import find_error_object

if TYPE_CHECKING:
    from brim.providers.endpoint import Endpoint

T = TypeVar("T")
RequestBody = Mapping[str, Any] | bytes
Events = AsyncGenerator[dict[str, Any], None]

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Bytes of an answer that is not streamed, or of one event of a stream."""
MAX_ERROR_BYTES = 256 * 1024
FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
MAX_RETRY_AFTER = 60.0
"""A server that asks for more than this is not waited for."""
CONNECT_SECONDS = 10.0
"""Seconds to reach a server at all."""
DRAIN_SECONDS = 0.2
"""Seconds to wait for the end behind the last event, so that the connection can be used again."""
CLOSE_SECONDS = 2.0
"""Seconds to hang up when the interpreter ends."""
ANTHROPIC_VERSION = "2023-06-01"
_WITH_BODY: Final = ("POST", "PUT", "PATCH")
"""What says how long its body is, and be there none."""

_INHERITED: Final[list[ConnectionPool]] = []
"""Lines of the process that this one was forked from: to close them would hang up for both."""
_CERTIFICATE: Final = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)


@dataclass(frozen=True, slots=True)
class JsonResponse:
    """A whole answer, with the headers that tell one server from another."""

    body: Any
    headers: Mapping[str, str]


class Transport:
    """Sends requests to an endpoint; what goes wrong is one of `brim.errors`, without the key.

    Paths stand beside the endpoint's `url`: `endpoint.chat_path`, `/tokenize`. Use it as
    `async with`, or call `close`; it belongs to the event loop in which it is first used.
    """

    def __init__(
        self, endpoint: Endpoint, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self.endpoint = endpoint
        self._sleep = sleep
        self._lines: ConnectionPool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._first: Sequence[Header] = ()
        """The headers that each request begins with: whom it is for."""
        self._root = ""
        """What stands before a path, where a proxy has to be told."""
        self._abandoned: weakref.finalize[..., Transport] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up; a later request opens the connection anew."""
        lines, self._lines = self._lines, None
        if self._abandoned is not None:
            self._abandoned.detach()
        if lines is not None and self._process == os.getpid():
            await lines.close()

    async def get(
        self, path: str, *, timeout: float | None = None, retries: int | None = None
    ) -> Any:
        """The JSON at a path."""
        return (await self.answer("GET", path, timeout=timeout, retries=retries)).body

    async def post(
        self,
        path: str,
        body: RequestBody,
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> dict[str, Any]:
        """The whole answer to a request; an error that came with status 200 is raised as well."""
        answer = await self.answer("POST", path, body, timeout=timeout, retries=retries)
        if not isinstance(answer.body, dict):
            raise self._nonsense(path, "JSON that is not an object", answer.body)
        return answer.body

    async def answer(
        self,
        method: str,
        path: str,
        body: RequestBody | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        more: Mapping[str, str] | None = None,
    ) -> JsonResponse:
        """Any JSON answer. `timeout` bounds one attempt as a whole, beside the endpoint's own.

        `more` are headers of this one request, over those that each of them carries.
        """

        async def once() -> JsonResponse:
            try:
                async with asyncio.timeout(timeout) as bound:
                    return await self._exchange(method, path, body, more or {})
            except TimeoutError as error:
                if bound.expired() and not isinstance(error, ProviderError):
                    raise self._silent(timeout) from None
                raise

        return await self._trying(once, retries)

    async def opened(
        self,
        method: str,
        path: str,
        data: bytes | None,
        heads: Sequence[Header],
        sending: SendState | None = None,
    ) -> Response:
        """A response as it comes, whatever its status, for those who pass it on.

        What is sent are these headers alone; who gets the response closes it. `sending` knows
        whether the request went out, whatever comes of it.
        """
        sending = sending or SendState()
        try:
            return await self._sent(method, path, data, heads, sending)
        except InputError:
            raise  # a wrong setting, which no second try mends
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            if error is sending.objection:
                raise
            raise self._broken(error) from error

    @property
    def is_reached(self) -> bool:
        """Whether a request can go out at once, as it seems: nobody has to be called first."""
        return self._lines is not None and self._lines.has_idle

    async def stream(self, path: str, body: RequestBody) -> Events:
        """The events of a streamed answer, as they come.

        A request that is too long raises `RefusedError` before anything is yielded: events that
        only open a stream are held back until there is more. Any other error inside of the stream
        is an event. A server that does not stream gives its whole answer as one event. Closing
        the iterator (`contextlib.aclosing`) or cancelling its task hangs up at once.
        """
        response, held, events = await self._trying(lambda: self._begin(path, body), None)
        try:
            for event in held:
                yield event
            async for event in events:
                yield event
            await _drain(response)
        finally:
            response.close()
            await events.aclose()

    async def _exchange(
        self, method: str, path: str, body: RequestBody | None, more: Mapping[str, str]
    ) -> JsonResponse:
        response = await self._accepted(method, path, body, more)
        try:
            answer = _parse_json(await self.whole(response))
        except _NotJsonError as error:
            raise self._nonsense(
                path, f"what is not JSON ({response.content_type})", error.text
            ) from None
        finally:
            response.close()
        if isinstance(answer, dict):
            failure = errors.find_error(self.endpoint, path, answer)
            if failure is not None:
                raise failure
        return JsonResponse(answer, response.headers)

    async def _begin(
        self, path: str, body: RequestBody
    ) -> tuple[Response, list[dict[str, Any]], Events]:
        """Open a stream and read on until it is clear that the request was not refused."""
        response = await self._accepted("POST", path, body, {})
        events = self._events(response, path)
        try:
            return response, await self._openings(events, response, path), events
        except BaseException:
            response.close()
            await events.aclose()
            raise

    async def _openings(
        self, events: Events, response: Response, path: str
    ) -> list[dict[str, Any]]:
        """The events up to the first that says something."""
        held: list[dict[str, Any]] = []
        async for event in events:
            if (refused := errors.find_context_length_error(self.endpoint, event)) is not None:
                raise refused
            held.append(event)
            if errors.has_content(event):
                break
        if not held:
            raise self._nonsense(path, f"no event at all ({response.content_type})", None)
        return held

    async def _events(self, response: Response, path: str) -> Events:
        parser = EventParser()
        first = True
        while piece := await self.piece(response):
            if first and piece.strip():
                first = False
                if piece.lstrip().startswith(b"{"):
                    yield await self._unstreamed(response, path, piece)
                    return
            for event in parser.feed(piece):
                if event.data.strip() == "[DONE]":
                    return
                yield self._event(path, event)
            if parser.waiting > MAX_RESPONSE_BYTES:
                raise self._nonsense(path, f"an event of over {MAX_RESPONSE_BYTES:,} bytes", None)
        for event in parser.finish():
            if event.data.strip() != "[DONE]":
                yield self._event(path, event)

    async def _unstreamed(self, response: Response, path: str, begun: bytes) -> dict[str, Any]:
        try:
            answer = _parse_json(await self.whole(response, begun))
        except _NotJsonError as error:
            raise self._nonsense(path, "what is neither JSON nor events", error.text) from None
        return answer if isinstance(answer, dict) else {}

    def _event(self, path: str, event: ServerSentEvent) -> dict[str, Any]:
        try:
            found = _parse_json(event.data)
        except _NotJsonError as error:
            if event.name == "error":
                return {"type": "error", "error": {"message": event.data}}
            raise self._nonsense(path, "an event that is not JSON", error.text) from None
        if not isinstance(found, dict):
            raise self._nonsense(path, "an event that is not an object", found)
        if event.name == "error" and find_error_object(found) is None:
            return {"type": "error", "error": found}
        return found

    async def _accepted(
        self, method: str, path: str, body: RequestBody | None, more: Mapping[str, str]
    ) -> Response:
        """A response whose status is a success; any other is raised."""
        data = body if isinstance(body, bytes) or body is None else encode_body(body)
        sent = default_headers(self.endpoint) | dict(more)
        if data is not None:
            sent["Content-Type"] = "application/json"
        response = await self.opened(method, path, data, encode_headers(sent))
        if 200 <= response.status < 300:
            return response
        try:
            raw = await self.whole(response, bound=MAX_ERROR_BYTES, cut=True)
        except ProviderError:
            raw = b""
        finally:
            response.close()
        raise errors.error_from_response(
            self.endpoint, path, response.status, response.headers, raw
        )

    async def _sent(
        self,
        method: str,
        path: str,
        data: bytes | None,
        heads: Sequence[Header],
        sending: SendState,
    ) -> Response:
        lines = await self._lines_here()
        size = len(data or b"") if data is not None or method in _WITH_BODY else None
        head = encode_request_head(method, self._target(path), [*self._first, *heads], size)
        return await lines.ask(head, data, sending, is_bodiless=method == "HEAD")

    def _target(self, path: str) -> str:
        """What stands in a request for a path: the path as it was given, if it can be sent so."""
        address = URL(self.endpoint.beside(path), encoded=path.isascii())
        return f"{self._root}{address.raw_path_qs}"

    async def _lines_here(self) -> ConnectionPool:
        """The lines of this event loop; those of a loop that has ended are left behind."""
        lines, loop = self._lines, asyncio.get_running_loop()
        if lines is None:
            return self._open_lines()
        if self._loop is loop:
            return lines
        if self._process != os.getpid():
            _INHERITED.append(lines)
        elif self._loop is not None and self._loop.is_running():
            raise InputError("a connection belongs to one event loop, and that one still runs")
        else:
            await lines.close()
        if self._abandoned is not None:
            self._abandoned.detach()
        return self._open_lines()

    def _open_lines(self) -> ConnectionPool:
        endpoint = self.endpoint
        address, proxy = URL(endpoint.url), find_proxy(endpoint)
        first, self._root = {} if _names_host(endpoint) else {"Host": format_host(address)}, ""
        if proxy is not None and address.scheme == "http":
            first |= proxy.headers
            self._root = str(address.origin())
        self._first = encode_headers(first)
        self._lines = ConnectionPool(
            address,
            proxy,
            aiohttp.ClientTimeout(
                total=None,
                connect=min(CONNECT_SECONDS, endpoint.timeout),
                sock_read=endpoint.timeout,
            ),
            ssl=create_ssl_context() if address.scheme == "https" else True,
        )
        self._loop = loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._abandoned = weakref.finalize(self, _abandon, self._lines, loop)
        return self._lines

    async def whole(
        self,
        response: Response,
        begun: bytes = b"",
        *,
        bound: int = MAX_RESPONSE_BYTES,
        cut: bool = False,
    ) -> bytes:
        pieces, size = [begun], len(begun)
        while piece := await self.piece(response):
            pieces.append(piece)
            size += len(piece)
            if size > bound:
                if cut:
                    break
                raise self._nonsense(None, f"more than {bound:,} bytes", None)
        return b"".join(pieces)

    async def piece(self, response: Response) -> bytes:
        """The next bytes; none at the end."""
        content = response.content
        try:
            return await content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(error) from error

    async def _trying(self, once: Callable[[], Awaitable[T]], retries: int | None) -> T:
        retries = self.endpoint.retries if retries is None else retries
        for attempt in range(retries + 1):
            try:
                return await once()
            except ProviderError as error:
                wait = retry_delay(error, attempt)
                if attempt == retries or wait is None:
                    raise
            await self._sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _broken(self, error: Exception) -> ProviderError:
        host = self.endpoint.host
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return UnreachableError(
                f"{host} cannot be reached: nobody answers. Check the address and the network."
            )
        if isinstance(error, TimeoutError):
            return self._silent(None)
        if isinstance(error, aiohttp.ClientConnectorSSLError) and _is_plain_http(error):
            return UnreachableError(
                f"{host} does not speak https. Check whether the address begins with http://."
            )
        if isinstance(error, _CERTIFICATE):
            return UnreachableError(
                f"{host} shows a certificate that is not trusted: {error}. SSL_CERT_FILE can name "
                "a file with the certificates to trust."
            )
        if isinstance(error, aiohttp.ClientConnectorError):
            return UnreachableError(
                f"{host} cannot be reached: {error.os_error.strerror or error.os_error}. "
                "Check that the server runs, and that the address is right."
            )
        # The library's words about an answer that it cannot read speak of an error 400 that nobody
        # sent, and repeat the address.
        is_unread = isinstance(error, aiohttp.ClientPayloadError | HttpProcessingError)
        why = "" if is_unread else f": {error!s}".rstrip(": ")
        return ConnectionFailedError(
            f"the connection to {host} broke before the answer was whole{why}. Try again."
        )

    def _silent(self, seconds: float | None) -> ProviderTimeoutError:
        seconds = self.endpoint.timeout if seconds is None else seconds
        return ProviderTimeoutError(
            f"{self.endpoint.host} did not answer in {seconds:g} s. Raise the endpoint's `timeout` "
            "if the model needs longer."
        )

    def _nonsense(self, path: str | None, what: str, body: object) -> ProviderError:
        where = f" at {path}" if path is not None else ""
        return ProviderError(
            f"{self.endpoint.host} answered{where} with {what}. "
            "Check that the address is that of a model server.",
            status=200,
            body=errors.redact_key(self.endpoint, body) if isinstance(body, str) else body,
        )


def default_headers(endpoint: Endpoint) -> dict[str, str]:
    """What every request carries; the endpoint's own headers go before ours."""
    from brim import __version__

    found = {
        "User-Agent": f"brim/{__version__}",
        "Accept": "application/json, text/event-stream",
        "Accept-Encoding": "gzip, deflate",
    }
    if endpoint.format == "anthropic":
        found["anthropic-version"] = ANTHROPIC_VERSION
    found |= credential_headers(endpoint)
    given = {name.lower() for name in endpoint.headers}
    kept = {name: value for name, value in found.items() if name.lower() not in given}
    return kept | dict(endpoint.headers)


def _names_host(endpoint: Endpoint) -> bool:
    """Whether a header of its own says what the server is called."""
    return any(name.lower() == "host" for name in endpoint.headers)


def credential_headers(endpoint: Endpoint) -> dict[str, str]:
    """The headers that carry the endpoint's key."""
    if endpoint.key is None:
        return {}
    found = {}
    if endpoint.format == "anthropic":
        found["x-api-key"] = endpoint.key
    # Servers that only imitate Anthropic look for the key where OpenAI's clients put it.
    if endpoint.format != "anthropic" or endpoint.host != "api.anthropic.com":
        found["Authorization"] = f"Bearer {endpoint.key}"
    return found


def encode_body(body: Mapping[str, Any]) -> bytes:
    """A body as it goes out; half a surrogate pair, which UTF-8 cannot hold, goes as an escape."""
    compact = (",", ":")
    try:
        return json.dumps(dict(body), ensure_ascii=False, separators=compact).encode()
    except UnicodeEncodeError:
        return json.dumps(dict(body), separators=compact).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the request cannot be written as JSON: {error}") from None


def retry_delay(error: ProviderError, attempt: int) -> float | None:
    """Seconds to wait before the same request is sent again; None where that would not help."""
    if isinstance(error, ConnectionFailedError):
        if isinstance(error.__cause__, _CERTIFICATE):
            return None
    elif isinstance(error, ProviderTimeoutError) or not errors.is_retryable(error):
        return None
    if error.retry_after is not None:
        return error.retry_after if error.retry_after <= MAX_RETRY_AFTER else None
    wait: float = min(LONGEST_WAIT, FIRST_WAIT * 2**attempt)
    return wait * random.uniform(0.75, 1.25)


def _abandon(lines: ConnectionPool, loop: asyncio.AbstractEventLoop) -> None:
    """Hang up for an owner without `async` who did not; its loop runs in another thread."""
    if lines.closed or not loop.is_running():
        return
    closing = asyncio.run_coroutine_threadsafe(_close_pool(lines), loop)
    try:
        inside = asyncio.get_running_loop() is loop
    except RuntimeError:
        inside = False
    if not inside:
        with suppress(TimeoutError):
            closing.result(CLOSE_SECONDS)


async def _close_pool(lines: ConnectionPool) -> None:
    await lines.close()


def _is_plain_http(error: aiohttp.ClientConnectorSSLError) -> bool:
    """Whether the server answered to https with what is none."""
    reason = getattr(error.os_error, "reason", None)
    return reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


class _NotJsonError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _parse_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        shown = (
            text
            if isinstance(text, str)
            else text[: errors.BODY_CHARS * 4].decode("utf-8", "replace")
        )
        raise _NotJsonError(shown[: errors.BODY_CHARS]) from None


async def _drain(response: Response) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while await response.content.readany():
                pass
    except (aiohttp.ClientError, OSError):
        return
