"""A model's reply, independent of the provider's format, and the usage and cost that it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from brim.errors import InvalidResponseError
from brim.messages import Call
from brim.models.pricing import Usage
from brim.wire.body_parts import Part, get_mapping


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: the turn to append to the history, and facts about the call."""

    message: Mapping[str, object]
    """The assistant turn in the chat shape, ready to be sent back; `_` fields hold the original
    blocks of other formats (signatures)."""
    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    """The finish reason, in the provider's terms."""
    usage: Usage | None = None
    """None if the provider reported none."""
    cost: Decimal | None = None
    """Dollars, if the provider reported the cost of the call."""
    model: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is neither text nor a tool call."""
        return not self.text and not self.calls

    @property
    def is_cut(self) -> bool:
        """Whether the reply ended because it reached a length limit."""
        return self.finish in (
            "length",
            "max_tokens",
            "model_context_window_exceeded",
            "incomplete",
            "model_length",
            "MAX_TOKENS",
        )

    def __str__(self) -> str:
        return self.text


def check_finish(reply: Reply) -> None:
    """Raise InvalidResponseError if a streamed reply has no finish reason."""
    if reply.finish is None:
        raise InvalidResponseError(
            "The reply may be incomplete: the server ended it without a finish reason."
        )


# Usage


def parse_usage(payload: Part) -> Usage | None:
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
    return _read_timings(payload)


def _read_chat(usage: Part) -> Usage | None:
    prompt, output = _count(usage, "prompt_tokens"), _count_output(usage, "completion_tokens")
    if prompt is None or output is None:
        return None
    details = get_mapping(usage, "prompt_tokens_details")
    reasoning = _count(get_mapping(usage, "completion_tokens_details"), "reasoning_tokens")
    # xAI does not include reasoning in the completion; only the total shows it.
    if reasoning and usage.get("total_tokens") == prompt + output + reasoning:
        output += reasoning
    cached, written = _count(details, "cached_tokens"), _count(details, "cache_write_tokens")
    if cached is None:
        cached = _count(usage, "prompt_cache_hit_tokens", "cached_tokens", _READ)
    if written is None:
        written = _count_cache_writes(usage)
    return _build_usage(prompt, cached, output, written, _count_hour_writes(usage))


def _read_items(usage: Part) -> Usage | None:
    """Responses and Anthropic use the same names, but Anthropic's input excludes cached tokens."""
    fresh, output = _count(usage, "input_tokens"), _count_output(usage, "output_tokens")
    if _READ in usage or _WRITTEN in usage or "cache_creation" in usage:
        read, written = _count(usage, _READ) or 0, _count_cache_writes(usage) or 0
        whole = None if fresh is None else fresh + read + written
        return _build_usage(whole, read, output, written, _count_hour_writes(usage))
    details = get_mapping(usage, "input_tokens_details")
    cached = _count(details, "cached_tokens")
    if cached is None:
        cached = _count(usage, "cached_tokens")
    return _build_usage(fresh, cached, output, _count(details, "cache_write_tokens"))


def _read_gemini(usage: Part) -> Usage | None:
    prompt = _count(usage, "promptTokenCount", "prompt_token_count")
    tools = _count(usage, "toolUsePromptTokenCount", "tool_use_prompt_token_count")
    cached = _count(usage, "cachedContentTokenCount", "cached_content_token_count")
    output = _count(usage, "candidatesTokenCount", "candidates_token_count")
    reasoning = _count(usage, "thoughtsTokenCount", "thoughts_token_count")
    whole = None if prompt is None else prompt + (tools or 0)
    return _build_usage(whole, cached, (output or 0) + (reasoning or 0))


def _read_ollama(usage: Part) -> Usage | None:
    return _build_usage(_count(usage, "prompt_eval_count"), 0, _count_output(usage, "eval_count"))


def _read_timings(response: Part) -> Usage | None:
    """llama.cpp reports processed and cached prompt tokens separately."""
    timings = get_mapping(response, "timings")
    fresh, cached = _count(timings, "prompt_n"), _count(timings, "cache_n") or 0
    whole = None if fresh is None else fresh + cached
    return _build_usage(whole, cached, _count_output(timings, "predicted_n"))


_PLACES: Final = ("usage", "usageMetadata", "usage_metadata")
_SHAPES: Final[tuple[Callable[[Part], Usage | None], ...]] = (
    *(_read_chat, _read_items, _read_gemini, _read_ollama),
)
_READ: Final = "cache_read_input_tokens"
_WRITTEN: Final = "cache_creation_input_tokens"


def _build_usage(
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


def _count_cache_writes(usage: Part) -> int | None:
    """Tokens written to the cache; the sum over the lifetimes if no total is reported."""
    if (total := _count(usage, _WRITTEN)) is not None or "cache_creation" not in usage:
        return total
    minutes = _count(get_mapping(usage, "cache_creation"), "ephemeral_5m_input_tokens") or 0
    return minutes + _count_hour_writes(usage)


def _count_hour_writes(usage: Part) -> int:
    """Tokens written to the cache for one hour."""
    if "cache_creation" not in usage:
        return 0
    return _count(get_mapping(usage, "cache_creation"), "ephemeral_1h_input_tokens") or 0


def _count(fields: Part, *names: str) -> int | None:
    """Return the first of these fields that is a possible count."""
    for name in names:
        value = fields.get(name)
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is int and value >= 0:
            return value
    return None


def _count_output(fields: Part, name: str) -> int | None:
    """A missing count is 0; an impossible count (None) invalidates the whole report."""
    return 0 if fields.get(name) is None else _count(fields, name)


# Cost


def read_looked_up_usage(payload: object) -> Part | None:
    """Return the usage fields in a provider's record of a response; None if there are none yet.

    OpenRouter's records have fields of their own; other providers return the response again.
    """
    if not isinstance(payload, Mapping):
        return None
    record = get_mapping(payload, "data")
    if "native_tokens_prompt" in record:
        return {
            "prompt_tokens": record["native_tokens_prompt"],
            "completion_tokens": record.get("native_tokens_completion") or 0,
            "prompt_tokens_details": {"cached_tokens": record.get("native_tokens_cached") or 0},
            "cost": record.get("total_cost"),
        }
    usage = payload.get("usage")
    return usage if isinstance(usage, Mapping) else None


def parse_reported_cost(payload: Part) -> Decimal | None:
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
        case {"is_byok": True, "cost": own, "cost_details": {"upstream_inference_cost": other}}:
            fee, rest = _parse_dollars(own), _parse_dollars(other)
            return None if fee is None or rest is None else fee + rest
        case _:
            return _parse_dollars(found["cost"])


def _parse_dollars(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    amount = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    return amount if amount.is_finite() and amount >= 0 else None
