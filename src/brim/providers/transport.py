"""Transport: requests to one endpoint, with retries, and responses as JSON or events."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Protocol, Self, TypeVar
from urllib.parse import quote, urlsplit

from brim.errors import (
    ConnectionFailedError,
    InputError,
    ProviderError,
    ProviderTimeoutError,
    UnreachableError,
)
from brim.providers import errors
from brim.providers.cloud_auth import Authorizer
from brim.providers.connection_pool import ConnectError, ConnectionPool, Origin
from brim.providers.endpoint import Endpoint, RootPath
from brim.providers.http_connection import (
    Header,
    Response,
    SendState,
    encode_headers,
    encode_request_head,
)
from brim.providers.network import create_ssl_context, find_proxy
from brim.providers.sse import EventParser, ServerSentEvent
from brim.providers.stream_hold import StreamHold
from brim.wire.reply_parser import find_error_object

T = TypeVar("T")
RequestBody = Mapping[str, Any] | bytes
Events = AsyncGenerator[dict[str, Any], None]

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Bytes of a response that is not streamed, or of one event of a stream."""
MAX_ERROR_BYTES = 256 * 1024
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.5, 8.0
MAX_RETRY_AFTER = 60.0
"""If a server asks to wait longer than this, the request is not retried."""
CONNECT_SECONDS = 10.0
DRAIN_SECONDS = 0.2
"""How long to wait for the end of a stream after its last event, to reuse the connection."""
ANTHROPIC_VERSION = "2023-06-01"
_METHODS_WITH_BODY: Final = ("POST", "PUT", "PATCH")
"""Methods that always send a `Content-Length`."""
_UNQUOTED: Final = "%/?:@&=+$,;!*'()[]~"
"""Reserved characters of a path and query, and `%` of those that are quoted already."""


@dataclass(frozen=True, slots=True)
class JsonResponse:
    """A complete JSON response."""

    body: Any
    headers: Mapping[str, str]
    """By lower-case name."""


class SendObserver(Protocol):
    """Follows the attempts to send a request."""

    async def before_send(self) -> None:
        """Runs immediately before an attempt is sent; nothing is sent if it raises."""

    def on_failure(self, error: Exception) -> None:
        """Runs when an attempt failed."""


