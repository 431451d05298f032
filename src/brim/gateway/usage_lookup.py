"""The usage of a response whose end did not arrive, from the provider's own records.

OpenRouter keeps the usage of every generation for its id, and OpenAI that of stored responses. The
id comes with the first bytes of a response, so the usage can be looked up if a client disconnects
before the first token, when nothing else says what the provider will charge.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from brim.errors import ProviderError
from brim.gateway.fit_request import FittedRequest
from brim.gateway.model_route import ModelRoute
from brim.providers.transport import Transport
from brim.wire.formats import RESPONSES
from brim.wire.reply import read_looked_up_usage

DELAYS: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each attempt: providers record a usage some seconds after the end."""
TIMEOUT_SECONDS: Final = 10.0
MAX_SEARCHED: Final = 4_096
_ID: Final = re.compile(rb'"id"\s*:\s*"([\w.:-]{1,128})"')
_PLACEHOLDER: Final = "{id}"
_HOST_PATHS: Final = {"openrouter.ai": "/generation?id={id}"}


class LostReply(NamedTuple):
    """A response whose end did not arrive, and where its usage can be looked up."""

    route: ModelRoute
    request: FittedRequest
    path: str

    @classmethod
    def of(cls, route: ModelRoute, request: FittedRequest, beginning: bytes) -> LostReply | None:
        """Return None if the provider has no lookup, or the response no id yet."""
        template, found = _find_path(route, request), _ID.search(beginning[:MAX_SEARCHED])
        if template is None or found is None:
            return None
        id = quote(found[1].decode("latin-1"), safe="")
        return cls(route, request, template.replace(_PLACEHOLDER, id))

    async def look_up(self, headers: Mapping[str, str]) -> Mapping[str, Any] | None:
        """Return the usage as the provider reports it; None if it does not in half a minute."""
        connection = self.route.upstream.api(self.request.parsed.format).connection
        for delay in DELAYS:
            await asyncio.sleep(delay)
            if (usage := await self._ask(connection, headers)) is not None:
                return usage
        return None

    async def _ask(
        self, connection: Transport, headers: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        path = connection.endpoint.under(self.path)
        with suppress(ProviderError):
            response = await connection.request_json(
                "GET", path, timeout=TIMEOUT_SECONDS, retries=0, headers=headers
            )
            return read_looked_up_usage(response.body)
        return None


def _find_path(route: ModelRoute, request: FittedRequest) -> str | None:
    config = route.upstream.config
    if config.usage_path:
        return config.usage_path
    host = route.upstream.first_api.connection.endpoint.host
    is_stored = request.body.get("store") is not False
    if request.parsed.format is RESPONSES and host == "api.openai.com" and is_stored:
        return "/responses/{id}"
    return _HOST_PATHS.get(host)
