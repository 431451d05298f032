"""Bodies: JSON as it comes in and goes out, and the small changes that leave its bytes alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import orjson

from brim.gateway.errors import GatewayError
from brim.providers.transport import encode_body

USAGE_OPTION: Final = b'"stream_options":{"include_usage":true}'


def parse_body(raw: bytes) -> dict[str, Any]:
    """The object that a body is; a fault says where it is none."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        body = _parse_leniently(raw, error)
    if not isinstance(body, dict):
        raise GatewayError(
            400, "invalid_request", f"the body is a JSON {_type_name(body)}, not an object"
        )
    return body


def _parse_leniently(raw: bytes, error: orjson.JSONDecodeError) -> Any:
    """What only the stricter parser objects to: half an emoji, which agents leave when they cut."""
    try:
        text = raw.decode("utf-8-sig")  # of itself the library would take UTF-16 as well
        return json.loads(text, parse_float=_parse_finite, parse_constant=_reject_constant)
    except RecursionError:
        raise nesting_error() from None
    except ValueError:
        said = f"{error.msg} (line {error.lineno}, column {error.colno})"
        raise GatewayError(400, "invalid_json", f"the body is not JSON: {said}") from None


def nesting_error() -> GatewayError:
    """For a body that can be parsed, perhaps, but not be walked through."""
    return GatewayError(400, "invalid_json", "the body is nested too deeply")


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(digits)
    return number


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _type_name(value: object) -> str:
    names = {list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def serialize(body: Mapping[str, Any]) -> bytes:
    """A body as it goes out."""
    try:
        return orjson.dumps(body)
    except TypeError:  # half a surrogate pair, or a number of more than 64 bits
        return encode_body(body)


def prepend_field(raw: bytes, field: bytes) -> bytes:
    """A body's own bytes with one more field in front of the others."""
    start = raw.index(b"{") + 1
    comma = b"" if raw[start:].lstrip().startswith(b"}") else b","
    return raw[:start] + field + comma + raw[start:]


def is_stream(body: Mapping[str, Any]) -> bool:
    return body.get("stream") is True


def has_usage_option(body: Mapping[str, Any]) -> bool:
    """Whether the client of a chat stream wants to be told what it used."""
    options = body.get("stream_options")
    return isinstance(options, Mapping) and bool(options.get("include_usage"))


def set_number(
    body: Mapping[str, Any], raw: bytes | None, key: str, number: int
) -> tuple[Mapping[str, Any], bytes]:
    """A body with a number in a field that it did not have, its own bytes where there are any."""
    if raw is None or key in body:
        body = {**body, key: number}
        return body, serialize(body)
    return {**body, key: number}, prepend_field(raw, b'"%s":%d' % (key.encode(), number))


def add_usage_option(body: Mapping[str, Any], raw: bytes | None) -> tuple[Mapping[str, Any], bytes]:
    """A chat body that asks for the usage at the stream's end, its own bytes where there are any.

    `raw` is None where the body has been changed and has to be written anew.
    """
    options = body.get("stream_options")
    if options is None and "stream_options" not in body and raw is not None:
        return body, prepend_field(raw, USAGE_OPTION)
    given = options if isinstance(options, Mapping) else {}
    body = {**body, "stream_options": {**given, "include_usage": True}}
    return body, serialize(body)
