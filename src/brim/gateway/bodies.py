"""Bodies: their paths and formats, JSON, and small changes that keep the original bytes."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson
import zstandard

from brim.errors import InputError
from brim.gateway.errors import GatewayError, nesting_error
from brim.providers.transport import encode_body
from brim.wire.formats import (
    ANTHROPIC,
    CHAT,
    COMPACTION,
    EMBEDDINGS,
    FORMATS,
    GEMINI,
    RESPONSES,
    BodyFormat,
)
from brim.wire.formats import detect_format as detect_by_shape

PATHS: Final[Mapping[str, BodyFormat]] = {
    path: format
    for format in (*FORMATS.values(), EMBEDDINGS, COMPACTION)
    for path in (format.versioned_path, format.path)
    if format is not GEMINI
}
"""Paths of each format; some clients omit the version. Those of Gemini contain the model."""
MODEL_PATH: Final = re.compile(
    r"/(?:v1(?:beta|alpha)?/)?models/(?P<model>[^/:]+):(?P<stream>streamG|g)enerateContent"
)


class ModelPath(NamedTuple):
    """What a path of Gemini's API says about a request."""

    model: str
    is_stream: bool


def match_model_path(path: str) -> ModelPath | None:
    """Return the model in a path of Gemini's API; None for any other path."""
    found = MODEL_PATH.fullmatch(path)
    return None if found is None else ModelPath(found["model"], found["stream"] != "g")


def find_format(path: str) -> BodyFormat | None:
    """Return the format of the requests to a path; None if it is not for a model's reply."""
    format = PATHS.get(path)
    return GEMINI if format is None and MODEL_PATH.fullmatch(path) else format


MAX_MODEL_LENGTH: Final = 256
"""Characters of a model's name, which is a key of several caches."""
_CHAT_ROLES: Final = ("developer", "tool", "function")


def decompress(raw: bytes, encoding: str, limit: int) -> bytes:
    """Return a body without its compression; more than `limit` bytes if it is larger than that.

    Raise `GatewayError` if the compression is unknown or the bytes are invalid.
    """
    if encoding not in ("gzip", "x-gzip", "deflate", "zstd"):
        raise GatewayError(
            415,
            "unsupported_encoding",
            f"Unknown Content-Encoding: {encoding[:40]!r}. Use gzip, deflate, zstd or none.",
            headers={"accept-encoding": "gzip, deflate, zstd"},
        )
    try:
        if encoding == "zstd":
            return zstandard.ZstdDecompressor().stream_reader(raw).read(limit + 1)
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # with the header of gzip or zlib
        body = inflater.decompress(raw, limit + 1)
    except (zlib.error, zstandard.ZstdError) as error:
        message = f"The body is not valid {encoding}: {error}."
        raise GatewayError(400, "invalid_request", message) from None
    if not inflater.eof and len(body) <= limit:
        raise GatewayError(400, "invalid_request", f"The body is not complete {encoding} data.")
    return body


def parse_body(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. Raise `GatewayError` if it is not one."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        body = _parse_leniently(raw, error)
    if not isinstance(body, dict):
        raise GatewayError(
            400, "invalid_request", f"Invalid body: a JSON {_type_name(body)}. Send an object."
        )
    return body


def parse_object(raw: bytes) -> dict[str, Any] | None:
    """Return a JSON object that an upstream sent or will parse; None if it is not one."""
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _parse_leniently(raw: bytes, error: orjson.JSONDecodeError) -> Any:
    """Parse what only the strict parser rejects: lone surrogates, left by clients that truncate."""
    try:
        text = raw.decode("utf-8-sig")  # json.loads would accept UTF-16 too
        return json.loads(text, parse_float=_parse_finite, parse_constant=_parse_finite)
    except RecursionError:
        raise nesting_error() from None
    except ValueError:
        where = f"line {error.lineno}, column {error.colno}"
        message = f"Invalid JSON: {error.msg} ({where})."
        raise GatewayError(400, "invalid_json", message) from None


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(digits)
    return number


def _type_name(value: object) -> str:
    names = {list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def serialize(body: Mapping[str, Any]) -> bytes:
    """Return a body as JSON bytes."""
    try:
        return orjson.dumps(body)
    except TypeError:  # a lone surrogate, or a number of more than 64 bits
        return encode_body(body)


def prepend_field(raw: bytes, field: bytes) -> bytes:
    """Return the bytes of a body with a field inserted before the others."""
    start = raw.index(b"{") + 1
    comma = b"" if raw[start:].lstrip().startswith(b"}") else b","
    return raw[:start] + field + comma + raw[start:]


def is_stream(body: Mapping[str, Any]) -> bool:
    return body.get("stream") is True


def has_usage_option(body: Mapping[str, Any]) -> bool:
    """Return whether the client of a chat stream requested its usage."""
    options = body.get("stream_options")
    return isinstance(options, Mapping) and bool(options.get("include_usage"))


def set_field(
    body: Mapping[str, Any], raw: bytes | None, key: str, value: object
) -> tuple[Mapping[str, Any], bytes]:
    """Return a body with a field, and its bytes; `raw` are reused if possible.

    `raw` is None if the body was changed and must be serialized again.
    """
    changed = {**body, key: value}
    if raw is None or key in body:
        return changed, serialize(changed)
    return changed, prepend_field(raw, b'"%b":%b' % (key.encode(), orjson.dumps(value)))


def request_usage(body: Mapping[str, Any], raw: bytes | None) -> tuple[Mapping[str, Any], bytes]:
    """Return a chat body that requests the usage at the end of the stream, and its bytes."""
    options = body.get("stream_options")
    given = options if isinstance(options, Mapping) else {}
    return set_field(body, raw, "stream_options", {**given, "include_usage": True})


# Formats


def detect_format(asked: BodyFormat, body: Mapping[str, Any]) -> BodyFormat:
    """Return the format of a body: that of its path, unless its shape can only be another.

    Some clients post the body of one format to the path of another.
    """
    if asked in (GEMINI, EMBEDDINGS, COMPACTION):
        return asked
    if "messages" not in body and "input" in body:
        return RESPONSES
    if asked is RESPONSES and "messages" in body and "input" not in body:
        return ANTHROPIC if detect_by_shape(body) is ANTHROPIC else CHAT
    if asked is CHAT and "system" in body and isinstance(body["system"], str | list):
        return ANTHROPIC
    if asked is ANTHROPIC and _is_chat_only(body):
        return CHAT
    return asked


def check_conversation(format: BodyFormat, body: Mapping[str, Any]) -> None:
    """Raise `InputError` if the messages of a body are not a list.

    The parsers of `input` check it.
    """
    if isinstance(model := body.get("model"), str) and len(model) > MAX_MODEL_LENGTH:
        raise InputError(f"`model` is too long. Use at most {MAX_MODEL_LENGTH} characters.")
    key = format.messages_key
    if key != RESPONSES.messages_key and not isinstance(body.get(key), list):
        raise InputError(f"`{key}` must be a list of messages.")


def _is_chat_only(body: Mapping[str, Any]) -> bool:
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and (
            message.get("role") in _CHAT_ROLES or "tool_calls" in message
        ):
            return True
    return False
