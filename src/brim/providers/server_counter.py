"""ServerCounter: token counts from the server that will receive the request.

The method that a server supports is detected at the first use and remembered for the process.
Counting never raises: if there is no count, the result is None and the caller uses its estimate.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, Literal
from weakref import WeakValueDictionary

from brim.errors import (
    ConnectionFailedError,
    ContextLengthError,
    InputError,
    ProviderError,
    ProviderTimeoutError,
)
from brim.providers import errors
from brim.providers.count_methods import UNCOUNTED_FIELDS, CountMethod, CountSubject, find_methods
from brim.providers.endpoint import Endpoint
from brim.providers.text_count import StructureReports, TextRequest
from brim.providers.transport import Transport, encode_body
from brim.wire.formats import FORMATS

SupportState = Literal["yes", "no", "unknown"]

MAX_COUNTS = 4_096
"""Counts that are cached."""
MAX_STATES = 1_000
"""Models whose state is remembered; clients choose the names, so the number is limited."""
BASE_TIMEOUT = 2.0
"""Seconds for a small request; a large one gets more."""
BYTES_PER_SECOND = 100_000
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0
INVALID_REQUEST_STATUSES: Final = frozenset((400, 413, 422))
"""Statuses that concern this one request."""
AUTH_STATUSES: Final = frozenset((401, 403))
"""Statuses that concern the key."""
EXTRA_TOKENS = 20_000
"""Tokens that a server may add to a request: templates, hidden prompts, images."""
MAX_CONCURRENT: Final = 8
"""Concurrent requests to a server that counts one text at a time."""


@dataclass(frozen=True, slots=True)
class CountSupport:
    """Whether a server counts, by which method, and the reason."""

    state: SupportState
    method: str | None
    reason: str


@dataclass(slots=True)
class CountState:
    """What is known about counting requests, or text, for one model at one endpoint."""

    untried: list[CountMethod]
    proven: CountMethod | None = None
    reason: str = "not tried yet"
    failures: int = 0
    """Consecutive failures."""
    paused_until: float = 0.0
    rejects_batches: bool = False
    """Whether the server counts only one text at a time."""
    structure: StructureReports = field(default_factory=StructureReports)
    """What replies have shown about requests that were counted by their texts."""

    @property
    def support(self) -> CountSupport:
        if self.proven is not None:
            return CountSupport("yes", self.proven.name, self.reason)
        return CountSupport("unknown" if self.untried else "no", None, self.reason)

    def succeed(self, method: CountMethod) -> None:
        self.proven, self.failures, self.paused_until = method, 0, 0.0
        self.reason = f"{method.path} works"

    def rule_out(self, method: CountMethod, reason: str, now: float) -> None:
        """Drop a method that the server does not support; a proven one is only paused."""
        if self.proven is not None:
            self.pause(reason, now)
            return
        self.untried.remove(method)
        self.reason = reason

    def pause(self, reason: str, now: float) -> None:
        """Do not count for a while; a proven method may fail once without a pause."""
        self.failures += 1
        doubled = self.failures - (1 if self.proven is None else 2)
        if doubled >= 0:
            self.paused_until = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(doubled, 10))
        if self.proven is None:
            self.reason = reason


class CountStates:
    """The states of all endpoints and models."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, str, str], CountState] = OrderedDict()

    def find(self, endpoint: Endpoint, model: str, subject: CountSubject) -> CountState:
        key = (endpoint.url + endpoint.prefix, endpoint.format, model, subject)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = CountState(list(find_methods(endpoint, subject)))
            if not found.untried:
                found.reason = f"{endpoint.host} does not count these"
            if len(self._known) > MAX_STATES:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return found

    def clear(self) -> None:
        """Detect everything again."""
        self._known.clear()


SHARED_STATES = CountStates()
"""Shared by all counters, so that the methods of a server are detected once."""


@dataclass(frozen=True, slots=True)
class _CountRequest:
    """What to count, and the headers of the client that wants to know."""

    body: Mapping[str, Any]
    model: str
    subject: CountSubject
    headers: Mapping[str, str] | None = None
    is_smallest: bool = False
    """Whether a server that supports the method has no reason to reject the request."""

    def digest(self) -> bytes:
        """Return a key for everything that affects the count."""
        counted = {key: value for key, value in self.body.items() if key not in UNCOUNTED_FIELDS}
        headers = dict(self.headers or {}) if self.subject == "request" else {}
        parts = [self.subject, counted, headers]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return blake2b(text.encode(), digest_size=16).digest()


@dataclass(slots=True)
class _PendingCount:
    """A count request in flight, and the number of callers that wait for it."""

    task: asyncio.Task[int | None]
    waiters: int = 0