class Transport:
    """Sends requests to an endpoint; failures raise `brim.errors`, without the key.

    Paths are relative to the endpoint's `url`: `endpoint.chat_path`, `/tokenize`. Use it with
    `async with`, or call `close`; it belongs to the event loop in which it is first used.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        authorizer: Authorizer | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.endpoint = endpoint
        self._authorizer = authorizer
        self._sleep = sleep
        self._pool: ConnectionPool | None = None
        self._first_headers: Sequence[Header] = ()
        """The headers at the beginning of every request: `Host`, and those for a proxy."""
        self._target_prefix = ""
        """What precedes a path in the request line."""
        self._origin = ""
        self._origin_prefix = ""
        """What precedes a path from the root of the host."""
        self._finalizer: weakref.finalize[..., Transport] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; a later request opens new ones."""
        pool, self._pool = self._pool, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if pool is not None:
            await pool.close()

    @property
    def has_idle_connection(self) -> bool:
        """Whether a request would probably not have to wait for a new connection."""
        return self._pool is not None and self._pool.has_idle

    async def get(self, path: str) -> Any:
        """Return the JSON at a path."""
        return (await self.request_json("GET", path)).body

    async def post(
        self, path: str, body: RequestBody, observer: SendObserver | None = None
    ) -> dict[str, Any]:
        """Return the response to a request; an error with status 200 is raised too."""
        response = await self.request_json("POST", path, body, observer=observer)
        if not isinstance(response.body, dict):
            raise self._invalid(path, "JSON that is not an object", response.body)
        return response.body

    async def request_json(
        self,
        method: str,
        path: str,
        body: RequestBody | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        headers: Mapping[str, str] | None = None,
        observer: SendObserver | None = None,
    ) -> JsonResponse:
        """Return any JSON response. `timeout` limits one attempt, in addition to the endpoint's.

        `headers` belong to this request and override those of every request.
        """

        async def attempt() -> JsonResponse:
            try:
                async with asyncio.timeout(timeout) as limit:
                    return await self._exchange(method, path, body, headers or {}, observer)
            except TimeoutError as error:
                if limit.expired() and not isinstance(error, ProviderError):
                    raise self._timed_out(timeout) from None
                raise

        return await self._retry(attempt, retries, observer)

    async def open(
        self,
        method: str,
        path: str,
        data: bytes | None,
        headers: Sequence[Header],
        state: SendState | None = None,
    ) -> Response:
        """Send a request with exactly these headers and return the response of any status.

        The caller must close it. `state` knows whether the request was sent, even if this raises.
        """
        state = state or SendState()
        has_length = data is not None or method in _METHODS_WITH_BODY
        size = len(data or b"") if has_length else None
        try:
            pool = self._get_pool()
            sent, target = [*self._first_headers, *headers], self._target(path)
            if self._authorizer is not None:
                url = target if self._origin_prefix else f"{self._origin}{target}"
                sent += encode_headers(await self._authorizer.headers(method, url, data))
            head = encode_request_head(method, target, sent, size)
            return await pool.request(head, data, state, is_bodiless=method == "HEAD")
        except (InputError, ProviderError):
            raise  # an invalid setting, which a retry does not fix, or no credentials
        except (ConnectError, OSError, ValueError) as error:
            if error is state.hook_error:
                raise
            raise self._connection_error(error) from error

    async def stream(
        self, path: str, body: RequestBody, observer: SendObserver | None = None
    ) -> Events:
        """Yield the events of a streamed response as they arrive.

        A request that is too long raises `ContextLengthError` before anything is yielded: events
        that only open a stream are held back until one with content follows. Any other error
        inside the stream is an event. A server that does not stream yields its whole response as
        one event. Closing the iterator (`contextlib.aclosing`) or cancelling its task closes the
        connection immediately.
        """
        response, held, events = await self._retry(
            lambda: self._open_stream(path, body, observer), None, observer
        )
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
        self,
        method: str,
        path: str,
        body: RequestBody | None,
        headers: Mapping[str, str],
        observer: SendObserver | None,
    ) -> JsonResponse:
        response = await self._open_checked(method, path, body, headers, observer)
        try:
            raw = await self.read_all(response)
        finally:
            response.close()
        parsed = self._parse_json(path, raw, f"a body that is not JSON ({response.content_type})")
        error = errors.find_error(self.endpoint, path, parsed) if isinstance(parsed, dict) else None
        if error is not None:
            raise error
        return JsonResponse(parsed, response.headers)

    async def _open_stream(
        self, path: str, body: RequestBody, observer: SendObserver | None
    ) -> tuple[Response, list[dict[str, Any]], Events]:
        """Open a stream and read until a context-length error is ruled out."""
        response = await self._open_checked("POST", path, body, {}, observer)
        events = self._read_events(response, path)
        try:
            return response, await self._read_opening(events, response, path), events
        except BaseException:
            response.close()
            await events.aclose()
            raise

    async def _read_opening(
        self, events: Events, response: Response, path: str
    ) -> list[dict[str, Any]]:
        """Return the events up to the first with content."""
        hold = StreamHold(self.endpoint)
        async for event in events:
            hold.add(event)
            if hold.error is not None:
                raise hold.error
            if hold.is_over:
                break
        if not hold.events:
            raise self._invalid(path, f"no events ({response.content_type})", None)
        return hold.events

    async def _read_events(self, response: Response, path: str) -> Events:
        parser = EventParser()
        is_first = True
        while chunk := await self.read_chunk(response):
            if is_first and chunk.strip():
                is_first = False
                if chunk.lstrip().startswith(b"{"):
                    raw = await self.read_all(response, chunk)
                    parsed = self._parse_json(path, raw, "neither JSON nor events")
                    yield parsed if isinstance(parsed, dict) else {}
                    return
            for event in parser.feed(chunk):
                if event.data.strip() == "[DONE]":
                    return
                yield self._parse_event(path, event)
            if parser.pending_bytes > MAX_RESPONSE_BYTES:
                raise self._invalid(path, f"an event of over {MAX_RESPONSE_BYTES:,} bytes", None)
        for event in parser.finish():
            if event.data.strip() != "[DONE]":
                yield self._parse_event(path, event)

    def _parse_event(self, path: str, event: ServerSentEvent) -> dict[str, Any]:
        try:
            parsed = self._parse_json(path, event.data, "an event that is not JSON")
        except ProviderError:
            if event.name != "error":
                raise
            return {"type": "error", "error": {"message": event.data}}
        if not isinstance(parsed, dict):
            raise self._invalid(path, "an event that is not an object", parsed)
        if event.name == "error" and find_error_object(parsed) is None:
            return {"type": "error", "error": parsed}
        return parsed

    async def _open_checked(
        self,
        method: str,
        path: str,
        body: RequestBody | None,
        headers: Mapping[str, str],
        observer: SendObserver | None,
    ) -> Response:
        """Return a response whose status is a success; raise the error of any other."""
        data = body if isinstance(body, bytes) or body is None else encode_body(body)
        sent = default_headers(self.endpoint) | dict(headers)
        sent = {name: value for name, value in sent.items() if value}
        if data is not None:
            sent["Content-Type"] = "application/json"
        state = SendState(None if observer is None else observer.before_send)
        response = await self.open(method, path, data, encode_headers(sent), state)
        if 200 <= response.status < 300:
            return response
        try:
            raw = await self.read_all(response, limit=MAX_ERROR_BYTES, truncate=True)
        except ProviderError:
            raw = b""
        finally:
            response.close()
        raise errors.error_from_response(
            self.endpoint, path, response.status, response.headers, raw
        )

    def _target(self, path: str) -> str:
        """Return the request target for a path; only characters that cannot be sent are quoted."""
        before = self._origin_prefix if isinstance(path, RootPath) else self._target_prefix
        target = (before + path).partition("#")[0].removesuffix("?")
        return target if target.isascii() else quote(target, safe=_UNQUOTED)

    def _get_pool(self) -> ConnectionPool:
        """Return the pool of this event loop; the pool of a loop that has ended is abandoned."""
        if self._pool is not None:
            if self._pool.belongs_to_running_loop:
                return self._pool
            self._pool.abandon()
        if self._finalizer is not None:
            self._finalizer.detach()
        return self._open_pool()

    def _open_pool(self) -> ConnectionPool:
        endpoint = self.endpoint
        origin, proxy = Origin.parse(endpoint.url), find_proxy(endpoint)
        has_host = any(name.lower() == "host" for name in endpoint.headers)
        first = {} if has_host else {"Host": origin.authority}
        self._origin, self._origin_prefix = str(origin), ""
        if proxy is not None and origin.scheme == "http":
            first |= proxy.headers
            self._origin_prefix = str(origin)
        self._target_prefix = self._origin_prefix + urlsplit(endpoint.url).path
        self._first_headers = encode_headers(first)
        needs_tls = origin.scheme == "https" or (proxy is not None and proxy.is_secure)
        self._pool = ConnectionPool(
            origin,
            proxy,
            connect_seconds=min(CONNECT_SECONDS, endpoint.timeout),
            read_seconds=endpoint.timeout,
            ssl_context=create_ssl_context() if needs_tls else None,
        )
        self._finalizer = weakref.finalize(self, self._pool.close_from_any_thread)
        return self._pool

    async def read_all(
        self,
        response: Response,
        start: bytes = b"",
        *,
        limit: int = MAX_RESPONSE_BYTES,
        truncate: bool = False,
    ) -> bytes:
        """Return the whole body after `start`; over the limit, raise or stop reading."""
        chunks, size = [start], len(start)
        while chunk := await self.read_chunk(response):
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                if truncate:
                    break
                raise self._invalid(None, f"more than {limit:,} bytes", None)
        return b"".join(chunks)

    async def read_chunk(self, response: Response) -> bytes:
        """Return the next bytes of a body; none at its end."""
        try:
            return await response.read()
        except OSError as error:
            raise self._connection_error(error) from error

    async def _retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        retries: int | None,
        observer: SendObserver | None,
    ) -> T:
        retries = self.endpoint.retries if retries is None else retries
        for number in range(retries + 1):
            try:
                return await attempt()
            except ProviderError as error:
                if observer is not None:
                    observer.on_failure(error)
                delay = retry_delay(error, number)
                if number == retries or delay is None:
                    raise
            await self._sleep(delay)
        raise AssertionError("the last attempt returns or raises")

    def _connection_error(self, error: Exception) -> ProviderError:
        if isinstance(error, ConnectError):
            return self._unreachable(error.__cause__)
        if isinstance(error, TimeoutError):
            return self._timed_out(None)
        reason = f" ({error})".removesuffix(" ()")
        return ConnectionFailedError(
            f"The connection to {self.endpoint.host} broke before the response was complete"
            f"{reason}. Try again."
        )

    def _unreachable(self, cause: BaseException | None) -> UnreachableError:
        host = self.endpoint.host
        if isinstance(cause, TimeoutError):
            return UnreachableError(
                f"Connecting to {host} timed out. Check the address and the network."
            )
        if isinstance(cause, ssl.SSLError) and _is_plain_http(cause):
            return UnreachableError(
                f"{host} does not support https. Check whether the address begins with http://."
            )
        if isinstance(cause, ssl.SSLError):
            return UnreachableError(
                f"The TLS certificate of {host} is not trusted: {cause}. Set SSL_CERT_FILE to a "
                "file with the certificates to trust."
            )
        reason = getattr(cause, "strerror", None) or str(cause)
        return UnreachableError(
            f"{host} cannot be reached: {reason}. "
            "Check that the server is running and that the address is correct."
        )

    def _timed_out(self, seconds: float | None) -> ProviderTimeoutError:
        seconds = self.endpoint.timeout if seconds is None else seconds
        return ProviderTimeoutError(
            f"{self.endpoint.host} did not respond within {seconds:g} s. Increase the endpoint's "
            "`timeout` if the model needs longer."
        )

    def _parse_json(self, path: str, text: str | bytes, problem: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            if isinstance(text, bytes):
                text = text[: errors.BODY_CHARS * 4].decode("utf-8", "replace")
            raise self._invalid(path, problem, text[: errors.BODY_CHARS]) from None

    def _invalid(self, path: str | None, content: str, body: object) -> ProviderError:
        at = f" at {path}" if path is not None else ""
        return ProviderError(
            f"{self.endpoint.host} returned {content}{at}. "
            "Check that the address belongs to a model server.",
            status=200,
            body=errors.redact_key(self.endpoint, body) if isinstance(body, str) else body,
        )


def default_headers(endpoint: Endpoint) -> dict[str, str]:
    """Return the headers of every request; the endpoint's own override the defaults."""
    found = {
        "User-Agent": f"brim/{version('brim')}",
        "Accept": "application/json, text/event-stream",
        "Accept-Encoding": "gzip, deflate",
    }
    if endpoint.format == "anthropic":
        found["anthropic-version"] = ANTHROPIC_VERSION
    found |= credential_headers(endpoint)
    given = {name.lower() for name in endpoint.headers}
    kept = {name: value for name, value in found.items() if name.lower() not in given}
    return kept | dict(endpoint.headers)


def credential_headers(endpoint: Endpoint) -> dict[str, str]:
    """Return the headers that carry the endpoint's key."""
    if endpoint.key is None:
        return {}
    if endpoint.key_header:
        return {endpoint.key_header: endpoint.key}
    found = {}
    if endpoint.format == "gemini":
        return {"x-goog-api-key": endpoint.key}
    if endpoint.format == "anthropic":
        found["x-api-key"] = endpoint.key
    # Servers that imitate Anthropic's API expect the key where OpenAI's clients put it.
    if endpoint.format != "anthropic" or endpoint.host != "api.anthropic.com":
        found["Authorization"] = f"Bearer {endpoint.key}"
    return found


def encode_body(body: Mapping[str, Any]) -> bytes:
    """Encode a body as JSON; a lone surrogate, which servers reject, becomes U+FFFD."""
    try:
        text = json.dumps(dict(body), ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"The request cannot be encoded as JSON: {error}") from None
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def retry_delay(error: ProviderError, attempt: int) -> float | None:
    """Return the seconds before the next attempt; None if a retry would not help."""
    if isinstance(error, ConnectionFailedError):
        if isinstance(error.__cause__, ConnectError) and isinstance(
            error.__cause__.__cause__, ssl.SSLError
        ):
            return None
    elif isinstance(error, ProviderTimeoutError) or not errors.is_retryable(error):
        return None
    if error.retry_after is not None:
        return error.retry_after if error.retry_after <= MAX_RETRY_AFTER else None
    delay: float = min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2**attempt)
    return delay * random.uniform(0.75, 1.25)


def _is_plain_http(error: ssl.SSLError) -> bool:
    """Whether the server answered a TLS handshake with something else."""
    return error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


async def _drain(response: Response) -> None:
    with suppress(OSError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while await response.read():
                pass
