"""Passage: a request for something else than an answer, passed on uncounted because it is listed.

`gateway.passed_paths` lists such paths, for example `/v1/embeddings`, or `/v1/files/*` for all that
is below one; all others are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

import orjson

from brim.errors import ProviderError
from brim.gateway import headers
from brim.gateway.errors import GatewayError
from brim.gateway.handler import RequestHandler, printable_name
from brim.gateway.stream_monitor import mask_secret, secret_of

if TYPE_CHECKING:
    from brim.gateway.routes import Upstream
    from brim.providers.http_connection import Response
    from brim.providers.transport import Transport


_DOT_SEGMENTS = re.compile(r"[/\\]\.{0,2}[/\\]|[/\\]\.{1,2}(?:;|$)")
"""What some servers take for another path than it seems to be."""
_PARAMETERS = re.compile(r";[^/]*")
_TRAILING = "/ \t\r\n\0"


class PassthroughPaths:
    """Which paths are listed: one by one, or all below one but for the gateway's own.

    `own` are patterns. Some servers see no difference between cases, or read over what stands
    behind a path: so an own path is known in all of these spellings, lest it passes uncounted.
    """

    def __init__(self, listed: Iterable[str], own: Iterable[str]) -> None:
        below = {path for path in listed if path.endswith("/*")}
        self._single = frozenset(listed) - below
        self._below = tuple(path.removesuffix("*") for path in below)
        self._own = [re.compile(pattern, re.IGNORECASE | re.DOTALL) for pattern in own]

    def __contains__(self, path: str) -> bool:
        if path in self._single:
            return True
        if not path.startswith(self._below) or _DOT_SEGMENTS.search(path):
            return False
        spelled = _PARAMETERS.sub("", path.replace("\\", "/")).rstrip(_TRAILING) or "/"
        return not any(own.fullmatch(spelled) for own in self._own)


class PassthroughHandler(RequestHandler):
    """A request that goes to its upstream as it came, and its answer."""

    _response: Response | None = None

    async def answer(self) -> None:
        access = await self._admitted(anew=True)  # no claim looks at its key
        if access is not None and access.caps:
            said = "what goes to this path is not counted, and this key has caps"
            raise GatewayError(403, "uncounted_path", said)
        raw = await self._body()
        upstream = self._upstream(raw)
        connection = upstream.connection(upstream.forms[0])
        self._listen_soon()
        self._response = await self._opened(upstream, connection, raw)
        await self._pass_on(connection, self._response)

    def _upstream(self, raw: bytes) -> Upstream:
        """The upstream of the model that a body names, or the only one there is."""
        try:
            body = orjson.loads(raw) if raw else {}
        except orjson.JSONDecodeError:
            body = {}
        model = body.get("model") if isinstance(body, Mapping) else None
        self.record.model = printable_name(model)
        meant = self.gateway.lanes.meant(model if isinstance(model, str) else "")
        if not meant:
            said = "no upstream is meant: the body names no model that one of them serves"
            raise GatewayError(404, "model_not_found", said, param="model")
        self.record.upstream = meant[0].name
        return meant[0]

    async def _opened(self, upstream: Upstream, connection: Transport, raw: bytes) -> Response:
        endpoint = connection.endpoint
        own = upstream.headers(upstream.forms[0])
        if b"content-type" in self.given.named:  # a form or a file, not JSON
            own = own.without(b"content-type")
        is_keyless = endpoint.key is not None or self.gateway.accounts.is_required
        sent = headers.build_forwarded_headers(self.given, own, keyless=is_keyless)
        path = endpoint.under(self._path.removeprefix("/v1"))
        path = f"{path}?{self._query}" if self._query else path
        return await connection.open(self._scope["method"], path, raw or None, sent)

    @property
    def _path(self) -> str:
        """The path as it was written: a sign that was escaped in it stays so."""
        written = self._scope.get("raw_path")
        return written.decode("latin-1") if written else quote(self._scope["path"])

    async def _pass_on(self, connection: Transport, response: Response) -> None:
        await self._start(
            response.status,
            headers.filter_response_headers(response.raw_headers)
            + headers.build_brim_headers(self.record),
        )
        secret, is_error = secret_of(connection.endpoint), response.status >= 300
        try:
            while piece := await connection.read_chunk(response):
                may_tell = is_error or b"error" in piece
                await self._put(mask_secret(piece, secret) if may_tell else piece)
        except ProviderError:
            self.record.end = "upstream broke"
            raise
        self.record.end = "whole" if response.status < 400 else "refused"
        await self._put(b"", more=False)

    def close(self) -> None:
        super().close()
        if self._response is not None:
            self._response.close()
