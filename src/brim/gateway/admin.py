"""What is asked of the gateway beside answers: counts, models, what was done, how it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from brim.errors import BrimError
from brim.gateway import bodies, errors, headers, metrics, model_list, openapi
from brim.gateway.dashboard import routes as dashboard
from brim.gateway.errors import GatewayError
from brim.gateway.formats import MESSAGES, PATHS, RESPONSES, BodyFormat, check_conversation
from brim.gateway.model_list import ModelList

if TYPE_CHECKING:
    from starlette.requests import Request

    from brim.gateway.app import Gateway
    from brim.gateway.routes import Upstream

View = Callable[["Request"], Awaitable[Response]]

COUNT_TOKENS: Final = "/messages/count_tokens"
INPUT_TOKENS: Final = "/responses/input_tokens"
MAX_LISTED: Final = 1_000
PUBLIC_PATHS: Final = ("/", "/healthz", "/readyz", "/openapi.json")
"""What anybody may see: it tells nothing of anybody."""
OPERATOR_PATHS: Final = ("/brim/", "/metrics")
"""What only the operator may see, and no page of another site."""


class AdminRoutes:
    """The quiet paths of the gateway, each a small function of the request."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._listing = ModelList(gateway.lanes)

    def app(self) -> Starlette:
        ways: list[tuple[str, str, View]] = [
            *(
                (method, version + path, way)
                for version in ("/v1", "")  # some clients leave it out
                for method, path, way in self._versioned()
            ),
            ("GET", "/brim/requests", self.requests),
            ("GET", "/brim/requests/{id}", self.request),
            ("GET", "/metrics", self.metrics),
            ("GET", "/healthz", self.health),
            ("GET", "/readyz", self.readiness),
            ("GET", "/openapi.json", self.description),
        ]
        routes = [Route(path, way, methods=[method]) for method, path, way in ways]
        app = Starlette(
            routes=[
                self._guarded(route) for route in routes + dashboard.create_routes(self._gateway)
            ],
            exception_handlers={
                GatewayError: _send_error,
                BrimError: _send_brim_error,
                RecursionError: _send_nesting_error,
                HTTPException: _send_not_found,
                Exception: _send_internal_error,
            },
            lifespan=self._lifespan,
        )
        # It would send clients to whatever host they say they have asked.
        app.router.redirect_slashes = False
        return app

    def _guarded(self, route: Route) -> Route:
        """A way that is only for those who show the right key, where keys are asked for."""
        if route.path in PUBLIC_PATHS or route.path.startswith(dashboard.ASSETS):
            return route
        way, is_operators = route.endpoint, route.path.startswith(OPERATOR_PATHS)

        async def guarded(request: Request) -> Response:
            gateway, given = self._gateway, headers.read_headers(request.headers.raw)
            if is_operators:
                gateway.limits.check_site(given)
            if not gateway.accounts.is_required:
                if is_operators:
                    gateway.limits.check_host(given)
            elif is_operators:
                await gateway.admission.operator(given)
            else:
                await gateway.admission.client(given)
            response: Response = await way(request)
            return response

        return Route(route.path, guarded, methods=list(route.methods or ()))

    def _versioned(self) -> list[tuple[str, str, View]]:
        return [
            ("GET", "/models", self.models),
            ("GET", "/models/{name:path}", self.model),
            ("POST", COUNT_TOKENS, self.count_messages),
            ("POST", INPUT_TOKENS, self.count_responses),
        ]

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        await self._gateway.start()
        try:
            yield
        finally:
            await self._gateway.stop()

    # Models

    async def models(self, request: Request) -> Response:
        """The models, as the client's own provider would list them."""
        models = await self._listed(request)
        if _is_anthropic_client(request):
            return _json(model_list.to_anthropic_list(models))
        return _json(model_list.to_openai_list(models))

    async def model(self, request: Request) -> Response:
        wanted = request.path_params["name"]
        for name, upstream in await self._listed(request):
            if name == wanted:
                if _is_anthropic_client(request):
                    return _json(model_list.to_anthropic_model(name, upstream))
                return _json(model_list.to_openai_model(name, upstream))
        raise GatewayError(404, "model_not_found", f"no model {wanted[:100]!r}", param="model")

    async def _listed(self, request: Request) -> list[tuple[str, Upstream]]:
        given = headers.read_headers(request.headers.raw)
        self._gateway.limits.check_origin(given)
        return await self._listing.models(None if self._gateway.accounts.is_required else given)

    # Counts

    async def count_messages(self, request: Request) -> Response:
        tokens, how = await self._counted(request, MESSAGES)
        return _json({"input_tokens": tokens}, how)

    async def count_responses(self, request: Request) -> Response:
        tokens, how = await self._counted(request, RESPONSES)
        return _json({"object": "response.input_tokens", "input_tokens": tokens}, how)

    async def _counted(self, request: Request, form: BodyFormat) -> tuple[int, str]:
        """The tokens of a body as it came in: by its server, else by brim."""
        gateway, given = self._gateway, headers.read_headers(request.headers.raw)
        gateway.limits.check_room(len(gateway.running))
        gateway.limits.check_origin(given)
        raw = await gateway.limits.body(given, request.receive)
        body = await gateway.apart(bodies.parse_body, raw)
        check_conversation(form, body)
        lane = gateway.lanes.find(body.get("model"), form)
        own = lane.upstream.headers(form)
        keyless = lane.upstream.key is not None or gateway.accounts.is_required
        brought = headers.build_query_headers(given, own, keyless=keyless)
        await lane.prepare(lambda _: brought)
        if lane.ask != "off":
            tokens = await lane.upstream.counter(form).count(body, brought)
            if tokens is not None:
                return tokens, "server"
        return await gateway.apart(lane.count, body, form)

    # What was done

    async def requests(self, request: Request) -> Response:
        """The last requests, the newest first."""
        asked = request.query_params.get("last", "100")
        number = int(asked) if asked.isascii() and asked.isdigit() else 0
        if not 0 < number <= MAX_LISTED:
            raise GatewayError(400, "invalid_request", f"last is a number from 1 to {MAX_LISTED:,}")
        self._gateway.book()
        newest = self._gateway.records.newest(number)
        return _json({"object": "list", "data": [record.to_dict() for record in newest]})

    async def request(self, request: Request) -> Response:
        """One request: what was decided about each message, and what it came to."""
        self._gateway.book()
        record = self._gateway.records.find(request.path_params["id"])
        if record is None:
            raise GatewayError(404, "request_not_found", "no such request among the last ones")
        return _json({"object": "brim.request", **record.to_dict(), **record.decisions()})

    # How it is

    async def metrics(self, _: Request) -> Response:
        """What was done, in numbers; the text of them is long."""
        gateway = self._gateway
        gateway.book()
        families = [*gateway.metrics.collect(), *metrics.collect_account_metrics(gateway.accounts)]
        raw = await asyncio.to_thread(metrics.render_metrics, families)
        return Response(raw, media_type=metrics.CONTENT_TYPE)

    async def description(self, _: Request) -> Response:
        """All of these paths, for those who generate clients and tests."""
        return _json(openapi.description())

    async def health(self, _: Request) -> Response:
        return _json({"status": "ok"})

    async def readiness(self, _: Request) -> Response:
        """Whether new requests are welcome; a load balancer asks."""
        gateway = self._gateway
        running = len(gateway.running)
        if gateway.is_stopping:
            return _json({"status": "stopping", "running": running}, status=503)
        if gateway.accounts.is_away:
            return _json({"status": "books away", "running": running}, status=503)
        return _json({"status": "ready", "running": running})


