"""Error responses as exceptions, and whether a retry or another model may succeed; no I/O.

Context-length errors are detected first, before the status is considered: some servers report
them as 429 or 413, or inside a stream that began with 200.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, AnyStr, Final

from brim.errors import (
    AuthenticationError,
    ContextLengthError,
    InvalidResponseError,
    LocalModelError,
    Overflow,
    ProviderError,
    RateLimitError,
    UnreachableError,
)
from brim.providers.endpoint import Endpoint
from brim.wire.overflow import parse_overflow
from brim.wire.reply_parser import find_error_object

MESSAGE_CHARS = 300
"""Characters of a server's error message that are repeated."""
BODY_CHARS = 4_000
"""Characters of a body that is not JSON that an error keeps."""
MIN_SECRET_LENGTH: Final = 6
"""Characters of a key; a shorter one is not a secret, and may be a common word."""

RETRYABLE_STATUSES: Final = frozenset((408, 409, 429, 500, 502, 503, 504, 529))
"""Statuses after which the same request may succeed."""
NOT_FOUND_STATUSES: Final = frozenset((404, 405, 501))
"""Statuses of a server that does not have a path."""
REQUEST_STATUSES: Final = frozenset((400, 411, 413, 415, 422))
"""Statuses about the request itself, which another model would reject as well."""

_INVALID_REQUEST = re.compile(
    r"(?i)jinja|chat[ _-]?template|roles must alternate|raise_exception|(?:not |un)supported"
)
"""How servers that answer every error with 500 describe a request that can never succeed."""
_TEMPLATE_REJECTION = re.compile(
    r"(?i)jinja|chat[ _-]?template|raise_exception|must alternate|tool call ids? should be|"
    r"system (?:message|role) (?:must|not)|single tool-calls|no user query|"
    r"(?:unknown|unexpected|invalid) (?:message )?role|only user\b.{0,40}\broles are supported"
)
"""How servers describe a conversation that their chat template rejects."""
_FINAL_CODES: Final = frozenset(("insufficient_quota", "billing_hard_limit_reached"))


def error_from_response(
    endpoint: Endpoint, path: str, status: int, headers: Mapping[str, str], raw: bytes
) -> ProviderError:
    """Return the error for a response whose status is not a success."""
    body = _parse_body(endpoint, raw)
    if (overflow := parse_overflow(status, body)) is not None:
        return context_length_error(endpoint, overflow, status, body)
    retry_after = parse_retry_after(headers)
    kind, sentence = _describe(endpoint, path, status, headers)
    message = error_message(body)
    if retry_after is not None and kind is RateLimitError:
        sentence += f"; retry after {retry_after:,.0f} s"
    return kind(
        f"{sentence}: {message}" if message else f"{sentence}.",
        status=status,
        body=body,
        retry_after=retry_after,
    )


def context_length_error(
    endpoint: Endpoint, overflow: Overflow, status: int | None, body: object
) -> ContextLengthError:
    """Return the error for a request that is too long."""
    numbers = ""
    if overflow.limit is not None:
        sent = "" if overflow.sent is None else f"{overflow.sent:,} tokens, "
        numbers = f" ({sent}limit {overflow.limit:,})"
    return ContextLengthError(
        f"{endpoint.host} reports that the request is too long{numbers}: "
        f"{overflow.text or error_message(body)}",
        overflow,
        status=status,
        body=body,
    )


def find_context_length_error(
    endpoint: Endpoint, answer: Mapping[str, Any]
) -> ContextLengthError | None:
    """Return the context-length error in a response or event with status 200, if there is one."""
    error = find_error_object(answer)
    if error is None:
        return None
    status = _status_in(error)
    overflow = parse_overflow(status, {"error": error})
    return (
        None if overflow is None else context_length_error(endpoint, overflow, status, dict(answer))
    )


def find_error(endpoint: Endpoint, path: str, answer: Mapping[str, Any]) -> ProviderError | None:
    """Return the error in a response with status 200, if it holds one instead of content."""
    too_long, error = find_context_length_error(endpoint, answer), find_error_object(answer)
    if too_long is not None or error is None:
        return too_long
    if any(answer.get(key) is not None for key in ("choices", "content", "output")):
        return None
    return error_from_response(
        endpoint, path, _status_in(error) or 200, {}, json.dumps(answer).encode()
    )


def _status_in(error: Mapping[str, Any]) -> int | None:
    """Return the status that the error object names."""
    code = error.get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else None


