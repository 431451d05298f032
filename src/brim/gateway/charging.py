"""Charging: what one request may cost at most, claimed before it is sent, and what it came to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from brim.accounts.caps import LARGEST, micro_dollars
from brim.accounts.claims import Bill, Claim, Settlement
from brim.gateway.faults import FaultError
from brim.usage import Usage

if TYPE_CHECKING:
    from decimal import Decimal

    from brim.accounts.keys import Access
    from brim.gateway.accounts import Accounts
    from brim.gateway.fitting import Outgoing
    from brim.gateway.lanes import Lane
    from brim.gateway.records import Record
    from brim.usage import Price

NOTHING: Final = Bill()
CHOICES: Final = ("n", "best_of")
"""How many answers a body asks for."""
ADDED: Final = 1_000
"""Tokens that a server may add to a prompt by itself."""
LONGEST: Final = 1 << 40
"""Tokens beyond which nobody answers; a sum of more could not be kept."""
OWN_BOUND: Final = "n_predict"
"""llama.cpp's own name for the length of an answer, which goes before all others there."""


class Charge:
    """The claim of one request; where it is tried at two upstreams, of both."""

    def __init__(self, accounts: Accounts, access: Access, record: Record) -> None:
        self._accounts = accounts
        self._access = access
        self._record = record
        self._current = NOTHING
        """What the upstream that is asked now may take."""
        self._lost = NOTHING
        """What earlier ones may have taken: they were sent the request, and nobody knows."""
        self._is_claimed = False

    @property
    def is_capped(self) -> bool:
        return bool(self._access.caps)

    async def claim(self, lane: Lane, out: Outgoing) -> None:
        """Set aside what this may come to. A fault where it must not be sent."""
        if self.is_capped:
            check_bounds(out.body, out.reading.form.REPLY_KEYS)
        worst = worst_bill(lane, out)
        if worst.is_unpriced and self._access.has_cap_in("dollars"):
            raise _unpriced(lane)
        access, record = self._access, self._record
        claim = Claim(
            record.id,
            access.key.id,
            access.key.name,
            access.key.project,
            lane.model,
            lane.upstream.name,
            self._lost + worst if self._lost.tokens else worst,
            access.caps,
        )
        try:
            # One that an earlier upstream needed stands, though the books be away by now.
            self._is_claimed = await self._accounts.claim(claim) or self._is_claimed
        except asyncio.CancelledError:
            self._is_claimed = True  # perhaps: then it is given back at once, as nothing was sent
            raise
        self._current = worst

    async def forward(self) -> None:
        """The upstream is reached, and gets the request now."""
        if self._is_claimed:
            await self._accounts.forward(self._record.id)

    def lose(self) -> None:
        """Nobody will know what the upstream that was asked took."""
        self._lost, self._current = self._lost + self._current, NOTHING

    def settlement(self, *, is_answered: bool) -> Settlement | None:
        """What the request came to; None where nothing was claimed."""
        if not self._is_claimed:
            return None
        record, bill = self._record, self._lost
        is_counted = record.is_usage_counted or bool(self._lost.tokens)
        if is_answered and record.usage is not None:
            taken = _bill(record)
            if max(taken.tokens, taken.micro_dollars) > LARGEST:  # nobody believes that
                taken, is_counted = self._current, True
            bill += taken
        return Settlement(record.id, bill, is_counted)


def _bill(record: Record) -> Bill:
    assert record.usage is not None
    if record.cost is None:
        return Bill(record.usage, is_unpriced=True)
    return Bill(record.usage, micro_dollars(record.cost))


def worst_bill(lane: Lane, out: Outgoing) -> Bill:
    """The most that a request can come to: its count, the margin, and the longest answers."""
    plan, budget = out.plan, out.plan.budget
    if not out.is_whole:  # the server keeps the rest, of which nobody knows more than the window
        if lane.is_guessed:
            raise FaultError(
                400,
                "uncountable",
                "the server keeps this conversation, and nobody knows the model's window: what it "
                f"costs cannot be bounded. Set upstreams.{lane.upstream.name}.window.",
            )
        prompt = budget.room
    else:
        prompt = plan.size + _doubt(lane, out)
    output = longest_answer(out.body, out.reading.form.REPLY_KEYS, budget.reply)
    usage = Usage(input=prompt, output=output)
    price = lane.target.price_for(prompt)
    if price is None or price.input is None or price.output is None:
        return Bill(usage, is_unpriced=True)
    # Dollars for a million tokens are micro-dollars for one.
    return Bill(usage, math.ceil(prompt * _dearest(price) + output * price.output))


def _doubt(lane: Lane, out: Outgoing) -> int:
    """How much more than its count a prompt may take."""
    plan = out.plan
    if plan.counted is not None or plan.exact:
        return 0
    # The budget's margin is a share of the whole window; of a small request the doubt is smaller.
    counter, offset = out.reading.planner.counter, round(lane.target.calibration.offset)
    doubt = math.ceil(plan.size * counter.uncertainty) + max(ADDED, offset)
    return doubt if lane.is_guessed else min(doubt, plan.budget.margin)


def _dearest(price: Price) -> Decimal:
    """The most that a token of the prompt can cost."""
    return max(rate for rate in (price.input, price.cached, price.written) if rate is not None)


def longest_answer(body: Mapping[str, Any], keys: Sequence[str], reply: int) -> int:
    """Tokens of all answers that a body asks for; where it sets no bound, as much as is kept."""
    bounds = [body[key] for key in (*keys, OWN_BOUND) if key in body and _is_number(body[key])]
    choices = [body[key] for key in CHOICES if key in body and _is_number(body[key])]
    return min(max(bounds, default=reply) * max(choices, default=1), LONGEST)


def check_bounds(body: Mapping[str, Any], keys: Sequence[str]) -> None:
    """A fault where a server could take what bounds the answers for any number, or for none."""
    for key in (*keys, OWN_BOUND, *CHOICES):
        if key in body and body[key] is not None and not _is_number(body[key]):
            said = f"this key has caps, and `{key}` is not a whole number above 0"
            raise FaultError(400, "invalid_request", said, param=key)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _unpriced(lane: Lane) -> FaultError:
    name = lane.upstream.name
    return FaultError(
        403,
        "price_unknown",
        f"this key has a cap in dollars, and nobody knows what {lane.model} costs. Set "
        f"upstreams.{name}.price = {{ input = …, output = … }}, in dollars per million tokens; "
        "0 for a model that costs nothing.",
        param="model",
    )
