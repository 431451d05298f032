"""Faults: what is said instead of an answer, in the shape that the client's own library reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

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
from brim.gateway.formats import MESSAGES, RESPONSES

if TYPE_CHECKING:
    from brim.gateway.formats import BodyFormat

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


class GatewayError(Exception):
    """A request ends here: the status, the code that programs look at, and the sentence."""

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

    def body(self, form: BodyFormat | None, request_id: str) -> bytes:
        """What goes out. Without a form, as OpenAI's clients read it."""
        if form is MESSAGES:
            kind = "invalid_request_error" if self.status < 500 else "api_error"
            error = {"type": _ANTHROPIC_TYPES.get(self.status, kind), "message": self.message}
            said = {"type": "error", "error": error}
            return orjson.dumps(said | {"request_id": request_id} if request_id else said)
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == 429:
            kind = self.code
        error_ = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error_})

    def event(self, form: BodyFormat) -> bytes:
        """The same in the middle of a stream."""
        if form is RESPONSES:
            error = {"type": "error", "code": self.code, "message": self.message, "param": None}
            return b"event: error\ndata: " + orjson.dumps(error) + b"\n\n"
        named = b"event: error\n" if form is MESSAGES else b""
        return named + b"data: " + self.body(form, "") + b"\n\n"


def context_length_error(form: BodyFormat, error: ContextOverflowError) -> GatewayError:
    """What cannot fit, in the words that the client's library knows, with the numbers."""
    if form is MESSAGES:
        said = f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
    else:
        said = (
            f"This model's maximum context length is {error.limit} tokens. However, your messages "
            f"resulted in {error.tokens} tokens"
        )
    return GatewayError(400, "context_length_exceeded", f"{said}. {error}", param=form.param)


def to_gateway_error(form: BodyFormat, error: BrimError) -> GatewayError:
    """The fault that an error of brim's own is to a client."""
    match error:
        case ContextOverflowError():
            return context_length_error(form, error)
        case BudgetError():
            return GatewayError(400, "window_unknown", str(error))
        case InputError():
            return GatewayError(400, "invalid_request", str(error), param=form.param)
        case AccountStoreUnavailableError():
            return GatewayError(503, "books_away", str(error), headers={"retry-after": "2"})
        case ProviderTimeoutError():
            return GatewayError(504, "upstream_timeout", str(error))
        case ConnectionFailedError():
            return GatewayError(502, "upstream_unreachable", str(error))
        case ProviderError():
            return GatewayError(502, "upstream_error", str(error))
        case _:
            return GatewayError(500, "internal_error", str(error))
