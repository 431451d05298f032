"""ServerCounter: requests and texts, counted by the server that will get them.

Which way of asking a server understands is found out at the first use and remembered for the
process. Asking never raises: what cannot be had is None, and the caller goes on with its estimate.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal
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
from brim.providers.transport import encode_body

if TYPE_CHECKING:
    from brim.providers.endpoint import Endpoint
    from brim.providers.transport import Transport

SupportState = Literal["yes", "no", "unknown"]

MAX_COUNTS = 4_096
"""Counts that are kept."""
MAX_STATES = 1_000
"""Models of which it is known who counts them; their names may come from anybody."""
BASE_TIMEOUT = 2.0
"""Seconds for a small request; a large one gets more."""
BYTES_PER_SECOND = 100_000
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0
NOT_FOUND_STATUSES: Final = frozenset((404, 405, 501))
"""Statuses that say that there is no such thing here."""
INVALID_REQUEST_STATUSES: Final = frozenset((400, 413, 422))
"""Statuses that speak about this one request."""
AUTH_STATUSES: Final = frozenset((401, 403))
"""Statuses that speak about a key."""
EXTRA_TOKENS = 20_000
"""Tokens that a server may add to a request of its own: templates, hidden prompts, images."""


@dataclass(frozen=True, slots=True)
class CountSupport:
    """Whether a server counts, by which method, and how that is known."""

    state: SupportState
    method: str | None
    reason: str


@dataclass(slots=True)
class CountState:
    """What is known of one way of counting at one (endpoint, model)."""

    untried: list[CountMethod]
    proven: CountMethod | None = None
    reason: str = "not asked yet"
    failures: int = 0
    """In a row."""
    until: float = 0.0
    """When it may be asked again."""

    @property
    def verdict(self) -> CountSupport:
        if self.proven is not None:
            return CountSupport("yes", self.proven.name, self.reason)
        return CountSupport("unknown" if self.untried else "no", None, self.reason)

    def succeed(self, method: CountMethod) -> None:
        self.proven, self.failures, self.until = method, 0, 0.0
        self.reason = f"{method.path} has counted"

    def rule_out(self, method: CountMethod, reason: str, now: float) -> None:
        """This method is not understood here; one that has counted is only left alone a while."""
        if self.proven is not None:
            self.pause(reason, now)
            return
        self.untried.remove(method)
        self.reason = reason

    def pause(self, reason: str, now: float) -> None:
        """Not now. A server that has counted may fail once without being left alone."""
        self.failures += 1
        doubled = self.failures - (1 if self.proven is None else 2)
        if doubled >= 0:
            self.until = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(doubled, 10))
        if self.proven is None:
            self.reason = reason


class CountStates:
    """What is known of all servers."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, str, str], CountState] = OrderedDict()

    def of(self, endpoint: Endpoint, model: str, what: CountSubject) -> CountState:
        key = (endpoint.url + endpoint.prefix, endpoint.format, model, what)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = CountState(list(find_methods(endpoint, what)))
            if not found.untried:
                found.reason = f"{endpoint.host} is known to count none of these"
            if len(self._known) > MAX_STATES:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return found

    def clear(self) -> None:
        """Find everything out anew."""
        self._known.clear()


SHARED_STATES = CountStates()
"""Shared by all counters, so that a server is found out once."""


@dataclass(frozen=True, slots=True)
class _CountRequest:
    """What is to be counted, and whose headers go with it."""

    body: Mapping[str, Any]
    model: str
    what: CountSubject
    headers: Mapping[str, str] | None = None

    def digest(self) -> bytes:
        """What tells it from others: what servers count, and who asks."""
        counted = {key: value for key, value in self.body.items() if key not in UNCOUNTED_FIELDS}
        asked = [self.what, counted, dict(self.headers or {})]
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
        return blake2b(text.encode(), digest_size=16).digest()


@dataclass(slots=True)
class _PendingCount:
    """A question under way, and how many wait for its answer."""

    task: asyncio.Task[int | None]
    waiting: int = field(default=0)


