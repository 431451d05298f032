"""Listing: the models that can be asked for, in the shape of whoever asks."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from brim.errors import BrimError
from brim.gateway import headers
from brim.gateway.model_patterns import is_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brim.gateway.headers import ClientHeaders
    from brim.gateway.routes import ModelRoutes, Upstream

LIST_CACHE_SECONDS: Final = 60.0
"""Seconds for which an upstream's own list is not asked for again."""
_NO_DATE: Final = "1970-01-01T00:00:00Z"


class ModelList:
    """What the upstreams offer, asked for when somebody wants to know."""

    def __init__(self, lanes: ModelRoutes) -> None:
        self._lanes = lanes
        self._offered: dict[str, tuple[float, list[str]]] = {}

    async def models(self, given: ClientHeaders | None) -> list[tuple[str, Upstream]]:
        """The names that a client can use, each with the upstream that it leads to.

        `given` are its headers, where its key is one of an upstream.
        """
        asking = (self._offer(upstream, given) for upstream in self._lanes.upstreams)
        offers = await asyncio.gather(*asking)
        found: dict[str, Upstream] = {}
        for upstream, names in zip(self._lanes.upstreams, offers, strict=True):
            for name in names:
                if upstream in self._lanes.meant(name):
                    found.setdefault(name, upstream)
        return sorted(found.items())

    async def _offer(self, upstream: Upstream, given: ClientHeaders | None) -> list[str]:
        """The models that an upstream names; where it has patterns or no list, its server does."""
        named = [name for name in upstream.config.models if not is_pattern(name)]
        if named and len(named) == len(upstream.config.models):
            return named
        own = upstream.headers(upstream.forms[0])
        brought: Mapping[str, str] = {}
        if given is not None and upstream.key is None:
            brought = headers.build_query_headers(given, own, keyless=False)
        if brought:
            offered = await _query_models(upstream, brought) or []
        else:
            offered = await self._known(upstream)
        return named + [name for name in offered if upstream.names(name)]

    async def _known(self, upstream: Upstream) -> list[str]:
        """What anybody is offered."""
        until, offered = self._offered.get(upstream.name, (0.0, []))
        if time.monotonic() >= until:
            offered = await _query_models(upstream, None) or offered
            self._offered[upstream.name] = (time.monotonic() + LIST_CACHE_SECONDS, offered)
        return offered


async def _query_models(upstream: Upstream, brought: Mapping[str, str] | None) -> list[str] | None:
    """What an upstream lists. What it does for a client's own key is that client's alone."""
    with suppress(BrimError):
        return await upstream.server.models(brought)
    return None


def to_openai_list(models: Sequence[tuple[str, Upstream]]) -> dict[str, Any]:
    return {"object": "list", "data": [to_openai_model(*model) for model in models]}


def to_openai_model(name: str, upstream: Upstream) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": upstream.name}


def to_anthropic_list(models: Sequence[tuple[str, Upstream]]) -> dict[str, Any]:
    names = [name for name, _ in models]
    return {
        "data": [to_anthropic_model(*model) for model in models],
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }


def to_anthropic_model(name: str, _: Upstream) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": _NO_DATE}
