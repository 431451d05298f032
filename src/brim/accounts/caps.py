"""Caps: how much may be spent on something, in which time.

Money is counted in whole micro-dollars and never in fractions. The time is a part of the name of
what is counted, so a new day begins by itself at nothing. Days and months are those of UTC, on the
clock of whoever keeps the books: clocks of several gateways may differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Final, Literal, get_args

from brim.errors import InputError

Period = Literal["day", "month", "total"]
Unit = Literal["dollars", "tokens"]

MICRO: Final = 1_000_000
LARGEST: Final = 10**15
"""No cap is higher: all sums stay far below what a 64-bit number holds."""
ALL: Final = "all"
"""The scope of everything together."""

_FACTORS: Final = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_CAP: Final = re.compile(
    r"\$?\s*(?P<number>[0-9][0-9_,]*(?:\.[0-9]+)?)\s*(?P<factor>[kmg]?)\s*"
    r"(?P<unit>dollars?|usd|tokens?)?\s*(?:(?:/|per|a|in)\s*(?P<period>day|month|total|all))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Cap:
    """So much, in such a time."""

    most: int
    """Micro-dollars or tokens."""
    unit: Unit = "dollars"
    period: Period = "total"

    @classmethod
    def parsed(cls, words: str) -> Cap:
        """A cap as people write it: `5/day`, `$100/month`, `2M tokens/day`, `250` for good."""
        match = _CAP.fullmatch(words.strip())
        if match is None:
            raise InputError(
                f"{words!r} is no cap; write dollars or tokens and a period: 5/day, 100/month, "
                "2M tokens/day, or 250 for all time"
            )
        number = Decimal(match["number"].replace(",", "").replace("_", ""))
        number *= _FACTORS[match["factor"].lower()]
        unit: Unit = "tokens" if (match["unit"] or "").lower().startswith("token") else "dollars"
        most = int(number) if unit == "tokens" else micro_dollars(number)
        if most > LARGEST:
            raise InputError(f"{words!r} is more than can be counted")
        period = (match["period"] or "total").lower()
        return cls(most, unit, "total" if period == "all" else _period(period))

    def __str__(self) -> str:
        amount = f"${dollars(self.most):,}" if self.unit == "dollars" else f"{self.most:,} tokens"
        return amount if self.period == "total" else f"{amount}/{self.period}"

    def to_list(self) -> list[int | str]:
        """Ready for JSON; `from_list` reads it back."""
        return [self.most, self.unit, self.period]

    @classmethod
    def from_list(cls, given: list[int | str]) -> Cap:
        most, unit, period = given
        return cls(int(most), "tokens" if unit == "tokens" else "dollars", _period(str(period)))


def _period(name: str) -> Period:
    for period in get_args(Period):
        if period == name:
            return period  # type: ignore[no-any-return]
    raise InputError(f"{name!r} is no period; there are {', '.join(get_args(Period))}")


def micro_dollars(amount: Decimal) -> int:
    """Dollars as whole micro-dollars; what is between is rounded up, so nothing goes uncounted."""
    return int((amount * MICRO).to_integral_value(ROUND_CEILING))


def dollars(micro: int) -> Decimal:
    return Decimal(micro) / MICRO


def period_name(period: Period, now: float) -> str:
    """The very day or month, as it stands in the name of a counter."""
    at = datetime.fromtimestamp(now, UTC)
    if period == "day":
        return at.strftime("%Y-%m-%d")
    return at.strftime("%Y-%m") if period == "month" else "total"


def opens_at(period: Period, now: float) -> float | None:
    """When a cap that is reached begins anew; None where it never does."""
    at = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return (at + timedelta(days=1)).timestamp()
    if period == "month":
        return (at.replace(day=1) + timedelta(days=32)).replace(day=1).timestamp()
    return None


def counter_name(scope: str, unit: Unit, period: str) -> str:
    """What is counted: `key:k_3f…/2026-11-15/dollars`. `period` is a `period_name`."""
    return f"{scope}/{period}/{unit}"


def key_scope(id: str) -> str:
    return f"key:{id}"


def project_scope(name: str) -> str:
    return f"project:{name}"
