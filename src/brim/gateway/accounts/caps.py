"""Caps: how much may be spent in a period, and how fast.

Money is counted in whole micro-dollars, never in fractions. The period is part of a counter's name,
so a new day starts at zero. Days, weeks (from Monday) and months are those of UTC on the clock of
the store, because the clocks of several gateways may differ.

A cap is also a rate limit: requests or tokens in any minute (`rates.py`), or concurrent requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Final, Literal, cast, get_args

from brim.errors import InputError

Period = Literal["day", "week", "month", "total", "minute", "now"]
"""A rate limit counts the last minute, or the requests that run now."""
Unit = Literal["dollars", "tokens", "requests"]

PERIODS: Final[tuple[Period, ...]] = ("day", "week", "month", "total")
"""The periods that spending is counted in."""
RATES: Final[tuple[tuple[Unit, Period], ...]] = (
    ("requests", "minute"),
    ("tokens", "minute"),
    ("requests", "now"),
)
DAY_SECONDS: Final = 86_400
MICRO_DOLLARS_PER_DOLLAR: Final = 1_000_000
MAX_AMOUNT: Final = 10**15
"""The highest cap, so that all sums stay far below the limit of a 64-bit integer."""
ALL: Final = "all"
"""The scope of all keys together."""

_UNITS: Final[Mapping[str, Unit]] = {"token": "tokens", "reque": "requests"}
_FACTORS: Final = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_CAP: Final = re.compile(
    r"\$?\s*(?P<number>[0-9][0-9_,]*(?:\.[0-9]+)?)\s*(?P<factor>[kmg]?)\s*"
    r"(?P<unit>dollars?|usd|tokens?|requests?)?\s*"
    rf"(?:(?:/|per|a|in)\s*(?P<period>{'|'.join(get_args(Period))}|all))?",
    re.IGNORECASE,
)
_SHORT_FORMS: Final = (
    (re.compile(r"\s*rpm$", re.IGNORECASE), " requests/minute"),
    (re.compile(r"\s*tpm$", re.IGNORECASE), " tokens/minute"),
    (
        re.compile(r"\s*(?:concurrent|requests at once)(?: requests?)?$", re.IGNORECASE),
        " requests/now",
    ),
)
_NUMBER: Final = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Cap:
    """An amount that may be spent in each period."""

    limit: int
    """Micro-dollars, tokens or requests."""
    unit: Unit = "dollars"
    period: Period = "total"

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise InputError(
                f"Unknown unit: {self.unit!r}. Use one of {', '.join(get_args(Unit))}."
            )
        if self.period not in get_args(Period):
            raise InputError(f"Unknown period: {self.period!r}. Use one of {', '.join(PERIODS)}.")
        if not self.is_rate and (self.unit == "requests" or self.period not in PERIODS):
            raise InputError(
                f"No such cap: {self.unit} per {self.period}. Requests are limited per minute or "
                "concurrently, tokens per minute or longer, dollars per day or longer."
            )

    @property
    def is_rate(self) -> bool:
        """Whether it limits how fast requests come, not what they cost."""
        return (self.unit, self.period) in RATES

    @classmethod
    def parse(cls, text: str) -> Cap:
        """Parse `5/day`, `$20/week`, `$100/month`, `2M tokens/day`, or `250` for all time.

        Rate limits are `60 requests/minute`, `100k tokens/minute` (or 60rpm, 100ktpm) and
        `8 concurrent`. Raise `InputError` if it is not a cap.
        """
        words = text.strip()
        for pattern, full in _SHORT_FORMS:
            words = pattern.sub(full, words)
        match = _CAP.fullmatch(words)
        if match is None:
            raise InputError(
                f"Invalid cap: {text!r}. Write dollars or tokens and a period: 5/day, 20/week, "
                "100/month, 2M tokens/day, or 250 for all time; or a rate: 60 requests/minute, "
                "100k tokens/minute, 8 concurrent."
            )
        number = _parse_number(match["number"], text) * _FACTORS[match["factor"].lower()]
        unit = _UNITS.get((match["unit"] or "").lower()[:5], "dollars")
        period = (match["period"] or "total").lower()
        if match["factor"] and unit == "dollars":
            time = "" if match["period"] is None else f"/{period}"
            raise InputError(
                f"Invalid cap: {text!r}. k, M and G are for tokens. Did you mean {match['number']}"
                f"{match['factor']} tokens{time}? In dollars, write {number:f}{time}."
            )
        limit = to_micro_dollars(number) if unit == "dollars" else int(number)
        if limit > MAX_AMOUNT:
            raise InputError(f"Cap too high: {text!r}.")
        return cls(limit, unit, "total" if period == "all" else cast("Period", period))

    def __str__(self) -> str:
        if self.period == "now":
            return f"{self.limit:,} concurrent requests"
        is_money = self.unit == "dollars"
        amount = f"${to_dollars(self.limit):,}" if is_money else f"{self.limit:,} {self.unit}"
        return amount if self.period == "total" else f"{amount}/{self.period}"


def parse_caps(texts: Iterable[str]) -> tuple[Cap, ...]:
    """Return caps from text; raise InputError for two caps of the same kind."""
    caps: dict[tuple[str, str], Cap] = {}
    for cap in map(Cap.parse, texts):
        if (other := caps.get((cap.unit, cap.period))) is not None:
            raise InputError(
                f"{other} and {cap} have the same unit and period. Give only one of them."
            )
        caps[cap.unit, cap.period] = cap
    return tuple(caps.values())


def _parse_number(digits: str, text: str) -> Decimal:
    """Parse a number with commas between thousands; reject a decimal comma, as in 1,5."""
    if not _NUMBER.fullmatch(digits):
        meant = text.replace(",", "." if digits.count(",") == 1 and "." not in digits else "")
        raise InputError(
            f"Invalid cap: {text!r}. A comma separates thousands (1,000) and a point decimals. "
            f"Did you mean {meant.strip()}?"
        )
    return Decimal(digits.replace(",", "").replace("_", ""))


def dump_caps(caps: Iterable[Cap]) -> str:
    """Return caps as the text that stores keep."""
    return json.dumps([(cap.limit, cap.unit, cap.period) for cap in caps])


def load_caps(text: str | None) -> tuple[Cap, ...]:
    """Return the caps in a text of `dump_caps`; none if it is None."""
    return tuple(Cap(*values) for values in json.loads(text or "[]"))


def to_micro_dollars(amount: Decimal) -> int:
    """Return whole micro-dollars, rounded up so that every cost counts."""
    return int((amount * MICRO_DOLLARS_PER_DOLLAR).to_integral_value(ROUND_CEILING))


def to_dollars(micro: int) -> Decimal:
    return Decimal(micro) / MICRO_DOLLARS_PER_DOLLAR


# Periods


def current_periods(now: float) -> Mapping[Period, str]:
    """Return the names of the current day, week and so on, as in the names of counters."""
    return name_periods(_name_day(int(now // DAY_SECONDS)))


@lru_cache(maxsize=4)
def _name_day(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_SECONDS, UTC).date().isoformat()


@lru_cache(maxsize=4)
def name_periods(day: str) -> Mapping[Period, str]:
    """Return the names of the periods that contain a day such as `2026-11-15`.

    A week has the name of its Monday: `W2026-11-09`.
    """
    date_ = date.fromisoformat(day)
    monday = date_ - timedelta(days=date_.weekday())
    return {"day": day, "week": f"W{monday}", "month": day[:7], "total": "total"}


_PERIODS_BY_LENGTH: Final[Mapping[int, Period]] = {
    len(name): period for period, name in name_periods("2026-11-15").items()
}


def period_kind(name: str) -> Period:
    """Return the period of a name, without a clock: the store's may differ."""
    return _PERIODS_BY_LENGTH[len(name)]


