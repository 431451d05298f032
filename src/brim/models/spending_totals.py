"""Totals of calls: tokens and cost, grouped by any keys.

A call of unknown price adds nothing to the cost and marks the sum, so that a total with unknown
parts is shown as *at least*.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from brim.models.pricing import Usage

_NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class SpendingTotal:
    """Usage and cost of one or more calls; totals add with `+`."""

    calls: int = 0
    usage: Usage = _NO_USAGE
    cost: Decimal = Decimal(0)
    """Dollars, as far as they are known."""
    counted: int = 0
    """Prompt tokens as counted before sending."""
    unknown: bool = False
    """Whether the price of a call is unknown."""
    estimated: bool = False
    """Whether a response without usage is included, with the counted tokens."""

    def __add__(self, other: SpendingTotal) -> SpendingTotal:
        return SpendingTotal(
            self.calls + other.calls,
            self.usage + other.usage,
            self.cost + other.cost,
            self.counted + other.counted,
            self.unknown or other.unknown,
            self.estimated or other.estimated,
        )

    @property
    def tokens(self) -> int:
        return self.usage.input + self.usage.output

    def format_cost(self, places: int | None = None) -> str:
        """Return the cost as text: `$0.0021`, `at least $0.0021`, `unknown`."""
        if self.unknown and not self.cost:
            return "unknown"
        return ("at least " if self.unknown else "") + format_dollars(self.cost, places)


@dataclass(frozen=True, slots=True)
class SpendingRow:
    """The total of a group of calls."""

    keys: tuple[str, ...]
    """The values that the calls share: a day, a model, a project."""
    total: SpendingTotal
    presumed: int = 0
    """Calls charged in full because their gateway crashed before settling them."""

    @property
    def cost(self) -> str:
        return self.total.format_cost() + (f", {self.presumed:,} presumed" if self.presumed else "")


def format_dollars(amount: Decimal, places: int | None = None) -> str:
    """Format dollars with as many places as are significant: `$12.50`, `$0.0021`, `$0.000015`."""
    if places is None:
        places = 2 if amount >= 1 or not amount else 4 if amount >= Decimal("0.0001") else 6
    return f"${amount:,.{places}f}"