class ServerCounter:
    """Counts with the server of a transport; None means that there is no count, never an error."""

    def __init__(
        self,
        transport: Transport,
        *,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
        states: CountStates = SHARED_STATES,
        timeout: float = BASE_TIMEOUT,
    ) -> None:
        self.transport = transport
        self.enabled = enabled
        """If False, nothing is sent."""
        self._clock = clock
        self._states = states
        self._timeout = timeout
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._pending: dict[bytes, _PendingCount] = {}
        self._probe_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = (
            WeakValueDictionary()
        )

    def support(self, model: str, *, text: bool = False) -> CountSupport:
        """Return whether the server counts complete requests (or plain text) for this model."""
        if not self.enabled:
            return CountSupport("unknown", None, "counting with the server is disabled")
        return self._state(model, "text" if text else "request").support

    async def count(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> int | None:
        """Return the server's count of a complete request in the endpoint's format.

        It is a `TextCount` if the server counts only texts. `headers` are those of the client that
        wants to know; they override the endpoint's own.
        """
        model = body.get("model")
        name = model if isinstance(model, str) else ""
        tokens = await self._count(_CountRequest(body, name, "request", headers))
        if tokens is None and self.support(name).state == "no":
            return await self._count_parts(body, name, headers)
        return tokens

    async def count_text(
        self, model: str, text: str, headers: Mapping[str, str] | None = None
    ) -> int | None:
        """Return the server's count of plain text, without message structure."""
        if not isinstance(text, str):
            raise InputError(f"Invalid text: expected a string, got {type(text).__name__}.")
        return await self._count(_text_request(model, text, headers)) if text else 0

    async def _count_parts(
        self, body: Mapping[str, Any], model: str, headers: Mapping[str, str] | None
    ) -> int | None:
        """Return the tokens of a request whose texts the server counts."""
        if self.support(model, text=True).state == "no":
            return None
        try:
            request = TextRequest(body, FORMATS[self.transport.endpoint.format], model)
        except InputError:
            return None
        counts = await self._count_texts(model, request.texts, headers)
        if counts is None:
            return None
        return self._state(model, "text").structure.correct(request, request.count(counts))

    def record_report(self, body: Mapping[str, Any], tokens: int) -> None:
        """Record the reported size of a request; it improves counts by texts alone."""
        model = body.get("model")
        name = model if isinstance(model, str) else ""
        if self.support(name, text=True).state != "yes" or self.support(name).state != "no":
            return
        request = TextRequest(body, FORMATS[self.transport.endpoint.format], name)
        counts = {
            text: self._counts.get(_text_request(name, text).digest()) for text in request.texts
        }
        known = {text: count for text, count in counts.items() if count is not None}
        if len(known) == len(counts):
            structure = self._state(name, "text").structure
            structure.record(request, request.count(known), tokens)

    async def _count_texts(
        self, model: str, texts: Sequence[str], headers: Mapping[str, str] | None
    ) -> dict[str, int] | None:
        """Return the server's counts of texts, in as few requests as possible."""
        digests = {text: _text_request(model, text).digest() for text in texts}
        counts = {text: self._counts.get(digest) for text, digest in digests.items()}
        missing = [text for text, tokens in counts.items() if tokens is None]
        state = self._state(model, "text")
        if missing and state.proven is None:  # the shortest text shows how the server counts
            await self.count_text(model, min(missing, key=len), headers)
        if len(missing) > 1 and state.proven is not None and state.proven.is_batched:
            for text, tokens in (await self._count_batch(state, model, missing, headers)).items():
                self._keep(digests[text], tokens)
                counts[text] = tokens
        missing = [text for text in missing if counts[text] is None]
        for start in range(0, len(missing), MAX_CONCURRENT):
            part = missing[start : start + MAX_CONCURRENT]
            each = await asyncio.gather(*(self.count_text(model, text, headers) for text in part))
            counts.update(zip(part, each, strict=True))
        known = {text: tokens for text, tokens in counts.items() if tokens is not None}
        return known if len(known) == len(counts) else None

    async def _count_batch(
        self,
        state: CountState,
        model: str,
        texts: Sequence[str],
        headers: Mapping[str, str] | None,
    ) -> dict[str, int]:
        """Return the counts of texts from one request; empty if there are none."""
        method = state.proven
        if method is None or state.rejects_batches:
            return {}
        raw = encode_body(method.build_batch(model, texts))
        request = _text_request(model, "", headers)
        lengths = method.read_batch(await self._post(state, method, raw, request))
        if len(lengths) != len(texts) or sum(lengths) > 4 * len(raw):
            state.rejects_batches = state.paused_until <= self._clock()
            return {}
        return dict(zip(texts, lengths, strict=True))

    def _state(self, model: str, subject: CountSubject) -> CountState:
        return self._states.find(self.transport.endpoint, model, subject)

    async def _count(self, request: _CountRequest) -> int | None:
        if not self.enabled:
            return None
        state = self._state(request.model, request.subject)
        if state.support.state == "no":
            return None
        try:
            digest = request.digest()
        except (TypeError, ValueError, RecursionError):
            return None
        if (known := self._counts.get(digest)) is not None:
            self._counts.move_to_end(digest)
            return known
        return await self._share(digest, lambda: self._request_count(state, request, digest))

    async def _share(
        self, digest: bytes, request: Callable[[], Awaitable[int | None]]
    ) -> int | None:
        """Send equal concurrent requests once; cancel when no caller waits any more."""
        pending = self._pending.get(digest)
        if pending is None:
            pending = _PendingCount(asyncio.ensure_future(request()))
            self._pending[digest] = pending
        pending.waiters += 1
        try:
            return await asyncio.shield(pending.task)
        finally:
            pending.waiters -= 1
            if not pending.waiters:
                self._pending.pop(digest, None)
                pending.task.cancel()

    async def _request_count(
        self, state: CountState, request: _CountRequest, digest: bytes
    ) -> int | None:
        if state.proven is not None:
            tokens = await self._try_method(state, state.proven, request)
        else:
            # One probe at a time: later callers use what the first one detects.
            lock = self._probe_locks.setdefault((request.model, request.subject), asyncio.Lock())
            async with lock:
                tokens = await self._probe(state, request)
        if tokens is not None:
            self._keep(digest, tokens)
        return tokens

    def _keep(self, digest: bytes, tokens: int) -> None:
        self._counts[digest] = tokens
        if len(self._counts) > MAX_COUNTS:
            self._counts.popitem(last=False)

    async def _probe(self, state: CountState, request: _CountRequest) -> int | None:
        for method in (state.proven,) if state.proven else tuple(state.untried):
            tokens = await self._try_method(state, method, request)
            if state.proven is not None or state.paused_until > self._clock():
                return tokens
        if state.untried and state.proven is None:
            state.reason = "unknown: the server rejected the requests so far"
        return None

    async def _try_method(
        self, state: CountState, method: CountMethod, request: _CountRequest
    ) -> int | None:
        try:
            raw = encode_body(method.build_body(request.body))
        except InputError:  # it has no form in the method's own format
            return None
        response = await self._post(state, method, raw, request)
        if response is None:
            return None
        tokens = validate_count(method.read_tokens(response), raw, request.subject)
        if tokens is None:
            self._rule_out(state, method, "did not return a count")
        else:
            state.succeed(method)
        return tokens

    def _smallest(self, request: _CountRequest) -> _CountRequest:
        """Return a request that shows whether a method that rejected this one is supported."""
        turns = [{"role": "user", "content": "Hello"}]
        form = FORMATS[self.transport.endpoint.format]
        body = form.build(turns, model=request.model, reply=1)
        return replace(request, body=body, is_smallest=True)

    async def _post(
        self, state: CountState, method: CountMethod, raw: bytes, request: _CountRequest
    ) -> object:
        """Return the response to a request for a count; None if there is none."""
        if state.paused_until > self._clock():
            return None
        try:
            response = await self.transport.request_json(
                "POST",
                method.address(self.transport.endpoint, request.model),
                raw,
                timeout=self._timeout + len(raw) / BYTES_PER_SECOND,
                retries=0,
                headers=method.build_headers(self.transport.endpoint, request.headers),
            )
        except ProviderError as error:
            await self._handle_failure(state, method, error, request)
            return None
        except InputError as error:
            state.pause(f"unknown: {error}", self._clock())
            return None
        return {} if response.body is None else response.body

    async def _handle_failure(
        self,
        state: CountState,
        method: CountMethod,
        error: ProviderError,
        request: _CountRequest,
    ) -> None:
        status, is_too_long = error.status, isinstance(error, ContextLengthError)
        if status == 200:
            self._rule_out(state, method, "did not return a count")
        elif status in errors.NOT_FOUND_STATUSES:
            self._rule_out(state, method, f"returned {status}")
        elif is_too_long or status in INVALID_REQUEST_STATUSES or errors.is_invalid_request(error):
            if state.proven is None and request.is_smallest:
                self._rule_out(state, method, f"returned {status}")
            elif state.proven is None:
                await self._try_method(state, method, self._smallest(request))
        else:
            has_client_key = request.headers is not None and self.transport.endpoint.key is None
            if not has_client_key or status not in AUTH_STATUSES:  # the next client has its own
                state.pause(f"unknown: {_describe_failure(error)}", self._clock())

    def _rule_out(self, state: CountState, method: CountMethod, problem: str) -> None:
        where = self.transport.endpoint.host + method.address(self.transport.endpoint, "{model}")
        state.rule_out(method, f"{where} {problem}", self._clock())


def _text_request(model: str, text: str, headers: Mapping[str, str] | None = None) -> _CountRequest:
    # Plain text has no roles or template to reject.
    return _CountRequest({"model": model, "text": text}, model, "text", headers, is_smallest=True)


def _describe_failure(error: ProviderError) -> str:
    if isinstance(error, ProviderTimeoutError):
        return "the server did not respond in time"
    if isinstance(error, ConnectionFailedError):
        return "the server cannot be reached"
    return f"the server returned {error.status}"


_EXTERNAL_CONTENT: Final = (b'"previous_response_id"', b'"conversation"', b'"file_id"', b'url"')
"""Fields that refer to content outside the request."""


def validate_count(tokens: object, raw: bytes, subject: CountSubject) -> int | None:
    """Return the count if it is plausible for the request's size, else None."""
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        return None
    limit = 4 * len(raw)
    if subject == "request":
        limit += EXTRA_TOKENS
        if any(field in raw for field in _EXTERNAL_CONTENT):
            return tokens
    return tokens if tokens <= limit else None