def _is_anthropic_client(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _json(content: Any, how: str | None = None, *, status: int = 200) -> Response:
    told = {} if how is None else {"brim-count": how}
    raw = bodies.serialize(content)
    return Response(raw, status, told, media_type="application/json")


def _error_format(request: Request) -> BodyFormat | None:
    """Whose errors the client reads."""
    path = request.url.path
    is_anthropic = path.endswith(COUNT_TOKENS) or PATHS.get(path) is MESSAGES
    return MESSAGES if is_anthropic or _is_anthropic_client(request) else None


async def _send_error(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, GatewayError)
    raw = fault.body(_error_format(request), "")
    return Response(raw, fault.status, fault.headers, media_type="application/json")


async def _send_brim_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BrimError)
    return await _send_error(
        request, errors.to_gateway_error(_error_format(request) or RESPONSES, error)
    )


async def _send_nesting_error(request: Request, _: Exception) -> Response:
    return await _send_error(request, bodies.nesting_error())


async def _send_not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405 or request.url.path in PATHS:
        said = f"{request.url.path} is not asked with {request.method}"
        allowed = error.headers or {"allow": "POST"}
        return await _send_error(
            request, GatewayError(405, "method_not_allowed", said, headers=allowed)
        )
    said = (
        f"there is nothing at {request.url.path[:100]}; requests go to /v1/chat/completions, "
        "/v1/messages or /v1/responses"
    )
    return await _send_error(request, GatewayError(404, "not_found", said))


async def _send_internal_error(request: Request, _: Exception) -> Response:
    said = "brim failed; its log says why"
    return await _send_error(request, GatewayError(500, "internal_error", said))
