"""Forward a client's request: choose its upstream, and another one if that fails."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from brim.config import TEMPORARY_PROBLEMS, UpstreamProblem
from brim.errors import BrimError
from brim.gateway.affinity import find_conversation, pick_conversation
from brim.gateway.errors import GatewayError
from brim.gateway.exchange import Exchange, ExchangeState, UpstreamReply
from brim.gateway.failover import RouteOrder, classify_failure, classify_status
from brim.gateway.fit_request import ClientRequest, FittedRequest
from brim.gateway.headers import ClientHeaders
from brim.gateway.model_route import ModelRoute
from brim.gateway.records import RequestRecord
from brim.gateway.routes import ModelRoutes
from brim.providers.errors import parse_retry_after

MAX_ATTEMPTS: Final = 6
"""Routes that one request tries at most."""
UNUSABLE: Final = "server_error"
"""The problem of a fallback that this request cannot use: it has no price, or no room in a cap."""

log = logging.getLogger("brim.gateway")


@dataclass(slots=True)
class _Failure:
    """An attempt that did not lead to an answer."""

    route: ModelRoute
    problem: UpstreamProblem
    result: UpstreamReply | Exception
    state: ExchangeState

    def close(self) -> None:
        if isinstance(self.result, UpstreamReply):
            self.result.response.close()


@dataclass(slots=True)
class Forwarder:
    """Sends one request to an upstream that answers it."""

    _routes: ModelRoutes
    _record: RequestRecord
    _headers: ClientHeaders
    _request: ClientRequest
    exchange: Exchange

    async def fit(self) -> FittedRequest:
        """Return what would be sent to the first route."""
        return await self.exchange.fit(self._find_routes().first(), self._request)

    async def send(self) -> UpstreamReply:
        """Return the first answer; if there is none, the failure of the requested model."""
        order = self._find_routes()
        route, kept = order.first(), None
        try:
            for _ in range(MAX_ATTEMPTS):
                result = await self._attempt(route, order.primary)
                if isinstance(result, UpstreamReply):
                    if kept is not None:
                        kept.close()
                    return result
                kept = _choose_failure(kept, result, order.primary)
                following = order.following(route, result.problem)
                if following is None:
                    break
                route = following
        except BaseException:
            if kept is not None:
                kept.close()
            raise
        assert kept is not None
        return self._report(kept, order.primary)

    def _find_routes(self) -> RouteOrder:
        request, find = self._request, self._find_conversation
        order = RouteOrder(self._routes, request.model, request.format, find)
        self.exchange.primary = order.primary
        return order

    def _find_conversation(self) -> bytes:
        if not self._routes.has_affinity:
            return pick_conversation()
        return find_conversation(self._request, self._headers, self._record.key)

    async def _attempt(self, route: ModelRoute, primary: ModelRoute) -> UpstreamReply | _Failure:
        """Send the request to a route. Raise if an error is about the request itself."""
        self._record.attempts += 1
        self._record.fallback = None if route.model == primary.model else route.model
        begun = route.health.begin()
        try:
            reply = await self.exchange.send(route, self._request)
        except (BrimError, GatewayError) as error:
            problem = classify_failure(error)
            if problem is None and route is primary:
                raise
            self._note_health(route, begun, problem, error)
            return _Failure(route, problem or UNUSABLE, error, self.exchange.state)
        finally:
            route.health.end(begun)
        problem = _find_problem(reply)
        self._note_health(route, begun, problem, reply)
        if reply.is_answer or (problem is None and route is primary):
            return reply
        return _Failure(route, problem or UNUSABLE, reply, self.exchange.state)

    def _note_health(
        self,
        route: ModelRoute,
        begun: int,
        problem: UpstreamProblem | None,
        result: UpstreamReply | Exception,
    ) -> None:
        """Tell the route's health what this request shows about all requests."""
        if problem is not None:
            self._record.problems.append((route.upstream.name, route.model, problem))
        wait: float | None = None
        is_unhealthy = problem in TEMPORARY_PROBLEMS
        if isinstance(result, UpstreamReply):
            wait = parse_retry_after(result.response.headers) if is_unhealthy else None
            if problem in ("rate_limit", "access") and not self.exchange.drops_key(route):
                return  # the client's own key
            is_unhealthy = is_unhealthy or (problem == "access" and result.response.status != 404)
            if not is_unhealthy:
                route.health.succeed(begun)
        if is_unhealthy:
            route.health.fail(begun, time.monotonic(), wait)

    def _report(self, failure: _Failure, primary: ModelRoute) -> UpstreamReply:
        """Return the reply of a failure, or raise its exception, as if it had been the only one."""
        record = self._record
        if record.attempts > 1:
            fields = {"id": record.id, "attempts": record.attempts}
            log.warning("fallback failed", extra={"fields": fields})
        record.fallback = None if failure.route.model == primary.model else failure.route.model
        self.exchange.restore(failure.state)
        if isinstance(failure.result, Exception):
            raise failure.result
        return failure.result


def _choose_failure(kept: _Failure | None, latest: _Failure, primary: ModelRoute) -> _Failure:
    """Return the failure to report: the requested model's own, else the first one."""
    if kept is None:
        return latest
    chosen, other = (latest, kept) if latest.route is primary else (kept, latest)
    other.close()
    return chosen


def _find_problem(reply: UpstreamReply) -> UpstreamProblem | None:
    """Return why a reply is not an answer; None if it is one, or rejects the request itself."""
    if reply.overflow is not None:
        return "context_length"
    if reply.is_overloaded:
        return "server_error"
    return classify_status(reply.response.status)
