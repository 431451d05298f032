"""Requests that are passed to an upstream unchanged and uncounted.

`gateway.passthrough_paths` lists their paths: `/v1/moderations`, or `/v1/files/*` for everything
below a path. All other paths are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote

from brim.errors import ProviderError
from brim.gateway import bodies, headers
from brim.gateway.auth import check_model
from brim.gateway.errors import GatewayError
from brim.gateway.exchange import reject_redirect
from brim.gateway.handler import RequestHandler, printable_name
from brim.gateway.upstreams import Upstream
from brim.providers.errors import redact_key
from brim.providers.http_connection import Response
from brim.providers.transport import Transport

_DOT_SEGMENTS = re.compile(r"[/\\]\.{0,2}[/\\]|[/\\]\.{1,2}(?:;|$)")
"""Path segments that some servers resolve to another path."""
_PARAMETERS = re.compile(r";[^/]*")
_TRAILING = "/ \t\r\n\0"


class PassthroughPaths:
    """The listed paths: single ones, or everything below one except the gateway's own paths.

    `own` are patterns of the gateway's paths. Some servers ignore case, or what follows a path, so
    the own paths are recognized in these spellings too: no completion may pass uncounted.
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
        normalized = _PARAMETERS.sub("", path.replace("\\", "/")).rstrip(_TRAILING) or "/"
        return not any(own.fullmatch(normalized) for own in self._own)


class PassthroughHandler(RequestHandler):
    """A request that is passed on unchanged."""

    _response: Response | None = None

    async def answer(self) -> None:
        # There is no reservation that would check the key.
        access = await self._authenticate(refresh=True)
        if access is not None and (access.caps or access.user_caps):
            message = "This key has caps, and requests to this path are not counted."
            raise GatewayError(403, "uncounted_path", message)
        raw = await self._read_body()
        upstream = self._find_upstream(raw)
        if access is not None:
            check_model(access, self.record.model)
        connection = upstream.first_api.connection
        self._listen_soon()
        self._response = await self._open(upstream, connection, raw)
        reject_redirect(connection, self._response)
        await self._pass_on(connection, self._response)

    def _find_upstream(self, raw: bytes) -> Upstream:
        """Return the upstream of the model that a body names, or the only upstream."""
        model = (bodies.parse_object(raw) or {}).get("model")
        self.record.model = printable_name(model)
        upstreams = self.services.routes.find_upstreams(model if isinstance(model, str) else "")
        if not upstreams:
            message = "No upstream found: the body does not name a model that an upstream serves."
            raise GatewayError(404, "model_not_found", message, param="model")
        self.record.upstream = upstreams[0].name
        return upstreams[0]

    async def _open(self, upstream: Upstream, connection: Transport, raw: bytes) -> Response:
        endpoint = connection.endpoint
        own = upstream.first_api.headers
        if b"content-type" in self.client_headers.by_name:  # a form or a file, not JSON
            own = own.without(b"content-type")
        drop_credentials = upstream.has_credentials or self.services.accounts.requires_keys
        sent = headers.build_forwarded_headers(
            self.client_headers, own, drop_credentials=drop_credentials
        )
        written = self._scope.get("raw_path")  # with the client's own escapes
        path = written.decode("latin-1") if written else quote(self._scope["path"])
        path = endpoint.under(path.removeprefix("/v1"))
        path = f"{path}?{self._query}" if self._query else path
        return await connection.open(self._scope["method"], path, raw or None, sent)

    async def _pass_on(self, connection: Transport, response: Response) -> None:
        await self._send_start(
            response.status,
            headers.filter_response_headers(response.raw_headers)
            + headers.build_brim_headers(self.record),
        )
        try:
            while piece := await connection.read_chunk(response):
                if response.status >= 300 or b"error" in piece:
                    piece = redact_key(connection.endpoint, piece)
                await self._send_piece(piece)
        except ProviderError:
            self.record.end = "upstream_failed"
            raise
        self.record.end = "completed" if response.status < 400 else "rejected"
        await self._send_piece(b"", more=False)

    def close(self) -> None:
        super().close()
        if self._response is not None:
            self._response.close()
