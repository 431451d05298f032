"""What a call used, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from brim.models.catalog import NameIndex

MILLION = 1_000_000
_ZERO: Final = Decimal(0)
HOUR_CACHE_RATE: Final = 2
"""How many times the price of input it costs to keep a prompt for an hour; no list has that."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, or of many: usages add with `+`.

    `input` includes `cached` and `written`, and `output` includes what the model thought before it
    answered. Providers that report cached tokens beside the input must be added up before, as
    `reported` does.
    """

    input: int = 0
    """All tokens of the prompt."""
    cached: int = 0
    """The part of `input` that the provider had from before."""
    output: int = 0
    written: int = 0
    """The part of `input` that the provider put into its cache, for which some charge extra."""
    lasting: int = 0
    """The part of `written` that stays for an hour, at twice the price of input."""

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
    """Dollars per million tokens; what is not known is None, which is not 0."""

    input: Decimal | None = None
    cached: Decimal | None = None
    output: Decimal | None = None
    written: Decimal | None = None


def cost(usage: Usage, price: Price | None) -> Decimal | None:
    """What a usage costs; None where a price that is needed is not known.

    Without a price for cached or for written tokens they cost what the others do.
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


def _cache_costs(usage: Usage, price: Price) -> list[tuple[int, Decimal | None]]:
    """Tokens that a provider had from before or put there, and what a million of them costs."""
    read = price.input if price.cached is None else price.cached
    put = price.input if price.written is None else price.written
    lasting = None if price.input is None else HOUR_CACHE_RATE * price.input
    return [
        (usage.cached, read),
        (usage.written - usage.lasting, put),
        (usage.lasting, lasting),
    ]


_own: NameIndex[Price] = NameIndex(versions=False)


def register_price(model: str, price: Price) -> None:
    """Say what a model costs, for this process; it goes before the price list."""
    _own.add(model, price)


def price(model: str, provider: str | None = None, *, tokens: int = 0) -> Price | None:
    """Today's list price of a model, or None where there is none.

    Some models cost more from a certain length of prompt on: `tokens` is that length.
    """
    if (own := _own.find(model)) is not None:
        return own
    today = date.today()  # noqa: DTZ011 - prices change by the day
    for start, listed in _find_list_prices(model, provider, today):
        if tokens > start or not start:
            return listed
    return None


@lru_cache(maxsize=256)
def _find_list_prices(model: str, provider: str | None, _: date) -> tuple[tuple[int, Price], ...]:
    """The list's prices, each from a length of prompt on, the longest first; none: not listed."""
    from genai_prices import Usage as Used
    from genai_prices import calc_price

    for name, seller in _candidate_sellers(model, provider):
        try:
            found = calc_price(Used(), model_ref=name, provider_id=seller).model_price
        except LookupError:
            continue
        rates = (
            *(found.input_mtok, found.cache_read_mtok),
            *(found.output_mtok, found.cache_write_mtok),
        )
        starts = {0, *(tier.start for rate in rates for tier in getattr(rate, "tiers", ()))}
        longest_first = sorted(starts, reverse=True)
        return tuple(
            (start, Price(*(_rate(rate, start + 1) for rate in rates))) for start in longest_first
        )
    return ()


def _candidate_sellers(model: str, provider: str | None) -> Iterator[tuple[str, str | None]]:
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


# What providers report

Fields = Mapping[str, Any]

_PLACES: Final = ("usage", "usageMetadata", "usage_metadata")


def parse_usage(payload: Fields) -> Usage | None:
    """The usage in a provider's answer, or in the usage object of one; None where there is none.

    Numbers that cannot be are not believed: a prompt of no tokens, a count that is not one, a
    cached part larger than the whole.
    """
    if not _is_mapping(payload):
        return None
    found = payload
    for name in _PLACES:
        if name in payload and _is_mapping(payload[name]):
            found = payload[name]
            break
    for read in _SHAPES:
        if (usage := read(found)) is not None:
            return usage
    return _timings(payload)


def _is_mapping(value: object) -> bool:
    return value.__class__ is dict or isinstance(value, Mapping)  # the first is far cheaper


def parse_reported_cost(payload: Fields) -> Decimal | None:
    """The dollars that a provider says it took: OpenRouter and Perplexity do.

    Where OpenRouter uses a key of one's own, `cost` is only its fee, and the price of the model
    stands beside.
    """
    usage = payload.get("usage") if _is_mapping(payload) else None
    found = payload if usage is None or not _is_mapping(usage) else usage
    if "cost" not in found:
        return None
    match found:
        case {"cost": {"total_cost": total}}:
            return _parse_dollars(total)
        case {"is_byok": True, "cost": fee, "cost_details": {"upstream_inference_cost": rest}}:
            known = [
                amount
                for amount in (_parse_dollars(fee), _parse_dollars(rest))
                if amount is not None
            ]
            return sum(known, Decimal(0)) if len(known) == 2 else None
        case {"cost": total}:
            return _parse_dollars(total)
        case _:
            return None


