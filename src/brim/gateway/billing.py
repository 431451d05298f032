"""What one request costs: its maximum, reserved before it is sent, and its actual cost."""

from __future__ import annotations

import asyncio
import math
from decimal import Decimal
from typing import Final, Literal

from brim.gateway.account_service import UNCONFIRMED, AccountService
from brim.gateway.accounts.caps import MAX_AMOUNT, to_micro_dollars
from brim.gateway.accounts.keys import Access
from brim.gateway.accounts.rates import RateUse
from brim.gateway.accounts.reservations import Charge, Reservation, Settlement
from brim.gateway.cost_fields import (
    TIER_FIELD,
    check_bounded,
    check_tier,
    count_uncounted,
    flatten_options,
    load_capped_fields,
    max_output_tokens,
)
from brim.gateway.errors import GatewayError, StoreOutcomeUnknownError
from brim.gateway.fit_request import ClientRequest, FittedRequest
from brim.gateway.model_route import ModelRoute
from brim.gateway.records import RequestRecord
from brim.gateway.upstreams import UNCONFIGURED_UPSTREAMS
from brim.models import catalog
from brim.models.pricing import MILLION, Usage, compute_max_cost
from brim.wire.formats import ANTHROPIC, COMPACTION, EMBEDDINGS

ChargeStatus = Literal["nothing", "known", "unknown"]
"""What the last upstream charged: nothing, because it rejected the request or was not reached; what
the record says; or an unknown amount."""

NO_CHARGE: Final = Charge()
CACHE_FIELD: Final = b"cache_control"
HOUR_CACHE: Final = b'"1h"'
"""The value that asks for a one-hour cache, which costs twice the price of input."""


class RequestBilling:
    """The reservation of one request; if it is tried at two upstreams, for both of them."""

    def __init__(self, accounts: AccountService, access: Access, record: RequestRecord) -> None:
        self._accounts = accounts
        self._access = access
        self._record = record
        self.is_capped = bool(access.capped_units)
        self.user = ""
        """The end user on whose behalf the client sends the request."""
        self.rate_uses: tuple[RateUse, ...] = ()
        """The rate limits of the last reservation, and how much of each is used."""
        self._current = NO_CHARGE
        """The maximum charge of the current upstream."""
        self._unknown = NO_CHARGE
        """The maximum charge of earlier upstreams that got the request and did not report."""
        self._is_reserved = False
        self._is_sent = False
        self._deferred: tuple[Reservation, Charge] | None = None
        """The reservation that is made when the request is sent, and its upstream's part."""

    def check(self, request: ClientRequest) -> None:
        """Raise `GatewayError` if the maximum cost of a body is unknown and a cap needs it."""
        permitted = load_capped_fields(request.format, self._accounts.allowed_fields)
        check_bounded(request.body, request.raw, permitted)
        if TIER_FIELD in request.body and "dollars" in self._access.capped_units:
            check_tier(request.body)

    async def reserve(self, route: ModelRoute, fitted: FittedRequest, *, is_next: bool) -> None:
        """Reserve the maximum cost. Raise `GatewayError` if the request must not be sent.

        If sending it `is_next`, leave it to `mark_sent`, so that one operation does both. While the
        store is unavailable its answer may be lost, and such a reservation must not count as sent.
        """
        is_next = is_next and not self._accounts.is_unavailable
        allowed = self._accounts.allowed_fields if self.is_capped else None
        charge = compute_max_charge(route, fitted, allowed)
        if charge.is_unpriced and "dollars" in self._access.capped_units:
            raise _unknown_price_error(route)
        key = self._access.key
        reservation = Reservation(
            self._record.id,
            key.id,
            key.name,
            key.project,
            route.model,
            route.upstream.name,
            charge if self._unknown is NO_CHARGE else self._unknown + charge,
            self._access.caps_for(self.user),
            self.user,
            is_next,
        )
        self._deferred = (reservation, charge) if is_next else None
        if not is_next:
            await self._reserve(reservation, charge)

    async def mark_sent(self) -> None:
        """Record that the upstream gets the request now. Raise `GatewayError` if it must not."""
        if self._deferred is not None:
            deferred, self._deferred = self._deferred, None
            await self._reserve(*deferred)
        if self._is_reserved and not self._is_sent:
            await self._accounts.mark_sent(self._record.id)
            self._is_sent = True

    async def _reserve(self, reservation: Reservation, charge: Charge) -> None:
        try:
            # A reservation for an earlier upstream stands even if the store is unavailable now.
            admission = await self._accounts.reserve(reservation)
        except (asyncio.CancelledError, StoreOutcomeUnknownError):
            self._is_reserved = True  # perhaps: released immediately then, as nothing was sent
            raise
        self._current = charge
        if admission is not None:
            self._is_reserved, self.rate_uses = True, admission.uses
        # The store may not have an unconfirmed reservation, so it cannot be marked as sent.
        is_marked = reservation.is_sent and admission is not None
        self._is_sent = is_marked or admission is UNCONFIRMED

    def mark_unknown(self) -> None:
        """Count the maximum charge of the current upstream, because its report will not come."""
        self._unknown, self._current = self._unknown + self._current, NO_CHARGE

    def settlement(self, status: ChargeStatus) -> Settlement | None:
        """Return the actual cost of the request; None if nothing was reserved."""
        if status == "unknown":
            self.mark_unknown()
        if not self._is_reserved:
            return None
        record, charge = self._record, self._unknown
        is_estimated = record.is_usage_estimated or charge is not NO_CHARGE
        if status == "known" and record.usage is not None:
            cost = to_micro_dollars(record.cost or Decimal(0))
            actual = Charge(record.usage, cost, is_unpriced=record.cost is None)
            if actual.tokens > MAX_AMOUNT or actual.micro_dollars > MAX_AMOUNT:  # not plausible
                actual, is_estimated = self._current, True
            charge = actual if charge is NO_CHARGE else charge + actual
        return Settlement(record.id, charge, is_estimated)


