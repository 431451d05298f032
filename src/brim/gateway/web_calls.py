"""Requests of the gateway to services that are no upstreams: an alert receiver, a sign-in provider.

Redirects are not followed, and responses are limited in size and time: a service that is replaced
or taken over must not lead the gateway to another one.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

import orjson

TIMEOUT_SECONDS: Final = 10.0
MAX_BYTES: Final = 1024 * 1024


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Return None, so that a redirect is an error like any other status."""


_opener: Final = urllib.request.build_opener(_NoRedirects)


async def call(
    url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return the body of a response; a request with a body is a POST.

    Raise OSError if the service cannot be reached or returns anything but success.
    """
    return await asyncio.to_thread(_call, url, body, headers or {})


def _call(url: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
    request = urllib.request.Request(url, body, dict(headers))
    try:
        with _opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            found: bytes = response.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise OSError(f"It returned status {error.code}.") from None
    if len(found) > MAX_BYTES:
        raise OSError(f"The response has more than {MAX_BYTES:,} bytes.")
    return found


async def call_json(
    url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the JSON object of a response. Raise OSError if there is none."""
    raw = await call(url, body, headers)
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise OSError("The response is not JSON.") from None
    if not isinstance(found, dict):
        raise OSError("The response is not a JSON object.")
    return found
