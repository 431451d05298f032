"""What a call used, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from brim.catalog import Index

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, or of many: usages add with `+`.

    `input` includes `cached`, and `output` includes what the model thought before it answered.
    Providers that report cached tokens beside the input must be added up before.
    """

    input: int = 0
    """All tokens of the prompt."""
    cached: int = 0
    """The part of `input` that the provider had from before."""
    output: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input, self.cached + other.cached, self.output + other.output
        )


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens; what is not known is None, which is not 0."""

    input: Decimal | None = None
    cached: Decimal | None = None
    output: Decimal | None = None


def cost(usage: Usage, price: Price | None) -> Decimal | None:
    """What a usage costs; None where a price that is needed is not known.

    Without a price for cached tokens they cost what the others do.
    """
    if price is None:
        return None
    total = Decimal(0)
    cached = price.input if price.cached is None else price.cached
    fresh = usage.input - usage.cached
    for tokens, rate in (
        (fresh, price.input),
        (usage.cached, cached),
        (usage.output, price.output),
    ):
        if tokens and rate is None:
            return None
        total += tokens * (rate or 0)
    return total / MILLION


_own: Index[Price] = Index(versions=False)


def register_price(model: str, price: Price) -> None:
    """Say what a model costs, for this process; it goes before the price list."""
    _own.add(model, price)


def price(model: str, provider: str | None = None, *, tokens: int = 0) -> Price | None:
    """Today's list price of a model, or None where there is none.

    Some models cost more from a certain length of prompt on: `tokens` is that length.
    """
    if (own := _own.find(model)) is not None:
        return own
    from genai_prices import Usage as Used
    from genai_prices import calc_price

    for name, seller in _readings(model, provider):
        try:
            found = calc_price(Used(), model_ref=name, provider_id=seller).model_price
        except LookupError:
            continue
        return Price(
            _rate(found.input_mtok, tokens),
            _rate(found.cache_read_mtok, tokens),
            _rate(found.output_mtok, tokens),
        )
    return None


def _readings(model: str, provider: str | None) -> Iterator[tuple[str, str | None]]:
    """The ways in which a name can be meant: `openrouter/openai/gpt-4o` names its seller first."""
    yield model, provider
    rest = model
    while "/" in rest:
        seller, rest = rest.split("/", 1)
        yield rest, provider or seller
    if provider is None:
        yield rest, None


def _rate(rate: object, tokens: int) -> Decimal | None:
    from genai_prices.types import TieredPrices

    if isinstance(rate, TieredPrices):
        reached = [tier.price for tier in rate.tiers if tokens > tier.start]
        return reached[-1] if reached else rate.base
    return rate if isinstance(rate, Decimal) else None