def _unknown_price_error(route: ModelRoute) -> GatewayError:
    name = route.upstream.name
    setting = f"upstreams.{name}.price = {{ input = …, output = … }}"
    if name in UNCONFIGURED_UPSTREAMS:
        setting = "`brim serve --price INPUT/OUTPUT`"
    return GatewayError(
        403,
        "price_unknown",
        f"The price of {route.model or 'this model'} is unknown, and this key has a dollar cap. "
        f"Set {setting}, in dollars per million tokens (0 if it is free).",
        param="model",
    )


def compute_max_charge(
    route: ModelRoute, out: FittedRequest, allowed: tuple[str, ...] | None
) -> Charge:
    """Return the most that a request can cost: its count and margin, and the longest replies.

    `allowed` is `gateway.allowed_fields` if the key has caps, else None: then a cost without a
    bound is not an error.
    """
    usage = Usage(input=_max_prompt(route, out, allowed), output=_max_output(route, out))
    price = route.profile.price_for(usage.input)
    dollars = compute_max_cost(
        usage.input,
        usage.output,
        price,
        # In Anthropic's format a cache is written on request only, elsewhere at any time.
        writes_cache=out.parsed.format is not ANTHROPIC or CACHE_FIELD in out.raw,
        hour_cache=HOUR_CACHE in out.raw,
    )
    if dollars is None:
        return Charge(usage, is_unpriced=True)
    return Charge(usage, math.ceil(dollars * MILLION))


def _max_output(route: ModelRoute, out: FittedRequest) -> int:
    format, budget = out.parsed.format, out.plan.budget
    if format is EMBEDDINGS:
        return 0
    if format is COMPACTION:  # as long as the model can make it
        known = catalog.model(route.model)
        return (known and known.largest_output) or budget.window
    return max_output_tokens(flatten_options(out.body, format), format.reply_keys, budget.reply)


def _max_prompt(route: ModelRoute, out: FittedRequest, allowed: tuple[str, ...] | None) -> int:
    if out.is_whole and not out.is_open_ended:
        most = out.plan.size + _count_margin(route, out, allowed or ())
        return most if route.is_guessed else min(most, max(out.plan.size, out.plan.budget.room))
    # The server adds the rest, which can fill the window.
    if not route.is_guessed:
        return out.plan.budget.room
    if allowed is None:
        return out.plan.size
    raise GatewayError(
        403,
        "uncountable",
        "The server stores or adds a part of this conversation, and the model's window is "
        "unknown, so its cost has no bound. Set "
        f"upstreams.{route.upstream.name}.window.",
    )


def _count_margin(route: ModelRoute, out: FittedRequest, allowed: tuple[str, ...]) -> int:
    """Return how many tokens more than its count a prompt may take."""
    plan, counter = out.plan, out.parsed.planner.counter
    if plan.is_server_counted:
        return 0
    permitted = load_capped_fields(out.parsed.format, allowed)
    margin = count_uncounted(flatten_options(out.body, permitted.format), permitted, counter.text)
    if not plan.exact:
        # The budget's margin is a share of the whole window; a small request needs less.
        margin += math.ceil(plan.size * counter.uncertainty) + route.max_overhead(out)
    return margin
