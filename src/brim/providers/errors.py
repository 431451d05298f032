"""From what a server answered to the error that says so; no I/O here.

Whether a request is too long is asked first, before the status is looked at: some servers say so
with a 429, a 413, or inside of a stream that began with 200.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from brim.errors import AuthenticationError, ContextLengthError, ProviderError, RateLimitError
from brim.wire.overflow import parse_overflow
from brim.wire.reply_parser import find_error_object

if TYPE_CHECKING:
    from brim.errors import Overflow
    from brim.providers.endpoint import Endpoint

MESSAGE_CHARS = 300
"""Characters of a server's own words that an error repeats."""
BODY_CHARS = 4_000
"""Characters of a body that is not JSON that an error keeps."""

RETRYABLE_STATUSES: Final = frozenset((408, 409, 429, 500, 502, 503, 504, 529))
"""Statuses after which the same request may go well."""

_OBJECTIONS = re.compile(
    r"(?i)jinja|chat[ _-]?template|roles must alternate|raise_exception|(?:not |un)supported"
)
"""How servers that call everything a 500 speak of a request that will never do."""
_FINAL_CODES: Final = frozenset(("insufficient_quota", "billing_hard_limit_reached"))
_BARE: Final = frozenset(("role",))
_OPENINGS: Final = frozenset(
    ("message_start", "ping", "response.created", "response.in_progress", "response.queued")
)
"""Events that come before the server has looked at the prompt's length."""


def error_from_response(
    endpoint: Endpoint, path: str, status: int, headers: Mapping[str, str], raw: bytes
) -> ProviderError:
    """The error for an answer that is not a success."""
    body = _body(endpoint, raw)
    if (overflow := parse_overflow(status, body)) is not None:
        return context_length_error(endpoint, overflow, status, body)
    wait = parse_retry_after(headers)
    kind, sentence = _describe(endpoint, path, status, headers)
    words = error_message(body)
    if wait is not None and kind is RateLimitError:
        sentence += f"; it asks to wait {wait:,.0f} s"
    return kind(
        f"{sentence}: {words}" if words else f"{sentence}.",
        status=status,
        body=body,
        retry_after=wait,
    )


def context_length_error(
    endpoint: Endpoint, overflow: Overflow, status: int | None, body: object
) -> ContextLengthError:
    """The error for a request that is too long."""
    numbers = ""
    if overflow.limit is not None:
        sent = "" if overflow.sent is None else f"{overflow.sent:,} tokens, and "
        numbers = f" ({sent}the limit is {overflow.limit:,})"
    return ContextLengthError(
        f"{endpoint.host} says that the request is too long{numbers}: "
        f"{overflow.text or error_message(body)}",
        overflow,
        status=status,
        body=body,
    )


def find_context_length_error(
    endpoint: Endpoint, answer: Mapping[str, Any]
) -> ContextLengthError | None:
    """The refusal that an answer or an event with status 200 holds."""
    error = find_error_object(answer)
    if error is None:
        return None
    status = _status_in(error)
    overflow = parse_overflow(status, {"error": error})
    return (
        None if overflow is None else context_length_error(endpoint, overflow, status, dict(answer))
    )


def find_error(endpoint: Endpoint, path: str, answer: Mapping[str, Any]) -> ProviderError | None:
    """The error that came with status 200 in the place of an answer."""
    refused, error = find_context_length_error(endpoint, answer), find_error_object(answer)
    if refused is not None or error is None:
        return refused
    if any(answer.get(key) is not None for key in ("choices", "content", "output")):
        return None
    return error_from_response(
        endpoint, path, _status_in(error) or 200, {}, json.dumps(answer).encode()
    )


def _status_in(error: Mapping[str, Any]) -> int | None:
    """The status that the error would have had as an answer of its own."""
    code = error.get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else None


def has_content(event: Mapping[str, Any]) -> bool:
    """Whether an event is more than the opening of a stream."""
    if find_error_object(event) is not None or "prompt_progress" in event:
        return True
    if isinstance(choices := event.get("choices"), list):
        return any(map(_has_delta, choices))
    kind = event.get("type")
    return not isinstance(kind, str) or kind not in _OPENINGS


def _has_delta(choice: object) -> bool:
    if not isinstance(choice, Mapping) or choice.get("finish_reason"):
        return True
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return True
    return any(value for key, value in delta.items() if key not in _BARE)


def is_retryable(error: ProviderError) -> bool:
    """Whether the same request may go well a moment later."""
    if isinstance(error, ContextLengthError) or error.status not in RETRYABLE_STATUSES:
        return False
    if is_invalid_request(error):
        return False
    body = error.body if isinstance(error.body, Mapping) else {}
    inner = body.get("error")
    codes = (inner.get("code"), inner.get("type")) if isinstance(inner, Mapping) else ()
    return not any(isinstance(code, str) and code in _FINAL_CODES for code in codes)


def is_invalid_request(error: ProviderError) -> bool:
    """The server objects to the request itself, such as its order of roles, and calls it a 500."""
    if error.status != 500:
        return False
    body = error.body
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, default=str)
    return _OBJECTIONS.search(text) is not None


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait, from either header and either notation."""
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
    """What a server said, as one short line."""
    for key in ("error", "message", "detail", "error_description"):
        if isinstance(body, Mapping) and body.get(key):
            return error_message(body[key])
    text = body if isinstance(body, str) else "" if body is None else json.dumps(body, default=str)
    if text.lstrip().lower().startswith(("<!doctype", "<html")):
        return "a web page, not an answer"
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…"


def _body(endpoint: Endpoint, raw: bytes) -> Any:
    text = redact_key(endpoint, raw.decode("utf-8", "replace"))
    try:
        return json.loads(text)
    except ValueError:
        return text[:BODY_CHARS]


def redact_key(endpoint: Endpoint, text: str) -> str:
    """A server's text without the key, which some of them repeat."""
    if endpoint.key is None or len(endpoint.key) <= 5:
        return text
    return text.replace(endpoint.key, "[key]")


def _describe(
    endpoint: Endpoint, path: str, status: int, headers: Mapping[str, str]
) -> tuple[type[ProviderError], str]:
    host = endpoint.host
    if status == 401 or (status == 403 and endpoint.key is None):
        if endpoint.key is None:
            return AuthenticationError, f"{host} wants a key, and this endpoint has none ({status})"
        return AuthenticationError, f"{host} does not accept this endpoint's key ({status})"
    if status == 403:
        return AuthenticationError, f"{host} does not let this endpoint's key do that (403)"
    if status == 429:
        return RateLimitError, f"{host} has had too many requests for now (429)"
    if 300 <= status < 400:
        target = (headers.get("location") or "elsewhere").partition("?")[0]
        return ProviderError, f"{host}{path} has moved to {target}: give that address instead"
    if status in (404, 405):
        return ProviderError, f"{host} has nothing at {path} for this ({status})"
    if status < 300:
        return ProviderError, f"{host} answered at {path} with an error"
    return ProviderError, f"{host} answered {status} at {path}"
