"""All paths except completions: models, token counts, recent requests, metrics and health."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from brim.errors import BrimError
from brim.fitting.profile import ModelProfile
from brim.gateway import bodies, compression, dashboard, errors, headers, metrics
from brim.gateway.account_admin import ANONYMOUS, AccountAdmin
from brim.gateway.auth import may_use
from brim.gateway.bodies import PATHS, check_conversation
from brim.gateway.errors import GatewayError
from brim.gateway.failures import explain_failure
from brim.gateway.gateway import Gateway
from brim.gateway.headers import ClientHeaders
from brim.gateway.history_views import HistoryViews
from brim.gateway.responses import json_response, parse_number
from brim.gateway.sign_in import SIGN_IN_PATHS, SignInViews
from brim.gateway.spending_views import SpendingViews
from brim.gateway.upstreams import Upstream, is_pattern
from brim.models import catalog
from brim.models.pricing import MILLION
from brim.wire.formats import ANTHROPIC, FORMATS_BY_PATH, GEMINI, RESPONSES, BodyFormat

View = Callable[[Request], Awaitable[Response]]

MAX_LISTED: Final = 1_000
PUBLIC_PATHS: Final = ("/", "/healthz", "/readyz", "/openapi.json")
"""Paths without a key: they reveal nothing about clients."""
OPERATOR_PATHS: Final = ("/brim/", "/metrics")
"""Paths that need an operator key, and that pages of other sites cannot read."""
LIST_CACHE_SECONDS: Final = 60.0
"""Seconds for which the model list of an upstream is cached."""
_NO_DATE: Final = "1970-01-01T00:00:00Z"


class AdminRoutes:
    """The paths that are not on the hot path, as a Starlette application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._model_list = ModelList(gateway)
        self._accounts = AccountAdmin(gateway)
        self._spending = SpendingViews(gateway)
        self._history = HistoryViews(gateway)
        self._sign_in = SignInViews(gateway.services.authenticator)

    def app(self) -> Starlette:
        versioned: list[tuple[str, str, View]] = [
            ("GET", "/models", self.models),
            ("GET", "/models/{name:path}", self.model),
            ("POST", ANTHROPIC.count_path, partial(self.count, ANTHROPIC)),
            ("POST", RESPONSES.count_path, partial(self.count, RESPONSES)),
        ]
        google: list[tuple[str, str, View]] = [
            ("POST", f"{version}{GEMINI.count_path}", partial(self.count, GEMINI))
            for version in (GEMINI.version, "/v1")
        ]
        views: list[tuple[str, str, View]] = [
            *((method, f"/v1{path}", view) for method, path, view in versioned),
            *google,  # before the paths of models, which match them too
            ("GET", f"{GEMINI.version}/models", self.models),
            ("GET", f"{GEMINI.version}/models/{{name:path}}", self.model),
            ("POST", "/v1/compress", self.compress),
            ("GET", "/v1/retrieve/{id}", self.retrieve),
            *versioned,  # some clients omit the version
            ("GET", "/", dashboard.send_asset),
            ("GET", dashboard.ASSETS + "{name}", dashboard.send_asset),
            ("GET", "/brim/spending", self._spending.spending),
            ("GET", "/brim/routes", self._spending.routes),
            *self._accounts.views,
            *self._sign_in.views,
            ("GET", "/brim/history", self._history.search),
            ("GET", "/brim/series", self._history.series),
            ("GET", "/brim/requests", self.requests),
            ("GET", "/brim/requests/{id}", self.request),
            ("GET", "/metrics", self.metrics),
            ("GET", "/healthz", self.health),
            ("GET", "/readyz", self.readiness),
            ("GET", "/openapi.json", self.description),
        ]
        routes = [Route(path, view, methods=[method]) for method, path, view in views]
        app = Starlette(
            routes=[self._protect(route) for route in routes],
            exception_handlers={
                **dict.fromkeys((GatewayError, BrimError, RecursionError, Exception), _send_error),
                HTTPException: _send_not_found,
            },
            lifespan=self._lifespan,
        )
        # A redirect would lead to the host in the request, which the client controls.
        app.router.redirect_slashes = False
        return app

    def _protect(self, route: Route) -> Route:
        """Return the route with a check of the key, or of the host if no keys are required."""
        if route.path in (*PUBLIC_PATHS, *SIGN_IN_PATHS) or route.path.startswith(dashboard.ASSETS):
            return route
        view, is_operator_path = route.endpoint, route.path.startswith(OPERATOR_PATHS)

        async def protected(request: Request) -> Response:
            services = self._gateway.services
            client = _read_headers(request)
            if is_operator_path:
                services.limits.check_site(client)
            if not services.accounts.requires_keys:
                if is_operator_path:
                    services.limits.check_host(client)
                    request.state.actor = ANONYMOUS
            elif is_operator_path:
                authenticator = services.authenticator
                request.state.actor = await authenticator.authenticate_operator(client)
            else:
                access = await services.authenticator.authenticate_client(client)
                request.state.access, request.state.key = access, access.key.name
            response: Response = await view(request)
            return response

        return Route(route.path, protected, methods=list(route.methods or ()))

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        await self._gateway.start()
        try:
            yield
        finally:
            await self._gateway.stop()

    async def retrieve(self, request: Request) -> Response:
        """Return what a recent request of the same key dropped."""
        dropped = self._gateway.services.dropped
        self._gateway.services.limits.check_origin(_read_headers(request))
        id, key = request.path_params["id"], getattr(request.state, "key", None)
        found = None if dropped is None else dropped.find(key, id)
        if found is None:
            off = "" if dropped else " Set gateway.retrieve = true to keep what is dropped."
            message = f"No request of the last hour dropped anything with the id {id[:40]!r}.{off}"
            raise GatewayError(404, "not_found", message)
        return Response(found, headers={"cache-control": "no-store"}, media_type="application/json")

    # Models

    async def models(self, request: Request) -> Response:
        """Return the models in the format of the client's provider."""
        models = await self._list_models(request)
        data = [self._describe_model(request, *each) for each in models]
        if _is_google_client(request):
            return json_response({"models": data})
        if not _is_anthropic_client(request):
            return json_response({"object": "list", "data": data})
        ids = [each["id"] for each in data] or [None]
        listed = {"data": data, "has_more": False, "first_id": ids[0], "last_id": ids[-1]}
        return json_response(listed)

    async def model(self, request: Request) -> Response:
        wanted = request.path_params["name"]
        upstream = dict(await self._list_models(request)).get(wanted)
        if upstream is None:
            message = f"Model not found: {wanted[:100]!r}."
            raise GatewayError(404, "model_not_found", message, param="model")
        return json_response(self._describe_model(request, wanted, upstream))

    def _describe_model(self, request: Request, name: str, upstream: Upstream) -> dict[str, Any]:
        routes = self._gateway.services.routes
        profile = routes.profile_of(upstream, routes.resolve(name))
        if _is_google_client(request):
            return _model_to_google_dict(name, profile)
        return _model_to_dict(
            name, upstream.name, profile, is_anthropic=_is_anthropic_client(request)
        )

    async def _list_models(self, request: Request) -> list[tuple[str, Upstream]]:
        client = _read_headers(request)
        services = self._gateway.services
        services.limits.check_origin(client)
        if not services.accounts.requires_keys:
            return await self._model_list.models(client)
        access, resolve = request.state.access, services.routes.resolve
        listed = await self._model_list.models(None)
        return [each for each in listed if may_use(access, each[0], resolve(each[0]))]

    # Token counts

    async def count(self, format: BodyFormat, request: Request) -> Response:
        tokens, source = await self._count(request, format)
        shown: dict[str, Any] = (
            {"totalTokens": tokens} if format is GEMINI else {"input_tokens": tokens}
        )
        if format is RESPONSES:
            shown = {"object": "response.input_tokens", **shown}
        return json_response(shown, headers={"brim-count": source})

    async def _count(self, request: Request, format: BodyFormat) -> tuple[int, str]:
        """Return the tokens of a body, counted by its server if possible, else by brim."""
        services = self._gateway.services
        client = _read_headers(request)
        services.limits.check_room(len(services.running))
        services.limits.check_origin(client)
        raw = await services.limits.read_body(client, request.receive)
        body = await services.workers.run(bodies.parse_body, raw)
        if format is GEMINI:
            inner = body.get("generateContentRequest")
            body = {**(inner if isinstance(inner, dict) else body), **request.path_params}
        check_conversation(format, body)
        route = services.routes.find(body.get("model"), format)
        body = {**body, "model": route.name} if route.name else body
        api = route.upstream.api(format)
        drop_credentials = route.upstream.has_credentials or services.accounts.requires_keys
        sent = headers.build_query_headers(client, api.headers, drop_credentials=drop_credentials)
        await route.prepare(lambda _: sent)
        if route.count != "off":
            tokens = await api.counter.count(body, sent)
            if tokens is not None:
                return tokens, "server"
        return await services.workers.run(route.count_tokens, body, format)

    async def compress(self, request: Request) -> Response:
        """Return messages that fit their model, without sending them."""
        services, client = self._gateway.services, _read_headers(request)
        services.limits.check_room(len(services.running))
        services.limits.check_origin(client)
        raw = await services.limits.read_body(client, request.receive)
        body = await services.workers.run(bodies.parse_body, raw)
        route = compression.find_route(services.routes, body)
        await route.prepare(lambda _: {})
        return json_response(await services.workers.run(compression.compress, route, body))

    # Recent requests

    async def requests(self, request: Request) -> Response:
        """Return the most recent requests, the newest first."""
        number = parse_number(request, "last", default=100, most=MAX_LISTED)
        self._gateway.record_finished()
        newest = self._gateway.records.newest(number)
        listed = [record.to_dict() for record in newest]
        for each in listed:
            each["reason"] = explain_failure(each)
        return json_response({"object": "list", "data": listed})

    async def request(self, request: Request) -> Response:
        """Return one request with the decision for each message, and why it failed."""
        self._gateway.record_finished()
        id = request.path_params["id"]
        record = self._gateway.records.find(id)
        if record is not None:
            shown = {**record.to_dict(), **record.decisions()}
        elif (kept := await self._gateway.history.find(id)) is not None:
            shown = {**kept, "plan": None}
        else:
            raise GatewayError(404, "request_not_found", "Request not found.")
        return json_response({"object": "brim.request", **shown, "reason": explain_failure(shown)})

    # State

    async def metrics(self, _: Request) -> Response:
        self._gateway.record_finished()
        raw = await asyncio.to_thread(metrics.render, self._gateway.metrics.snapshot())
        return Response(raw, media_type=metrics.CONTENT_TYPE)

    async def description(self, _: Request) -> Response:
        return Response(_read_openapi(), media_type="application/json")

    async def health(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def readiness(self, _: Request) -> Response:
        """Return 200 if a load balancer should send new requests here, else 503."""
        state = "ready"
        if self._gateway.is_stopping:
            state = "stopping"
        elif self._gateway.services.accounts.is_unavailable:
            state = "account store unavailable"
        content = {"status": state, "running": len(self._gateway.running)}
        return json_response(content, status=200 if state == "ready" else 503)


@cache
def _read_openapi() -> bytes:
    return Path(__file__).with_name("openapi.json").read_bytes()


def _read_headers(request: Request) -> ClientHeaders:
    pairs, _ = headers.take_query_key(request.headers.raw, request.scope["query_string"])
    return headers.read_headers(pairs)


def _is_google_client(request: Request) -> bool:
    is_google = "x-goog-api-client" in request.headers or "x-goog-api-key" in request.headers
    return is_google or request.url.path.startswith(GEMINI.version)


def _is_anthropic_client(request: Request) -> bool:
    return "anthropic-version" in request.headers


# Errors


async def _send_error(request: Request, error: Exception) -> Response:
    path = request.url.path
    is_anthropic = path.endswith(ANTHROPIC.count_path) or PATHS.get(path) is ANTHROPIC
    format = ANTHROPIC if is_anthropic or _is_anthropic_client(request) else RESPONSES
    if path.startswith(GEMINI.version) or ":" in path:
        format = GEMINI
    shown = errors.to_gateway_error(format, error)
    raw = shown.body(format, "")
    return Response(raw, shown.status, shown.headers, media_type="application/json")


async def _send_not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405 or request.url.path in PATHS:
        message = f"Method not allowed: {request.method} {request.url.path}."
        allowed = error.headers or {"allow": "POST"}
        shown = GatewayError(405, "method_not_allowed", message, headers=allowed)
        return await _send_error(request, shown)
    *paths, last = FORMATS_BY_PATH
    message = (
        f"Unknown path: {request.url.path[:100]}. Send requests to {', '.join(paths)} or {last}."
    )
    return await _send_error(request, GatewayError(404, "not_found", message))


# The list of models


class ModelList:
    """The models of all upstreams, requested from the upstreams and cached."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._cache: dict[str, tuple[float, list[str]]] = {}

    async def models(self, client: ClientHeaders | None) -> list[tuple[str, Upstream]]:
        """Return the names that a client can use, each with its upstream.

        `client` are its headers, if it may have its own key of an upstream.
        """
        routes = self._gateway.services.routes
        upstreams = routes.upstreams
        lists = await asyncio.gather(*(self._list(upstream, client) for upstream in upstreams))
        found: dict[str, Upstream] = {}
        for upstream, names in zip(upstreams, lists, strict=True):
            for name in names:
                if upstream in routes.find_upstreams(name):
                    found.setdefault(name, upstream)
        for alias, name in self._gateway.config.gateway.aliases.items():
            if served := routes.find_upstreams(name):
                found.setdefault(alias, served[0])
        return sorted(found.items())

    async def _list(self, upstream: Upstream, client: ClientHeaders | None) -> list[str]:
        """Return the configured models, and those of the server if there are patterns or none."""
        named = [name for name in upstream.config.models if not is_pattern(name)]
        if named and len(named) == len(upstream.config.models):
            return named
        own = upstream.first_api.headers
        sent: Mapping[str, str] = {}
        if client is not None and not upstream.has_credentials:
            sent = headers.build_query_headers(client, own, drop_credentials=False)
        if sent:  # the list for a client's own key is not shared with others
            offered = await _query_models(upstream, sent) or []
        else:
            offered = await self._cached(upstream)
        return named + [name for name in offered if upstream.match_rank(name)]

    async def _cached(self, upstream: Upstream) -> list[str]:
        expires, offered = self._cache.get(upstream.name, (0.0, []))
        if time.monotonic() >= expires:
            offered = await _query_models(upstream, None) or offered
            self._cache[upstream.name] = (time.monotonic() + LIST_CACHE_SECONDS, offered)
        return offered


async def _query_models(upstream: Upstream, sent: Mapping[str, str] | None) -> list[str] | None:
    """Return the models that a server lists; None if it cannot."""
    with suppress(BrimError):
        return await upstream.server.models(sent)
    return None


def _model_to_google_dict(name: str, profile: ModelProfile) -> dict[str, Any]:
    """Return a model in Google's format."""
    known = catalog.model(name)
    sizes = {
        "inputTokenLimit": None if profile.is_guessed else profile.budget(profile.counter()).window,
        "outputTokenLimit": known.largest_output if known else None,
    }
    facts = {key: size for key, size in sizes.items() if size is not None}
    methods = ["generateContent", "countTokens"]
    shown = {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}
    return {**shown, **facts}


def _model_to_dict(
    name: str, owner: str, profile: ModelProfile, *, is_anthropic: bool
) -> dict[str, Any]:
    """Return a model in the format of the client's provider, without facts that are unknown."""
    budget = None if profile.is_guessed else profile.budget(profile.counter())
    known = catalog.model(name)
    output = known.largest_output if known else None
    sizes = {
        "max_input_tokens" if is_anthropic else "context_length": budget and budget.window,
        "max_tokens" if is_anthropic else "max_output_tokens": output,
    }
    facts: dict[str, Any] = {key: size for key, size in sizes.items() if size is not None}
    if is_anthropic:
        shown = {"type": "model", "id": name, "display_name": name, "created_at": _NO_DATE}
        return {**shown, "lifecycle": "active", **facts}
    if (price := profile.price_for(0)) is not None:
        rates = {
            "prompt": price.input,
            "completion": price.output,
            "input_cache_read": price.cached,
        }
        facts["pricing"] = {
            key: f"{(rate / MILLION).normalize():f}"
            for key, rate in rates.items()
            if rate is not None
        }
    return {"id": name, "object": "model", "created": 0, "owned_by": owner, **facts}
