"""What the views of the administration share: JSON responses, and numbers in a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from brim.gateway import bodies
from brim.gateway.errors import GatewayError


def parse_number(request: Request, name: str, *, default: int, most: int) -> int:
    """Return a number in the query of a request. Raise `GatewayError` if it is out of range."""
    text = request.query_params.get(name, str(default))
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
    if not 0 < number <= most:
        message = f"Invalid value of `{name}`. Use a number from 1 to {most:,}."
        raise GatewayError(400, "invalid_request", message)
    return number


def json_response(
    content: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response that must not be cached."""
    sent = {"cache-control": "no-store", **(headers or {})}
    return Response(bodies.serialize(content), status, sent, media_type="application/json")
