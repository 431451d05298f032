"""Error responses, in the format that the client's library expects."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import orjson

from brim.errors import (
    AccountStoreUnavailableError,
    BrimError,
    BudgetError,
    ConnectionFailedError,
    ContextOverflowError,
    InputError,
    ProviderError,
    ProviderTimeoutError,
)
from brim.fitting.plan import get_overflow_plan
from brim.gateway.accounts.caps import Cap, scope_parts, to_dollars
from brim.gateway.accounts.rates import RateReached, RateUse
from brim.gateway.accounts.reservations import CapReached, Reservation
from brim.gateway.rate_headers import build_rate_headers
from brim.wire.formats import ANTHROPIC, GEMINI, RESPONSES, BodyFormat

INTERNAL_ERROR_MESSAGE: Final = "Internal error. The gateway's log has the details."
INVALID_KEY_MESSAGE: Final = "API key is unknown or revoked."
RESERVATION_EXPIRED_MESSAGE: Final = (
    "The reservation for this request expired before it could be sent. Try again."
)
STORE_UNAVAILABLE_MESSAGE: Final = "The account store is unavailable. Try again soon."
_RETRY_SOON: Final = {"retry-after": "2"}
_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_GOOGLE_STATUSES: Final[Mapping[int, str]] = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    504: "DEADLINE_EXCEEDED",
}


class TokenRejectedError(Exception):
    """A token that must not be accepted; the message is for the log."""


class ProviderUnavailableError(Exception):
    """The sign-in provider cannot be reached, or does not answer as OpenID Connect says."""


class GatewayError(Exception):
    """An error response of the gateway itself: status, machine-readable code, and message."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})

    def body(self, format: BodyFormat | None, request_id: str) -> bytes:
        """Return the response body; without a format, as OpenAI's clients read it."""
        if format is ANTHROPIC:
            kind = "invalid_request_error" if self.status < 500 else "api_error"
            error = {"type": _ANTHROPIC_TYPES.get(self.status, kind), "message": self.message}
            body = {"type": "error", "error": error}
            return orjson.dumps(body | {"request_id": request_id} if request_id else body)
        if format is GEMINI:
            return self._google_body()
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == 429:
            kind = self.code
        error_ = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error_})

    def _google_body(self) -> bytes:
        kind = "INVALID_ARGUMENT" if self.status < 500 else "UNAVAILABLE"
        reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": self.code}
        error = {
            "code": self.status,
            "message": self.message,
            "status": _GOOGLE_STATUSES.get(self.status, kind),
            "details": [{**reason, "domain": "brim"}],
        }
        return orjson.dumps({"error": error})

    def event(self, format: BodyFormat) -> bytes:
        """Return the error as an event of a stream that has already begun."""
        if format is RESPONSES:
            error = {"type": "error", "code": self.code, "message": self.message, "param": None}
            return b"event: error\ndata: " + orjson.dumps(error) + b"\n\n"
        named = b"event: error\n" if format is ANTHROPIC else b""
        return named + b"data: " + self.body(format, "") + b"\n\n"


class StoreOutcomeUnknownError(GatewayError):
    """The account store failed during a call, so the call may have taken effect."""


def context_length_error(format: BodyFormat, error: ContextOverflowError) -> GatewayError:
    """Return the error for a request that cannot fit, worded like the provider's own."""
    if format is ANTHROPIC:
        message = f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
    elif format is GEMINI:
        message = (
            f"The input token count ({error.tokens}) exceeds the maximum number of tokens allowed "
            f"({error.limit})"
        )
    else:
        budget = get_overflow_plan(error).budget
        reply = budget.reply + budget.margin
        window = min(budget.window, error.limit + reply)  # less if the window is unknown
        message = (
            f"This model's maximum context length is {window} tokens. However, you requested "
            f"{error.tokens + window - error.limit} tokens ({error.tokens} in the messages, "
            f"{window - error.limit} in the completion)"
        )
    return GatewayError(
        400, "context_length_exceeded", f"{message}. {error}", param=format.messages_key
    )


def to_gateway_error(format: BodyFormat, error: Exception) -> GatewayError:
    """Return the error response for an exception, without details of an unexpected one."""
    match error:
        case GatewayError():
            return error
        case ContextOverflowError():
            return context_length_error(format, error)
        case BudgetError():
            return GatewayError(400, "window_unknown", str(error))
        case InputError():
            return GatewayError(400, "invalid_request", str(error), param=format.messages_key)
        case AccountStoreUnavailableError():
            return store_unavailable_error(str(error))
        case ProviderTimeoutError():
            return GatewayError(504, "upstream_timeout", str(error))
        case ConnectionFailedError():
            return GatewayError(502, "upstream_unreachable", str(error))
        case ProviderError():
            return GatewayError(502, "upstream_error", str(error))
        case RecursionError():
            return nesting_error()
        case BrimError():
            return GatewayError(500, "internal_error", str(error))
        case _:
            return GatewayError(500, "internal_error", INTERNAL_ERROR_MESSAGE)