def is_free_of_charge(error: BaseException) -> bool:
    """Whether a failed request cost nothing: it was rejected, or never reached the server.

    An error has a status if the server sent it in place of a reply, even with status 200.
    """
    if isinstance(error, UnreachableError | ContextLengthError):
        return True
    return isinstance(error, ProviderError) and error.status is not None


def is_retryable(error: ProviderError) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, ContextLengthError) or error.status not in RETRYABLE_STATUSES:
        return False
    if is_invalid_request(error):
        return False
    body = error.body if isinstance(error.body, Mapping) else {}
    inner = body.get("error")
    codes = (inner.get("code"), inner.get("type")) if isinstance(inner, Mapping) else ()
    return not any(isinstance(code, str) and code in _FINAL_CODES for code in codes)


def is_invalid_request(error: ProviderError) -> bool:
    """Whether a 500 is about the request itself, such as its order of roles."""
    if error.status != 500:
        return False
    return _INVALID_REQUEST.search(_to_text(error.body)) is not None


def is_template_rejection(status: int | None, body: object) -> bool:
    """Whether a server's chat template rejects the conversation of a request."""
    if status not in (400, 422, 500):
        return False
    return _TEMPLATE_REJECTION.search(_to_text(body)) is not None


def _to_text(body: object) -> str:
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, default=str)


def choose_fallback(failed: str, fallback: str | None, tried: Collection[str] = ()) -> str | None:
    """Return the model to try after another one failed; None if there is none left to try."""
    return None if fallback is None or fallback == failed or fallback in tried else fallback


def is_fallback_worthwhile(error: BaseException) -> bool:
    """Return whether another model may succeed where one failed with this error.

    After a context-length error the request has been trimmed already; a larger window helps.
    """
    if isinstance(error, ContextLengthError | InvalidResponseError | LocalModelError):
        return True
    return isinstance(error, ProviderError) and is_server_failure(error.status)


def is_server_failure(status: int | None, *, owns_access: bool = True) -> bool:
    """Return whether a status (None: no response) is the server's failure, not the request's.

    A rejected key or an unknown model is a failure of the server's configuration if that is ours
    (`owns_access`). A gateway relays it: the key and the model's name may be the client's.
    """
    if status is None or status in RETRYABLE_STATUSES:
        return True
    return owns_access and status not in REQUEST_STATUSES


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until a retry, from `retry-after-ms` or either form of `retry-after`."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1_000
    value = headers.get("retry-after")
    if value is None or (seconds := _number(value)) is not None:
        return None if value is None else seconds
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 <= number < 10**9 else None


def error_message(body: object) -> str:
    """Return a server's error message as one short line."""
    for key in ("error", "message", "detail", "error_description"):
        if isinstance(body, Mapping) and body.get(key):
            return error_message(body[key])
    text = body if isinstance(body, str) else "" if body is None else json.dumps(body, default=str)
    if text.lstrip().lower().startswith(("<!doctype", "<html")):
        return "the response is a web page"
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…"


def _parse_body(endpoint: Endpoint, raw: bytes) -> Any:
    text = redact_key(endpoint, raw.decode("utf-8", "replace"))
    try:
        return json.loads(text)
    except ValueError:
        return text[:BODY_CHARS]


def redact_key(endpoint: Endpoint, text: AnyStr) -> AnyStr:
    """Remove the key from a server's text or bytes; some servers repeat it."""
    key = endpoint.key
    if key is None or len(key) < MIN_SECRET_LENGTH:
        return text
    if isinstance(text, bytes):
        return text.replace(key.encode(), b"[key]")
    return text.replace(key, "[key]")


def _describe(
    endpoint: Endpoint, path: str, status: int, headers: Mapping[str, str]
) -> tuple[type[ProviderError], str]:
    host = endpoint.host
    if status == 401 or (status == 403 and endpoint.key is None):
        if endpoint.key is None:
            return AuthenticationError, f"{host} requires an API key ({status})"
        return AuthenticationError, f"{host} rejected the API key ({status})"
    if status == 403:
        return AuthenticationError, f"{host} does not permit this with the API key (403)"
    if status == 429:
        return RateLimitError, f"{host} is limiting the request rate (429)"
    if 300 <= status < 400:
        target = (headers.get("location") or "another address").partition("?")[0]
        return ProviderError, f"{host}{path} redirects to {target}; use that address"
    if status in (404, 405):
        return ProviderError, f"{host} does not support {path} ({status})"
    if status < 300:
        return ProviderError, f"{host} returned an error at {path}"
    return ProviderError, f"{host} returned {status} at {path}"