def first_day(name: str) -> date | None:
    """Return the first day of the period with this name; None if it contains all days."""
    if (kind := period_kind(name)) == "total":
        return None
    return date.fromisoformat(name[1:] if kind == "week" else f"{name}-01"[:10])


def start_of_day(day: date) -> float:
    """Return when a day begins, in seconds since 1970."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def reset_time(period: Period, now: float) -> float | None:
    """Return when a cap with this period resets; None if it never does, or is a rate limit."""
    name = current_periods(now).get(period)
    first = None if name is None else first_day(name)
    if first is None:
        return None
    if period == "month":
        return start_of_day((first + timedelta(days=31)).replace(day=1))
    return start_of_day(first + timedelta(days=7 if period == "week" else 1))


# Scopes


def counter_name(scope: str, unit: Unit, period: str) -> str:
    """Return a name such as `key:k_3f…/2026-11-15/dollars`; `period` is the name of one."""
    return f"{scope}/{period}/{unit}"


def key_scope(id: str) -> str:
    return f"key:{id}"


def project_scope(name: str) -> str:
    return f"project:{name}"


def each_user_scope(key: str) -> str:
    """Return the scope of the caps that every end user of a key has for themselves."""
    return f"users:{key}"


def user_scope(key: str, user: str) -> str:
    """Return the scope of one end user of a key; requests without a user share the empty name."""
    return f"user:{key}/{user}"


def caps_scope(scope: str) -> str:
    """Return the scope that the caps of a scope are kept under: end users of a key share theirs."""
    kind, name = scope_parts(scope)
    return each_user_scope(name.partition("/")[0]) if kind == "user" else scope


def scope_parts(scope: str) -> tuple[str, str]:
    """Return `("key", id)`, `("project", name)`, `("user", "id/name")`, or `(ALL, "")`."""
    kind, _, name = scope.partition(":")
    return kind, name
