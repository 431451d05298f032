"""Charging: what one request may cost at most, claimed before it is sent, and what it came to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from brim.gateway.accounts.caps import MAX_AMOUNT, to_micro_dollars
from brim.gateway.accounts.reservations import Charge, Reservation, Settlement
from brim.gateway.denials import StoreOutcomeUnknownError
from brim.gateway.errors import GatewayError
from brim.gateway.max_cost import TIER_FIELD, check_bounded, check_tier, compute_max_cost
from brim.gateway.upstreams import UNCONFIGURED_UPSTREAMS

if TYPE_CHECKING:
    from brim.gateway.accounts.keys import Access
    from brim.gateway.fit_request import FittedRequest
    from brim.gateway.records import RequestRecord
    from brim.gateway.reservations import AccountService
    from brim.gateway.routes import ModelRoute
    from brim.wire import Format

ChargeStatus = Literal["nothing", "known", "unknown"]
"""What the upstream that was asked last took: nothing, since it refused or was not reached; what
the record says; or what nobody can know."""

NO_CHARGE: Final = Charge()


class RequestBilling:
    """The claim of one request; where it is tried at two upstreams, of both."""

    def __init__(self, accounts: AccountService, access: Access, record: RequestRecord) -> None:
        self._accounts = accounts
        self._access = access
        self._record = record
        self.is_capped = bool(access.caps)
        self._current = NO_CHARGE
        """What the upstream that is asked now may take."""
        self._lost = NO_CHARGE
        """What earlier ones may have taken: they were sent the request, and nobody knows."""
        self._is_claimed = False
        self._is_forwarded = False

    def check(self, body: Mapping[str, Any], form: Format) -> None:
        """A fault where nobody can say what a body may come to, and a cap would have to know."""
        check_bounded(body, form)
        if TIER_FIELD in body and self._access.has_cap_in("dollars"):
            check_tier(body)

    async def claim(self, lane: ModelRoute, out: FittedRequest, *, at_once: bool) -> None:
        """Set aside what this may come to. A fault where it must not be sent.

        `at_once` spares the books a second step: it goes out as soon as they have it.
        """
        worst = compute_max_cost(lane, out, is_capped=self.is_capped)
        if worst.is_unpriced and self._access.has_cap_in("dollars"):
            raise _unknown_price_error(lane)
        # Of books that are away nobody knows what they take: what is not forwarded, they give back.
        self._is_forwarded = at_once and not self._accounts.is_away
        key = self._access.key
        claim = Reservation(
            self._record.id,
            key.id,
            key.name,
            key.project,
            lane.model,
            lane.upstream.name,
            worst if self._lost is NO_CHARGE else self._lost + worst,
            self._access.caps,
            self._is_forwarded,
        )
        try:
            # One that an earlier upstream needed stands, though the books be away by now.
            self._is_claimed = await self._accounts.claim(claim) or self._is_claimed
        except (asyncio.CancelledError, StoreOutcomeUnknownError):
            self._is_claimed = True  # perhaps: then it is given back at once, as nothing was sent
            raise
        self._current = worst

    async def forward(self) -> None:
        """The upstream is reached, and gets the request now."""
        if self._is_claimed and not self._is_forwarded:
            await self._accounts.forward(self._record.id)
            self._is_forwarded = True

    def lose(self) -> None:
        """Nobody will know what the upstream that was asked took."""
        self._lost, self._current = self._lost + self._current, NO_CHARGE

    def settlement(self, taken: ChargeStatus) -> Settlement | None:
        """What the request came to; None where nothing was claimed."""
        if taken == "unknown":
            self.lose()
        if not self._is_claimed:
            return None
        record, bill = self._record, self._lost
        is_counted = record.is_usage_counted or bill is not NO_CHARGE
        if taken == "known" and record.usage is not None:
            known = _actual_charge(record)
            if (
                known.tokens > MAX_AMOUNT or known.micro_dollars > MAX_AMOUNT
            ):  # nobody believes that
                known, is_counted = self._current, True
            bill = known if bill is NO_CHARGE else bill + known
        return Settlement(record.id, bill, is_counted)


def _actual_charge(record: RequestRecord) -> Charge:
    assert record.usage is not None
    if record.cost is None:
        return Charge(record.usage, is_unpriced=True)
    return Charge(record.usage, to_micro_dollars(record.cost))


def _unknown_price_error(lane: ModelRoute) -> GatewayError:
    name = lane.upstream.name
    way = f"upstreams.{name}.price = {{ input = …, output = … }}"
    if name in UNCONFIGURED_UPSTREAMS:
        way = "its price with `brim serve --price INPUT/OUTPUT`"
    return GatewayError(
        403,
        "price_unknown",
        f"this key has a cap in dollars, and nobody knows what {lane.model or 'this model'} costs. "
        f"Set {way}, in dollars per million tokens; 0 for a model that costs nothing.",
        param="model",
    )