def nesting_error() -> GatewayError:
    """Return the error for a body that exceeds the recursion limit."""
    return GatewayError(400, "invalid_json", "The body is nested too deeply.")


# Keys, caps and the account store


def invalid_key_error(message: str) -> GatewayError:
    return GatewayError(401, "invalid_api_key", message, headers={"www-authenticate": "Bearer"})


def provider_unavailable_error() -> GatewayError:
    message = "The sign-in provider is unavailable, so the token cannot be checked. Try again soon."
    return GatewayError(503, "sign_in_unavailable", message, headers=_RETRY_SOON)


def expired_key_error(expires: float) -> GatewayError:
    return invalid_key_error(f"This API key expired at {_format_minute(expires)}.")


def model_not_allowed_error(model: str, allowed: Sequence[str]) -> GatewayError:
    message = f"This key cannot use the model {model!r:.80}. It can use {', '.join(allowed)}."
    return GatewayError(403, "model_not_allowed", message, param="model")


def store_unavailable_error(
    message: str = STORE_UNAVAILABLE_MESSAGE, error: type[GatewayError] = GatewayError
) -> GatewayError:
    return error(503, "account_store_unavailable", message, headers=_RETRY_SOON)


def cap_error(reached: CapReached, amount: int, key: str) -> GatewayError:
    """Return the error for a cap without room, with the amounts and when the cap resets."""
    cap, owner = reached.cap, _describe_scope(reached.scope, key)
    amounts = (
        f"{_format_amount(cap, reached.spent)} spent, {_format_amount(cap, reached.reserved)} "
        f"reserved, and this request may cost up to {_format_amount(cap, amount)} "
        "(lower its output limit to reduce that)"
    )
    if reached.spent + amount <= cap.limit:  # only running requests are in the way
        message = f"The {cap} cap of {owner} has no room right now: {amounts}. Try again soon."
        return GatewayError(429, "insufficient_quota", message, headers={"retry-after": "1"})
    headers = {"x-should-retry": "false"}  # the clients' libraries honour it
    if amount > cap.limit:
        message = f"The {cap} cap of {owner} is lower than this request's maximum cost: {amounts}."
        return GatewayError(429, "insufficient_quota", message, headers=headers)
    reset = "It does not reset."
    if reached.resets_at is not None:
        reset = f"It resets at {_format_minute(reached.resets_at)}."
        headers["retry-after"] = str(max(1, round(reached.resets_at - time.time())))
    message = f"The {cap} cap of {owner} is reached: {amounts}. {reset}"
    return GatewayError(429, "insufficient_quota", message, headers=headers)


def rate_error(reached: RateReached, reservation: Reservation) -> GatewayError:
    """Return the error for a rate limit without room, with when to try again."""
    cap, owner = reached.cap, _describe_scope(reached.scope, reservation.key_name)
    needed = reservation.max_charge.amount(cap.unit)
    code, message = "rate_limit_exceeded", f"The limit of {cap} of {owner} is reached"
    if reached.wait is None:
        message = (
            f"The limit of {cap} of {owner} is lower than the {needed:,} {cap.unit} that this "
            "request may need. Shorten it, or lower its output limit."
        )
        return GatewayError(429, code, message, headers={"x-should-retry": "false"})
    if cap.period == "now":
        headers = {"retry-after": "1"}
        return GatewayError(429, code, f"{message}. Wait for a running request.", headers=headers)
    seconds = max(1, math.ceil(reached.wait))
    needs = f", and this request needs up to {needed:,}" if cap.unit == "tokens" else ""
    message = f"{message}: {reached.used:,} {cap.unit} in the last minute{needs}. "
    use = RateUse(reached.scope, cap, reached.used)
    headers = build_rate_headers(None, [use], reached.wait) | {"retry-after": str(seconds)}
    return GatewayError(429, code, f"{message}Try again in {seconds} s.", headers=headers)


def _describe_scope(scope: str, key: str) -> str:
    kind, name = scope_parts(scope)
    if kind == "key":
        return f"key {key}"
    if kind == "user":
        user = name.partition("/")[2]
        return f"end user {user!r:.60} of key {key}" if user else f"key {key} without an end user"
    return f"project {name}" if kind == "project" else "this gateway"


def _format_minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _format_amount(cap: Cap, amount: int) -> str:
    if cap.unit == "tokens":
        return f"{amount:,}"
    spent = to_dollars(amount)
    # Fractions of a cent matter only below one dollar.
    return f"${spent:,.2f}" if spent >= 1 else f"${spent.normalize():f}"