class ServerCounter:
    """Counts with the server behind a connection; None means "not to be had", never an error."""

    def __init__(
        self,
        connection: Transport,
        *,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
        standings: CountStates = SHARED_STATES,
        patience: float = BASE_TIMEOUT,
    ) -> None:
        self.connection = connection
        self.enabled = enabled
        """Off means that not a single packet is sent."""
        self._clock = clock
        self._standings = standings
        self._patience = patience
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._flights: dict[bytes, _PendingCount] = {}
        self._probing: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def verdict(self, model: str, *, text: bool = False) -> CountSupport:
        """Whether the server counts whole requests (or plain texts) for this model."""
        if not self.enabled:
            return CountSupport("unknown", None, "counting with the server is switched off")
        return self._standing(model, "text" if text else "request").verdict

    async def count(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> int | None:
        """The tokens of a whole request in the endpoint's format, as the server counts them.

        `headers` are those of whoever wants to know, over the endpoint's own.
        """
        model = body.get("model")
        named = model if isinstance(model, str) else ""
        return await self._counted(_CountRequest(body, named, "request", headers))

    async def count_text(self, model: str, text: str) -> int | None:
        """The tokens of a plain text, without any structure around it."""
        if not isinstance(text, str):
            raise InputError(f"only text can be counted, not {type(text).__name__}")
        if not text:
            return 0
        return await self._counted(_CountRequest({"model": model, "text": text}, model, "text"))

    def _standing(self, model: str, what: CountSubject) -> CountState:
        return self._standings.of(self.connection.endpoint, model, what)

    async def _counted(self, question: _CountRequest) -> int | None:
        if not self.enabled:
            return None
        standing = self._standing(question.model, question.what)
        if standing.verdict.state == "no":
            return None
        try:
            digest = question.digest()
        except (TypeError, ValueError, RecursionError):
            return None
        if (known := self._counts.get(digest)) is not None:
            self._counts.move_to_end(digest)
            return known
        return await self._shared(digest, lambda: self._found(standing, question, digest))

    async def _shared(self, digest: bytes, ask: Callable[[], Awaitable[int | None]]) -> int | None:
        """Equal questions at the same time are one; it is dropped when nobody waits any more."""
        flight = self._flights.get(digest)
        if flight is None:
            flight = _PendingCount(asyncio.ensure_future(ask()))
            self._flights[digest] = flight
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                self._flights.pop(digest, None)
                flight.task.cancel()

    async def _found(
        self, standing: CountState, question: _CountRequest, digest: bytes
    ) -> int | None:
        if standing.proven is not None:
            tokens = await self._asked(standing, standing.proven, question)
        else:
            # One probe at a time: who comes meanwhile goes by what the first one finds.
            lock = self._probing.setdefault((question.model, question.what), asyncio.Lock())
            async with lock:
                tokens = await self._probed(standing, question)
        if tokens is not None:
            self._counts[digest] = tokens
            if len(self._counts) > MAX_COUNTS:
                self._counts.popitem(last=False)
        return tokens

    async def _probed(self, standing: CountState, question: _CountRequest) -> int | None:
        for method in (standing.proven,) if standing.proven else tuple(standing.untried):
            tokens = await self._asked(standing, method, question)
            if tokens is not None or standing.until > self._clock():
                return tokens
        if standing.untried and standing.proven is None:
            standing.reason = "not yet known: the server objected to what it was asked to count"
        return None

    async def _asked(
        self, standing: CountState, method: CountMethod, question: _CountRequest
    ) -> int | None:
        if standing.until > self._clock():
            return None
        raw = encode_body(method.question(question.body))
        try:
            answer = await self.connection.request_json(
                "POST",
                method.address(self.connection.endpoint),
                raw,
                timeout=self._patience + len(raw) / BYTES_PER_SECOND,
                retries=0,
                headers=question.headers,
            )
        except ProviderError as error:
            self._failed(standing, method, error, question)
            return None
        except InputError as error:
            standing.pause(f"not yet known: {error}", self._clock())
            return None
        tokens = validate_count(method.tokens(answer.body), raw, question.what)
        if tokens is None:
            self._ruled_out(standing, method, "answered with something that is no count")
        else:
            standing.succeed(method)
        return tokens

    def _failed(
        self,
        standing: CountState,
        method: CountMethod,
        error: ProviderError,
        question: _CountRequest,
    ) -> None:
        status = error.status
        if status in NOT_FOUND_STATUSES or status == 200:
            self._ruled_out(
                standing, method, "gave no count" if status == 200 else f"said {status}"
            )
        elif _is_invalid_request(error):
            # A text has no order or template that could be wrong: the question was not understood.
            if question.what == "text" and standing.proven is None:
                self._ruled_out(standing, method, f"said {status}")
        elif not self._is_about_asker(status, question):
            standing.pause(f"not yet known: {_describe_failure(error)}", self._clock())

    def _is_about_asker(self, status: int | None, question: _CountRequest) -> bool:
        """Whether a key is refused that is not the endpoint's: the next one may have a better."""
        brings_key = question.headers is not None and self.connection.endpoint.key is None
        return brings_key and status in AUTH_STATUSES

    def _ruled_out(self, standing: CountState, method: CountMethod, what: str) -> None:
        where = self.connection.endpoint.host + method.address(self.connection.endpoint)
        standing.rule_out(method, f"{where} {what}", self._clock())


def _is_invalid_request(error: ProviderError) -> bool:
    if isinstance(error, ContextLengthError) or error.status in INVALID_REQUEST_STATUSES:
        return True
    return errors.is_invalid_request(error)


def _describe_failure(error: ProviderError) -> str:
    if isinstance(error, ProviderTimeoutError):
        return "the server did not answer in time"
    if isinstance(error, ConnectionFailedError):
        return "the server cannot be reached"
    return f"the server said {error.status}"


_ELSEWHERE: Final = (b'"previous_response_id"', b'"conversation"', b'"file_id"', b'url"')
"""Signs that a request is longer than its bytes."""


def validate_count(tokens: object, raw: bytes, what: CountSubject) -> int | None:
    """The count, unless it cannot be one."""
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        return None
    bound = 4 * len(raw)
    if what == "request":
        bound += EXTRA_TOKENS
        if any(sign in raw for sign in _ELSEWHERE):
            return tokens
    return tokens if tokens <= bound else None
