"""Which upstream a request tries first, and which one after a failure.

First come the upstreams of its model, in the order of its conversation, then the fallbacks of the
one that failed. A route that does not answer at present is tried last.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

from brim.config import TEMPORARY_PROBLEMS, UpstreamProblem
from brim.errors import (
    ConnectionFailedError,
    ContextOverflowError,
    ProviderError,
    ProviderTimeoutError,
)
from brim.gateway.affinity import rank_by_weight
from brim.gateway.errors import GatewayError
from brim.gateway.model_route import ModelRoute
from brim.gateway.routes import ModelRoutes
from brim.providers.errors import RETRYABLE_STATUSES
from brim.wire.formats import EMBEDDINGS, BodyFormat

ACCESS_STATUSES: Final = (401, 402, 403, 404)
"""Statuses about the key or the model's name."""
_PROBLEMS_BY_STATUS: Final[dict[int, UpstreamProblem]] = {
    **dict.fromkeys(RETRYABLE_STATUSES, "server_error"),
    **dict.fromkeys(ACCESS_STATUSES, "access"),
    408: "timeout",
    429: "rate_limit",
}


def classify_status(status: int) -> UpstreamProblem | None:
    """Return the problem behind the status of a response; None if it is about the request."""
    return _PROBLEMS_BY_STATUS.get(status)


def classify_failure(error: Exception) -> UpstreamProblem | None:
    """Return the problem behind an exception; None if it is about the request."""
    match error:
        case ContextOverflowError():
            return "context_length"
        case ProviderTimeoutError():
            return "timeout"
        case ConnectionFailedError():
            return "unreachable"
        case ProviderError():
            return "server_error"
        case _:
            return None


class RouteOrder:
    """The routes of one request, in the order in which they are tried."""

    def __init__(
        self, routes: ModelRoutes, model: object, format: BodyFormat, conversation: ConversationOf
    ) -> None:
        """Raise `GatewayError` if no upstream serves the model in this format."""
        self._routes = routes
        self._format = format
        self._conversation = conversation
        self._tried: list[ModelRoute] = []
        self._next = deque(self._rank(routes.candidates(model, format)))
        self._fallbacks: deque[str] = deque()
        self._last_resort: list[ModelRoute] = []
        self.primary = self._next[0]
        """The first route of the requested model; it may get the client's own key."""
        if not self.primary.health.is_available(time.monotonic()):
            self._prefer_fallback()

    def first(self) -> ModelRoute:
        return self._take(self._next.popleft())

    def following(self, failed: ModelRoute, problem: UpstreamProblem) -> ModelRoute | None:
        """Return the route to try after a failure; None if there is none left."""
        if problem == "context_length":
            self._next.clear()  # the other upstreams of a model have the same window
        elif self._next:
            return self._take(self._next.popleft())
        self._fallbacks += self._fallbacks_for(failed, problem)
        while self._fallbacks:
            found = [each for each in self._find(self._fallbacks.popleft()) if self._is_new(each)]
            if found:
                self._next.extend(found)
                return self._take(self._next.popleft())
        if self._last_resort:
            self._next.extend(self._last_resort)
            self._last_resort = []
            return self._take(self._next.popleft())
        return None

    def _fallbacks_for(self, route: ModelRoute, problem: UpstreamProblem) -> Sequence[str]:
        if self._format is EMBEDDINGS:
            return ()  # vectors of another model cannot be compared with this one's
        return route.upstream.config.fallbacks_for(problem)

    def _prefer_fallback(self) -> None:
        """Begin with an available fallback, because the model's own upstreams do not answer."""
        now = time.monotonic()
        chains = (self._fallbacks_for(self.primary, problem) for problem in TEMPORARY_PROBLEMS)
        names = list(dict.fromkeys(chain.from_iterable(chains)))
        for name in names:
            available = [each for each in self._find(name) if each.health.is_available(now)]
            if available:
                self._last_resort = list(self._next)
                self._next = deque(available)
                self._fallbacks.extend(names)
                return

    def _find(self, model: str) -> Iterator[ModelRoute]:
        with suppress(GatewayError):
            yield from self._rank(self._routes.candidates(model, self._format))

    def _is_new(self, route: ModelRoute) -> bool:
        return route not in self._tried and route not in self._last_resort

    def _take(self, route: ModelRoute) -> ModelRoute:
        self._tried.append(route)
        return route

    def _rank(self, routes: Sequence[ModelRoute]) -> Sequence[ModelRoute]:
        if len(routes) == 1:
            return routes
        now = time.monotonic()
        ranked = rank_by_weight(self._conversation(), routes, _name_and_weight)
        return sorted(ranked, key=lambda route: _delay(route, now))


ConversationOf = Callable[[], bytes]
"""Returns what is the same in all requests of a conversation."""


def _name_and_weight(route: ModelRoute) -> tuple[str, float]:
    return route.upstream.name, route.upstream.config.weight


def _delay(route: ModelRoute, now: float) -> float:
    """Return 0 for a route that can be tried, otherwise when it can be."""
    health = route.health
    return 0.0 if health.is_available(now) else max(health.skipped_until, now)
