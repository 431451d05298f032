"""Routes: which upstream gets a model's requests.

A model's name, or an alias, selects its upstreams: those that list the name, else those with a
matching pattern, else those without a list.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from brim.config import Config
from brim.fitting.prefix_cache import PrefixCache
from brim.fitting.profile import ModelProfile
from brim.gateway.errors import GatewayError
from brim.gateway.model_route import ModelRoute, create_profile
from brim.gateway.upstreams import Upstream
from brim.storage.calibration_store import CalibrationStore
from brim.wire.formats import BodyFormat

MAX_ROUTES: Final = 1_000
"""Routes that are kept; names come from clients."""
PREFIX_CACHE_BYTES: Final = 96_000_000
"""Size of the cache of parsed conversations."""


class ModelRoutes:
    """All upstreams, and the route of each requested model."""

    def __init__(self, config: Config, environment: Mapping[str, str]) -> None:
        calibrations = CalibrationStore()
        self.upstreams = tuple(
            Upstream(name, upstream, environment.get(upstream.key_env or ""), calibrations)
            for name, upstream in config.upstreams.items()
        )
        self._config = config
        self._cache = PrefixCache(config.gateway.conversations, PREFIX_CACHE_BYTES)
        self._routes: OrderedDict[tuple[str, str], ModelRoute] = OrderedDict()
        self._found: dict[tuple[str, str], Sequence[Upstream]] = {}
        """The upstreams of each model in each format, once they have been found."""

    @property
    def has_affinity(self) -> bool:
        """Whether a conversation stays at its upstream."""
        return self._config.gateway.affinity

    def resolve(self, model: str) -> str:
        """Return the model that a name stands for."""
        return self._config.gateway.aliases.get(model, model)

    def find(self, model: object, format: BodyFormat) -> ModelRoute:
        """Return a route of a model in a format. Raise `GatewayError` if there is none."""
        return self.candidates(model, format)[0]

    def candidates(self, model: object, format: BodyFormat) -> Sequence[ModelRoute]:
        """Return all routes of a model in a format. Raise `GatewayError` if there are none."""
        if model is not None and not isinstance(model, str):
            raise GatewayError(400, "invalid_request", "`model` must be a string.", param="model")
        name = self.resolve(model or "")
        key = (name, format.server_format)
        upstreams = self._found.get(key)
        if upstreams is None:
            if len(self._found) > MAX_ROUTES:
                self._found.clear()
            upstreams = self._found[key] = self._find_upstreams(name, format)
        return [self._route(upstream, name) for upstream in upstreams]

    def _find_upstreams(self, model: str, format: BodyFormat) -> Sequence[Upstream]:
        matching = self.find_upstreams(model)
        if not matching:
            raise GatewayError(404, "model_not_found", self._explain_unknown(model), param="model")
        if found := [each for each in matching if format.server_format in each.config.formats]:
            return found
        paths = " or ".join(
            other.versioned_path.replace("{model}", model)
            for upstream in matching
            for other in upstream.formats
        )
        raise GatewayError(
            400,
            "wrong_format",
            f"{model} is not available as {format.title}: its upstream uses another format, and "
            f"the gateway does not translate. Send requests for this model to {paths}.",
            param="model",
        )

    def find_upstreams(self, model: str) -> list[Upstream]:
        """Return the upstreams whose lists match a model best."""
        if not model:
            return list(self.upstreams) if len(self.upstreams) == 1 else []
        best = max((upstream.match_rank(model) for upstream in self.upstreams), default=0)
        return [
            upstream for upstream in self.upstreams if best and upstream.match_rank(model) == best
        ]

    def _explain_unknown(self, model: str) -> str:
        if not model:
            return "The body has no `model`, and there are several upstreams. Add `model`."
        served = dict.fromkeys(name for each in self.upstreams for name in each.config.models)
        names = ", ".join((*served, *self._config.gateway.aliases)) or "none"
        return f"No upstream serves the model {model[:100]!r}. Available: {names}."

    def _route(self, upstream: Upstream, model: str) -> ModelRoute:
        key = (upstream.name, model)
        route = self._routes.get(key)
        if route is not None:
            self._routes.move_to_end(key)
        else:
            route = self._routes[key] = ModelRoute(upstream, model, self._config, self._cache)
            if len(self._routes) > MAX_ROUTES:
                self._routes.popitem(last=False)
        return route

    def profile_of(self, upstream: Upstream, model: str) -> ModelProfile:
        """Return what is known about a model, without asking its server."""
        route = self._routes.get((upstream.name, model))
        return create_profile(upstream.config, model) if route is None else route.profile

    def __iter__(self) -> Iterator[ModelRoute]:
        return iter(list(self._routes.values()))

    async def close(self) -> None:
        for upstream in self.upstreams:
            await upstream.close()
