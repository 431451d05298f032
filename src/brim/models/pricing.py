"""Token usage, prices, cost, and totals of calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Final

from brim.errors import InputError

MILLION = 1_000_000
_ZERO: Final = Decimal(0)
_NEWEST: Final = datetime.combine(date.max, time(12), UTC)
"""The time of the newest prices: noon, outside of off-peak discounts."""
HOUR_CACHE_RATE: Final = 2
"""Price of writing to the cache for one hour, relative to input; price lists do not contain it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more calls; usages add with `+`.

    `input` includes `cached` and `written`, and `output` includes reasoning. `wire.reply` converts
    the reports of providers that count them separately.
    """

    input: int = 0
    """All prompt tokens."""
    cached: int = 0
    """The part of `input` that was read from the provider's cache."""
    output: int = 0
    written: int = 0
    """The part of `input` that was written to the cache, for which some providers charge extra."""
    lasting: int = 0
    """The part of `written` that is cached for one hour, at twice the price of input."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.written + other.written,
            self.lasting + other.lasting,
        )


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens; an unknown price is None, not 0.

    Other numbers are converted to decimals: 0.1 is one tenth.
    """

    input: Decimal | None = None
    cached: Decimal | None = None
    output: Decimal | None = None
    written: Decimal | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value: object = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _to_rate(name, value))


def _to_rate(name: str, value: object) -> Decimal:
    """Return a price as a decimal; raise InputError if it is none."""
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    rate = Decimal(str(value)) if is_number else None
    if rate is None or not rate.is_finite() or rate < 0:
        message = f"Price: {name} must be a number of at least 0, in dollars per million tokens"
        raise InputError(f"{message}: {value!r}")
    return rate


FREE: Final = Price(input=_ZERO, output=_ZERO)
"""The price of models on the user's own servers."""


def cost(usage: Usage, price: Price | None) -> Decimal | None:
    """Return the cost in dollars; None if a required price is unknown.

    Without a price for cached or written tokens, they cost as much as other input.
    """
    if price is None:
        return None
    fresh = usage.input - usage.cached - usage.written
    parts = [(fresh, price.input), (usage.output, price.output)]
    if fresh != usage.input:
        parts += _cache_costs(usage, price)
    total = _ZERO
    for tokens, rate in parts:
        if tokens:
            if rate is None:
                return None
            total += tokens * rate
    return total / MILLION


def compute_max_cost(
    tokens: int,
    reply: int,
    price: Price | None,
    *,
    writes_cache: bool = True,
    hour_cache: bool = False,
) -> Decimal | None:
    """Return the most that a call can cost in dollars; None if its price is unknown.

    The reply is as long as it may be, and every token of the prompt costs the highest rate: that
    of input, of reading or (`writes_cache`) of writing the cache, or of writing it for one hour.
    """
    if price is None or price.input is None or (price.output is None and reply):
        return None
    cache_rates = (price.cached, price.written if writes_cache else None)
    rates = [price.input, *(rate for rate in cache_rates if rate is not None)]
    if hour_cache:
        rates.append(HOUR_CACHE_RATE * price.input)
    return (tokens * max(rates) + reply * (price.output or 0)) / MILLION


def _cache_costs(usage: Usage, price: Price) -> list[tuple[int, Decimal | None]]:
    """Return the cached and written tokens with their prices per million."""
    read = price.input if price.cached is None else price.cached
    write = price.input if price.written is None else price.written
    lasting = None if price.input is None else HOUR_CACHE_RATE * price.input
    return [
        (usage.cached, read),
        (usage.written - usage.lasting, write),
        (usage.lasting, lasting),
    ]


def price(model: str, provider: str | None = None, *, tokens: int = 0) -> Price | None:
    """Return the list price of a model; None if it is not listed.

    `tokens` is the length of the prompt: some models cost more for long prompts.
    """
    for start, listed in _find_list_prices(model, provider):
        if tokens > start or not start:
            return listed
    return None


@lru_cache(maxsize=256)
def _find_list_prices(model: str, provider: str | None) -> tuple[tuple[int, Price], ...]:
    """Return (prompt length from which it applies, price), longest first; empty if not listed."""
    from genai_prices import Usage as ListUsage
    from genai_prices import calc_price

    for name, seller in _candidate_sellers(model, provider):
        try:
            found = calc_price(
                ListUsage(), model_ref=name, provider_id=seller, genai_request_timestamp=_NEWEST
            ).model_price
        except LookupError:
            continue
        if found.requests_kcount:
            return ()  # a fee for each request comes in addition: tokens alone do not give the cost
        rates = (
            *(found.input_mtok, found.cache_read_mtok),
            *(found.output_mtok, found.cache_write_mtok),
        )
        starts = {0, *(tier.start for rate in rates for tier in getattr(rate, "tiers", ()))}
        return tuple(
            (start, Price(*(_rate(rate, start + 1) for rate in rates)))
            for start in sorted(starts, reverse=True)
        )
    return ()


def _candidate_sellers(model: str, provider: str | None) -> Iterator[tuple[str, str | None]]:
    """Return the (model, seller) pairs that a name may mean: `openrouter/openai/gpt-4o`."""
    yield model, provider
    rest = model
    while "/" in rest:
        seller, rest = rest.split("/", 1)
        yield rest, provider or seller
    if provider is None:
        yield rest, None
        if rest.startswith("text-embedding-"):  # several sellers list them
            yield rest, "openai"


def _rate(rate: object, tokens: int) -> Decimal | None:
    from genai_prices.types import TieredPrices

    if isinstance(rate, TieredPrices):
        reached = [tier.price for tier in rate.tiers if tokens > tier.start]
        return reached[-1] if reached else rate.base
    return rate if isinstance(rate, Decimal) else None


# Totals

_NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class SpendingTotal:
    """Usage and cost of one or more calls; totals add with `+`.

    A call of unknown price adds nothing to the cost and marks the sum, so that a total with unknown
    parts is shown as *at least*.
    """

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
    """Calls charged in full because brim was killed before their actual cost was known."""

    @property
    def cost(self) -> str:
        return self.total.format_cost() + (f", {self.presumed:,} presumed" if self.presumed else "")


def format_dollars(amount: Decimal, places: int | None = None) -> str:
    """Format dollars with as many places as are significant: `$12.50`, `$0.0021`, `$0.000015`."""
    if places is None:
        places = 2 if amount >= 1 or not amount else 4 if amount >= Decimal("0.0001") else 6
    return f"${amount:,.{places}f}"
