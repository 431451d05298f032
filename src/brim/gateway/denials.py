"""Denials: what is said to those who may not: no key, no room under a cap, books that are away."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from brim.gateway.accounts.caps import scope_parts, to_dollars
from brim.gateway.errors import GatewayError

if TYPE_CHECKING:
    from brim.gateway.accounts.caps import Cap
    from brim.gateway.accounts.reservations import CapReached

INVALID_KEY_MESSAGE: Final = "this key is not known here, or was revoked"
RESERVATION_EXPIRED_MESSAGE: Final = (
    "the claim of this request ran out before it could be sent; try again"
)
_RETRY_SOON: Final = {"retry-after": "2"}
STORE_UNAVAILABLE_MESSAGE: Final = "the books of keys and caps cannot be reached; try again soon"


class StoreOutcomeUnknownError(GatewayError):
    """The books went away over a question: what they were asked for may be done all the same."""


def invalid_key_error(said: str) -> GatewayError:
    return GatewayError(401, "invalid_api_key", said, headers={"www-authenticate": "Bearer"})


def store_unavailable_error(said: str = STORE_UNAVAILABLE_MESSAGE) -> GatewayError:
    return GatewayError(503, "books_away", said, headers=_RETRY_SOON)


def store_outcome_unknown_error() -> StoreOutcomeUnknownError:
    return StoreOutcomeUnknownError(
        503, "books_away", STORE_UNAVAILABLE_MESSAGE, headers=_RETRY_SOON
    )


def cap_error(full: CapReached, amount: int, key: str) -> GatewayError:
    """A cap without room for a request, with the numbers, and when it opens again."""
    cap, whose = full.cap, _describe_scope(full.scope, key)
    numbers = (
        f"{_format_amount(cap, full.spent)} spent, {_format_amount(cap, full.reserved)} under way, "
        f"and this request may take {_format_amount(cap, amount)} "
        "(less, if it asks for a shorter answer)"
    )
    if full.spent + amount <= cap.most:  # only what runs now is in the way
        said = f"{whose} cap of {cap} has no room just now: {numbers}. Try again in a moment."
        return GatewayError(429, "insufficient_quota", said, headers={"retry-after": "1"})
    headers = {"x-should-retry": "false"}  # which the clients' libraries look at
    if amount > cap.most:
        said = f"{whose} cap of {cap} is smaller than what this request may take: {numbers}."
        return GatewayError(429, "insufficient_quota", said, headers=headers)
    when = "It does not open again by itself."
    if full.opens is not None:
        when = f"It opens again at {datetime.fromtimestamp(full.opens, UTC):%Y-%m-%d %H:%M} UTC."
        headers["retry-after"] = str(max(1, round(full.opens - time.time())))
    said = f"{whose} cap of {cap} is reached: {numbers}. {when}"
    return GatewayError(429, "insufficient_quota", said, headers=headers)


def _describe_scope(scope: str, key: str) -> str:
    kind, name = scope_parts(scope)
    if kind == "key":
        return f"the key {key}'s"
    return f"the project {name}'s" if kind == "project" else "the gateway's"


def _format_amount(cap: Cap, amount: int) -> str:
    if cap.unit == "tokens":
        return f"{amount:,}"
    spent = to_dollars(amount)
    # Fractions of a cent say something only where there is no whole dollar.
    return f"${spent:,.2f}" if spent >= 1 else f"${spent.normalize():f}"
