"""The files of the dashboard.

They are public and contain no data. The dashboard requests its data with the operator key: names
and sizes, never message content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from brim.gateway.errors import GatewayError

ASSETS: Final = "/brim/dashboard/"
"""Path of the dashboard's files; they are public, like the page itself."""
_FOLDER: Final = Path(__file__).with_name("static")
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript",
                 ".svg": "image/svg+xml"}  # fmt: skip
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the dashboard, ready to send."""

    raw: bytes
    media_type: str
    etag: str


@cache
def load_assets() -> Mapping[str, Asset]:
    """Return all files by name. Requests look names up here and never open a path."""
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        if (media := _TYPES.get(path.suffix)) is not None:
            raw = path.read_bytes()
            found[path.name] = Asset(raw, media, f'"{hashlib.sha256(raw).hexdigest()[:20]}"')
    return found


async def send_asset(request: Request) -> Response:
    """Return a file; without a name, the page."""
    asset = load_assets().get(request.path_params.get("name", "index.html"))
    if asset is None:
        raise GatewayError(404, "not_found", "The dashboard has no such file.")
    headers = {**_HEADERS, "etag": asset.etag}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.raw, headers=headers, media_type=asset.media_type)
