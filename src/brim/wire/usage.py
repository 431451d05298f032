"""Token usage and cost as providers report them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from brim.models.pricing import Usage

Fields = Mapping[str, Any]

_PLACES: Final = ("usage", "usageMetadata", "usage_metadata")


def parse_usage(payload: Fields) -> Usage | None:
    """Return the usage in a response, or in a usage object; None if there is none.

    Impossible numbers are rejected: an empty prompt, a count that is not a whole number, a cached
    part larger than the prompt.
    """
    if not isinstance(payload, Mapping):
        return None
    found = payload
    for name in _PLACES:
        if name in payload and isinstance(payload[name], Mapping):
            found = payload[name]
            break
    for read in _SHAPES:
        if (usage := read(found)) is not None:
            return usage
    return _timings(payload)


def parse_reported_cost(payload: Fields) -> Decimal | None:
    """Return the cost in dollars that OpenRouter and Perplexity report; None if there is none.

    If OpenRouter uses the caller's own provider key, `cost` is only its fee, and the provider's
    cost is in `cost_details`.
    """
    usage = payload.get("usage") if isinstance(payload, Mapping) else None
    found = usage if isinstance(usage, Mapping) else payload
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
    prompt, output = (
        _parse_count(usage.get("prompt_tokens")),
        _parse_output(usage.get("completion_tokens")),
    )
    if prompt is None or output is None:
        return None
    details = _inner(usage, "prompt_tokens_details")
    reasoning = _parse_count(_inner(usage, "completion_tokens_details").get("reasoning_tokens"))
    # xAI does not include reasoning in the completion; only the total shows it.
    if reasoning and usage.get("total_tokens") == prompt + output + reasoning:
        output += reasoning
    cached, written = details.get("cached_tokens"), details.get("cache_write_tokens")
    if _OUTSIDE.isdisjoint(usage):
        return _usage(prompt, _parse_count(cached), output, _parse_count(written))
    cached = _first_count(
        *(cached, usage.get("prompt_cache_hit_tokens")),
        *(usage.get("cached_tokens"), usage.get(_READ)),
    )
    return _usage(
        prompt,
        cached,
        output,
        _first_count(written, _count_cache_writes(usage)),
        _count_hour_writes(usage),
    )


def _items(usage: Fields) -> Usage | None:
    """Responses and Anthropic use the same names, but Anthropic's input excludes cached tokens."""
    fresh, output = (
        _parse_count(usage.get("input_tokens")),
        _parse_output(usage.get("output_tokens")),
    )
    if _READ in usage or _WRITTEN in usage or "cache_creation" in usage:
        cached, written = _parse_count(usage.get(_READ)) or 0, _count_cache_writes(usage) or 0
        whole = None if fresh is None else fresh + cached + written
        return _usage(whole, cached, output, written, _count_hour_writes(usage))
    details = _inner(usage, "input_tokens_details")
    cached = _first_count(details.get("cached_tokens"), usage.get("cached_tokens")) or 0
    return _usage(fresh, cached, output, _parse_count(details.get("cache_write_tokens")))


def _gemini(usage: Fields) -> Usage | None:
    prompt = _first_count(usage.get("promptTokenCount"), usage.get("prompt_token_count"))
    tools = _first_count(
        usage.get("toolUsePromptTokenCount"), usage.get("tool_use_prompt_token_count")
    )
    cached = _first_count(
        usage.get("cachedContentTokenCount"), usage.get("cached_content_token_count")
    )
    output = _first_count(usage.get("candidatesTokenCount"), usage.get("candidates_token_count"))
    reasoning = _first_count(usage.get("thoughtsTokenCount"), usage.get("thoughts_token_count"))
    whole = None if prompt is None else prompt + (tools or 0)
    return _usage(whole, cached, (output or 0) + (reasoning or 0))


def _ollama(usage: Fields) -> Usage | None:
    return _usage(
        _parse_count(usage.get("prompt_eval_count")), 0, _parse_output(usage.get("eval_count"))
    )


def _timings(response: Fields) -> Usage | None:
    """llama.cpp reports processed and cached prompt tokens separately."""
    timings = _inner(response, "timings")
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
"""Fields for cached tokens that some servers use outside of the details."""


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
    """Tokens written to the cache; the sum over the lifetimes if no total is reported."""
    if (total := _parse_count(usage.get(_WRITTEN))) is not None or "cache_creation" not in usage:
        return total
    minutes = _parse_count(_inner(usage, "cache_creation").get("ephemeral_5m_input_tokens")) or 0
    return minutes + _count_hour_writes(usage)


def _count_hour_writes(usage: Fields) -> int:
    """Tokens written to the cache for one hour."""
    if "cache_creation" not in usage:
        return 0
    return _parse_count(_inner(usage, "cache_creation").get("ephemeral_1h_input_tokens")) or 0


def _inner(fields: Fields, name: str) -> Fields:
    inner = fields.get(name)
    return inner if isinstance(inner, Mapping) else _NOTHING


def _first_count(*values: object) -> int | None:
    for value in values:
        if value is not None and (count := _parse_count(value)) is not None:
            return count
    return None


def _parse_count(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def _parse_output(value: object) -> int | None:
    """A missing count is 0; an impossible count (None) invalidates the whole report."""
    return 0 if value is None else _parse_count(value)


def _parse_dollars(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    amount = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    return amount if amount.is_finite() and amount >= 0 else None
