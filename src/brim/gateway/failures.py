"""Why a request failed, in words for the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FAILED_ENDS: Final = frozenset(("failed", "upstream_failed", "rejected", "stopped"))

_BY_CODE: Final[Mapping[str, str]] = {
    "account_store_unavailable": "The account store was unavailable, so its cap could not be "
    "checked. Check the store; the gateway retries by itself.",
    "body_timeout": "The client did not send its whole body in time (gateway.body_seconds).",
    "context_length_exceeded": "The request cannot be made to fit into the model's context window: "
    "what must stay is larger than the limit. Use a model with a larger window, or fewer pins.",
    "host_not_allowed": "The host name in the request is not one of this gateway. Add it to "
    "gateway.origins.",
    "insufficient_quota": "A spending cap had no room for the maximum cost of this request. Raise "
    "the cap, wait until it resets, or lower the output limit of the request.",
    "internal_error": "The gateway failed. Its log has the details under the id of this request.",
    "invalid_api_key": "The key is unknown, revoked or expired.",
    "invalid_header": "A brim- header of the request has an invalid value.",
    "invalid_json": "The body is not valid JSON.",
    "invalid_request": "The body is not a valid request of this format.",
    "method_not_allowed": "The path does not take this method.",
    "model_not_allowed": "The key is limited to other models.",
    "model_not_found": "No upstream serves this model. Check the name, or add it to the models of "
    "an upstream.",
    "no_key_for_token": "No active key belongs to the token of the sign-in provider. Set "
    "gateway.oidc.key, or create a key with the name in its claim.",
    "not_found": "The path does not exist.",
    "operator_key": "An operator key cannot send model requests. Use a client key.",
    "origin_not_allowed": "A web page of another site sent the request. Add its origin to "
    "gateway.origins if it may.",
    "price_unknown": "The key has a cap in dollars, and the price of this model is unknown. Set "
    "upstreams.NAME.price.",
    "rate_limit_exceeded": "The key sent too many requests or tokens in a minute, or too many at "
    "the same time.",
    "request_too_large": "The body is larger than gateway.max_body_bytes.",
    "sign_in_unavailable": "The sign-in provider did not respond, so a token could not be checked.",
    "too_many_requests_at_once": "The gateway ran gateway.max_requests requests already.",
    "uncountable": "The key has a cap, and the request uses a field or tool whose cost has no "
    "bound. Remove it, or list it in gateway.allowed_fields.",
    "uncounted_path": "The key has a cap, and requests to this path are not counted.",
    "unknown_header": "The request has an unknown brim- header.",
    "unsupported_encoding": "The body is compressed in a way that the gateway does not read.",
    "upstream_error": "The upstream's response was not valid.",
    "upstream_timeout": "The upstream did not respond in time (upstreams.NAME.timeout).",
    "upstream_unreachable": "The upstream could not be reached. Check its address and whether it "
    "runs.",
    "window_unknown": "The model's context window is unknown, so the request could not be fitted. "
    "Set upstreams.NAME.window.",
    "wrong_format": "The upstream of this model uses another format.",
}
_BY_STATUS: Final[Mapping[int, str]] = {
    400: "The upstream rejected the request as invalid.",
    401: "The upstream rejected its key. Check upstreams.NAME.key_env.",
    402: "The upstream's account has no credit left.",
    403: "The upstream does not allow this request with its key.",
    404: "The upstream does not know this model or path.",
    408: "The upstream timed out.",
    413: "The request is too large for the upstream.",
    422: "The upstream rejected the request as invalid.",
    429: "The upstream's rate limit or quota was reached.",
    500: "The upstream failed.",
    502: "The upstream's own server could not be reached.",
    503: "The upstream is overloaded or unavailable.",
    504: "The upstream's own server did not respond in time.",
    529: "The upstream is overloaded.",
}
_BY_END: Final[Mapping[str, str]] = {
    "stopped": "The gateway was stopped before the request ended.",
    "upstream_failed": "The upstream ended its response before it was complete.",
    "client_disconnected": "The client disconnected before the response was complete.",
    "failed": "The request failed. The gateway's log has the details under its id.",
    "rejected": "The gateway rejected the request.",
}


def has_failed(status: int, end: str) -> bool:
    """Return whether a request counts as failed; one whose client disconnected does not."""
    return status >= 400 or end in FAILED_ENDS


def explain_failure(request: Mapping[str, Any]) -> str | None:
    """Return why a request failed or ended early; None if it did not."""
    status, code, end = request["status"], request["code"], request["end"]
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status >= 400:
        upstream = f" ({request['upstream']})" if request["upstream"] else ""
        known = _BY_STATUS.get(status) or f"The upstream returned status {status}."
        return known.replace("The upstream", f"The upstream{upstream}", 1)
    return _BY_END.get(end)