def _chat(usage: Fields) -> Usage | None:
    prompt, said = (
        _parse_count(usage.get("prompt_tokens")),
        _parse_output(usage.get("completion_tokens")),
    )
    if prompt is None or said is None:
        return None
    details = _inner(usage, "prompt_tokens_details")
    thought = _parse_count(_inner(usage, "completion_tokens_details").get("reasoning_tokens"))
    # xAI counts thinking beside the answer; only the total tells.
    if thought and usage.get("total_tokens") == prompt + said + thought:
        said += thought
    cached, written = details.get("cached_tokens"), details.get("cache_write_tokens")
    if _OUTSIDE.isdisjoint(usage):
        return _usage(prompt, _parse_count(cached), said, _parse_count(written))
    cached = _first_count(
        *(cached, usage.get("prompt_cache_hit_tokens")),
        *(usage.get("cached_tokens"), usage.get(_READ)),
    )
    return _usage(
        prompt,
        cached,
        said,
        _first_count(written, _count_cache_writes(usage)),
        _count_hour_writes(usage),
    )


def _items(usage: Fields) -> Usage | None:
    """Responses and Anthropic: the same names, but Anthropic counts cached tokens beside."""
    fresh, said = _parse_count(usage.get("input_tokens")), _parse_output(usage.get("output_tokens"))
    if _READ in usage or _WRITTEN in usage or "cache_creation" in usage:
        cached, written = _parse_count(usage.get(_READ)) or 0, _count_cache_writes(usage) or 0
        whole = None if fresh is None else fresh + cached + written
        return _usage(whole, cached, said, written, _count_hour_writes(usage))
    details = _inner(usage, "input_tokens_details")
    cached = _first_count(details.get("cached_tokens"), usage.get("cached_tokens")) or 0
    return _usage(fresh, cached, said, _parse_count(details.get("cache_write_tokens")))


def _gemini(usage: Fields) -> Usage | None:
    prompt = _first_count(usage.get("promptTokenCount"), usage.get("prompt_token_count"))
    tools = _first_count(
        usage.get("toolUsePromptTokenCount"), usage.get("tool_use_prompt_token_count")
    )
    cached = _first_count(
        usage.get("cachedContentTokenCount"), usage.get("cached_content_token_count")
    )
    said = _first_count(usage.get("candidatesTokenCount"), usage.get("candidates_token_count"))
    thought = _first_count(usage.get("thoughtsTokenCount"), usage.get("thoughts_token_count"))
    whole = None if prompt is None else prompt + (tools or 0)
    return _usage(whole, cached, (said or 0) + (thought or 0))


def _ollama(usage: Fields) -> Usage | None:
    return _usage(
        _parse_count(usage.get("prompt_eval_count")), 0, _parse_output(usage.get("eval_count"))
    )


def _timings(answer: Fields) -> Usage | None:
    """llama.cpp says what it worked on, and what it had from before."""
    timings = _inner(answer, "timings")
    fresh, cached = _parse_count(timings.get("prompt_n")), _parse_count(timings.get("cache_n")) or 0
    whole = None if fresh is None else fresh + cached
    return _usage(whole, cached, _parse_output(timings.get("predicted_n")))


_SHAPES: Final[tuple[Callable[[Fields], Usage | None], ...]] = (_chat, _items, _gemini, _ollama)
_NOTHING: Final[Fields] = {}
_READ: Final = "cache_read_input_tokens"
_WRITTEN: Final = "cache_creation_input_tokens"
_OUTSIDE: Final = frozenset(
    ("prompt_cache_hit_tokens", "cached_tokens", _READ, _WRITTEN, "cache_creation")
)
"""Where some servers say what was cached, outside of the details."""


def _usage(
    prompt: int | None,
    cached: int | None,
    output: int | None,
    written: int | None = None,
    lasting: int = 0,
) -> Usage | None:
    if not prompt or output is None:
        return None
    hit = min(cached or 0, prompt)
    put = min(written or 0, prompt - hit)
    return Usage(prompt, hit, output, put, min(lasting, put))


def _count_cache_writes(usage: Fields) -> int | None:
    """What was put into the cache; by how long it is to stay there, where only that is said."""
    if (told := _parse_count(usage.get(_WRITTEN))) is not None or "cache_creation" not in usage:
        return told
    minutes = _parse_count(_inner(usage, "cache_creation").get("ephemeral_5m_input_tokens")) or 0
    return minutes + _count_hour_writes(usage)


def _count_hour_writes(usage: Fields) -> int:
    """What was put into the cache for an hour."""
    if "cache_creation" not in usage:
        return 0
    return _parse_count(_inner(usage, "cache_creation").get("ephemeral_1h_input_tokens")) or 0


def _inner(fields: Fields, name: str) -> Fields:
    inner = fields.get(name)
    return _NOTHING if inner is None or not _is_mapping(inner) else inner


def _first_count(*values: object) -> int | None:
    for value in values:
        if value is not None and (count := _parse_count(value)) is not None:
            return count
    return None


def _parse_count(value: object) -> int | None:
    if value.__class__ is int:
        return value if value >= 0 else None
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def _parse_output(value: object) -> int | None:
    """Nothing said is nothing; a number that cannot be makes the whole report unbelievable."""
    return 0 if value is None else _parse_count(value)


def _parse_dollars(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    amount = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    return amount if amount.is_finite() and amount >= 0 else None
