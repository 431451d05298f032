"""Denials: what is said to those who may not: no key, no room under a cap, books that are away."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from brim.gateway.accounts.caps import dollars, scope_parts
from brim.gateway.errors import FaultError

if TYPE_CHECKING:
    from brim.gateway.accounts.caps import Cap
    from brim.gateway.accounts.reservations import Full

REVOKED: Final = "this key is not known here, or was revoked"
OVER: Final = "the claim of this request ran out before it could be sent; try again"
_SOON: Final = {"retry-after": "2"}
AWAY: Final = "the books of keys and caps cannot be reached; try again soon"


class UnheardError(FaultError):
    """The books went away over a question: what they were asked for may be done all the same."""


def stranger(said: str) -> FaultError:
    return FaultError(401, "invalid_api_key", said, headers={"www-authenticate": "Bearer"})


def away(said: str = AWAY) -> FaultError:
    return FaultError(503, "books_away", said, headers=_SOON)


def unheard() -> UnheardError:
    return UnheardError(503, "books_away", AWAY, headers=_SOON)


def no_room(full: Full, amount: int, key: str) -> FaultError:
    """A cap without room for a request, with the numbers, and when it opens again."""
    cap, whose = full.cap, _whose(full.scope, key)
    numbers = (
        f"{_shown(cap, full.spent)} spent, {_shown(cap, full.reserved)} under way, and this "
        f"request may take {_shown(cap, amount)} (less, if it asks for a shorter answer)"
    )
    if full.spent + amount <= cap.most:  # only what runs now is in the way
        said = f"{whose} cap of {cap} has no room just now: {numbers}. Try again in a moment."
        return FaultError(429, "insufficient_quota", said, headers={"retry-after": "1"})
    headers = {"x-should-retry": "false"}  # which the clients' libraries look at
    if amount > cap.most:
        said = f"{whose} cap of {cap} is smaller than what this request may take: {numbers}."
        return FaultError(429, "insufficient_quota", said, headers=headers)
    when = "It does not open again by itself."
    if full.opens is not None:
        when = f"It opens again at {datetime.fromtimestamp(full.opens, UTC):%Y-%m-%d %H:%M} UTC."
        headers["retry-after"] = str(max(1, round(full.opens - time.time())))
    said = f"{whose} cap of {cap} is reached: {numbers}. {when}"
    return FaultError(429, "insufficient_quota", said, headers=headers)


def _whose(scope: str, key: str) -> str:
    kind, name = scope_parts(scope)
    if kind == "key":
        return f"the key {key}'s"
    return f"the project {name}'s" if kind == "project" else "the gateway's"


def _shown(cap: Cap, amount: int) -> str:
    if cap.unit == "tokens":
        return f"{amount:,}"
    spent = dollars(amount)
    # Fractions of a cent say something only where there is no whole dollar.
    return f"${spent:,.2f}" if spent >= 1 else f"${spent.normalize():f}"
