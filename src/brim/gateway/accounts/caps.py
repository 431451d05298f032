"""Caps: how much may be spent on something, in which time.

Money is counted in whole micro-dollars and never in fractions. The time is a part of the name of
what is counted, so a new day begins by itself at nothing. Days and months are those of UTC, on the
clock of whoever keeps the books: clocks of several gateways may differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Final, Literal, get_args

from brim.errors import InputError

Period = Literal["day", "month", "total"]
Unit = Literal["dollars", "tokens"]

MICRO_DOLLARS_PER_DOLLAR: Final = 1_000_000
MAX_AMOUNT: Final = 10**15
"""No cap is higher: all sums stay far below what a 64-bit number holds."""
ALL: Final = "all"
"""The scope of everything together."""

_FACTORS: Final = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_CAP: Final = re.compile(
    r"\$?\s*(?P<number>[0-9][0-9_,]*(?:\.[0-9]+)?)\s*(?P<factor>[kmg]?)\s*"
    r"(?P<unit>dollars?|usd|tokens?)?\s*(?:(?:/|per|a|in)\s*(?P<period>day|month|total|all))?",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?")


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
        number = _parse_number(match["number"], words) * _FACTORS[match["factor"].lower()]
        unit: Unit = "tokens" if (match["unit"] or "").lower().startswith("token") else "dollars"
        period = (match["period"] or "total").lower()
        if match["factor"] and unit == "dollars":
            time = "" if match["period"] is None else f"/{period}"
            raise InputError(
                f"{words!r} is no cap: k, M and G are for tokens. Did you mean {match['number']}"
                f"{match['factor']} tokens{time}? In dollars it is {number:f}{time}."
            )
        most = int(number) if unit == "tokens" else to_micro_dollars(number)
        if most > MAX_AMOUNT:
            raise InputError(f"{words!r} is more than can be counted")
        return cls(most, unit, "total" if period == "all" else _parse_period(period))

    def __str__(self) -> str:
        amount = (
            f"${to_dollars(self.most):,}" if self.unit == "dollars" else f"{self.most:,} tokens"
        )
        return amount if self.period == "total" else f"{amount}/{self.period}"


def _parse_number(text: str, words: str) -> Decimal:
    """A number in which a comma parts thousands; one that parts cents would make it a larger."""
    if not _NUMBER.fullmatch(text):
        meant = words.replace(",", "." if text.count(",") == 1 and "." not in text else "")
        raise InputError(
            f"{words!r} is no cap: a comma parts thousands, as in 1,000, and a point what is less "
            f"than one; did you mean {meant.strip()}?"
        )
    return Decimal(text.replace(",", "").replace("_", ""))


def dump_caps(caps: Iterable[Cap]) -> str:
    """Caps as stores keep them; `caps_of` reads it back."""
    return json.dumps([(cap.most, cap.unit, cap.period) for cap in caps])


def load_caps(text: str | None) -> tuple[Cap, ...]:
    """The caps in a text of `caps_text`; without one there are none."""
    return tuple(
        Cap(int(most), "tokens" if unit == "tokens" else "dollars", _parse_period(period))
        for most, unit, period in json.loads(text or "[]")
    )


def _parse_period(name: str) -> Period:
    for period in get_args(Period):
        if period == name:
            return period  # type: ignore[no-any-return]
    raise InputError(f"{name!r} is no period; there are {', '.join(get_args(Period))}")


def to_micro_dollars(amount: Decimal) -> int:
    """Dollars as whole micro-dollars; what is between is rounded up, so nothing goes uncounted."""
    return int((amount * MICRO_DOLLARS_PER_DOLLAR).to_integral_value(ROUND_CEILING))


def to_dollars(micro: int) -> Decimal:
    return Decimal(micro) / MICRO_DOLLARS_PER_DOLLAR


def period_name(period: Period, now: float) -> str:
    """The very day or month, as it stands in the name of a counter."""
    at = datetime.fromtimestamp(now, UTC)
    if period == "day":
        return at.strftime("%Y-%m-%d")
    return at.strftime("%Y-%m") if period == "month" else "total"


def reset_time(period: Period, now: float) -> float | None:
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


def scope_parts(scope: str) -> tuple[str, str]:
    """Whose a scope is: `("key", id)`, `("project", name)`, or `(ALL, "")`."""
    kind, _, whose = scope.partition(":")
    return kind, whose
