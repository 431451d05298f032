"""The fields of a body that affect its cost, and checks that the cost has a bound.

A key with caps cannot send a request whose cost has no bound: replies without a length limit, tools
that the upstream runs and charges for, service tiers above the list price. The tables below name
every field that is known to cost something.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeGuard

from brim.gateway.errors import GatewayError
from brim.wire.formats import REPLY_KEYS, BodyFormat, read_tools

CHOICE_FIELDS: Final = frozenset(("n", "best_of"))
"""Fields for the number of replies."""
LLAMA_CPP_LENGTH: Final = "n_predict"
"""llama.cpp's own field for the length of a reply; it overrides all others there."""
HOSTED_TOOL_PREFIXES: Final = (
    *("web_search", "web_fetch", "code_execution", "code_interpreter", "file_search"),
    *("image_generation", "mcp", "tool_search", "x_search", "google_search", "url_context"),
)
"""Prefixes of the types of tools that upstreams run, any number of times, for a fee."""
HOSTED_TOOL_FIELDS: Final = ("mcp_servers", "web_search_options", "plugins")
"""Fields that enable such tools."""
MODEL_CHOICE_FIELDS: Final = ("models",)
"""Fields that let an upstream use another model than the one the reservation is for."""
TIER_FIELD: Final = "service_tier"
LIST_PRICE_TIERS: Final = (None, "auto", "default", "flex", "standard", "standard_only")
"""Service tiers that cost at most the list price."""
COST_FIELDS: Final = CHOICE_FIELDS | frozenset(
    (
        *("model", "tools", "background", "stream", LLAMA_CPP_LENGTH, TIER_FIELD),
        *(*REPLY_KEYS, *HOSTED_TOOL_FIELDS, *MODEL_CHOICE_FIELDS),
    )
)
"""All fields of a body that affect its cost."""
UNBOUNDED_FIELDS: Final = frozenset(
    ("background", "tools", *HOSTED_TOOL_FIELDS, *MODEL_CHOICE_FIELDS)
)
"""Fields that can make the cost unbounded."""
_QUOTED_FIELDS: Final = {name: b'"%s"' % name.encode() for name in COST_FIELDS}
_ESCAPED_LETTER: Final = re.compile(rb"\\u00(?:3[0-9]|5[fF]|[67])")
"""A digit, `_` or a lower-case letter as an escape, which no library writes: it hides a name."""
MAX_OUTPUT: Final = 1 << 40
"""More tokens than any reply has; a larger amount could not be stored."""


def check_bounded(body: Mapping[str, Any], format: BodyFormat) -> None:
    """Raise `GatewayError` if a body's cost has no bound. For keys with caps."""
    if not "".join(body).islower():  # nearly all bodies have lower-case names only
        _check_letter_case(body)
    for name in sorted(_length_fields(format.reply_keys).union(CHOICE_FIELDS).intersection(body)):
        if body[name] is not None and not _is_number(body[name]):
            message = f"This key has caps, and `{name}` is not a whole number above 0."
            raise GatewayError(400, "invalid_request", message, param=name)
    if not UNBOUNDED_FIELDS.isdisjoint(body):
        _check_unbounded_fields(body)


def _check_letter_case(body: Mapping[str, Any]) -> None:
    for name in body:
        if name not in COST_FIELDS and name.lower() in COST_FIELDS:
            raise _unbounded_error(f"some servers read `{name}` as `{name.lower()}`", name)


def _check_unbounded_fields(body: Mapping[str, Any]) -> None:
    if body.get("background"):
        raise _unbounded_error("the usage of a background response is not reported", "background")
    for name in MODEL_CHOICE_FIELDS:
        if body.get(name):
            raise _unbounded_error(f"`{name}` lets the upstream choose the model", name)
    for name in _find_hosted_tools(body):
        raise _unbounded_error(
            f"the cost of `{name}` is decided by the upstream that runs it", "tools"
        )


def check_tier(body: Mapping[str, Any]) -> None:
    """Raise `GatewayError` if a body costs more than the list price. For caps in dollars."""
    if body.get(TIER_FIELD) not in LIST_PRICE_TIERS:
        raise _unbounded_error(f"this `{TIER_FIELD}` costs more than the list price", TIER_FIELD)


def _find_hosted_tools(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tools that a body lets its upstream run."""
    for tool in read_tools(body):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if isinstance(kind, str) and kind.startswith(HOSTED_TOOL_PREFIXES):
            yield kind
    yield from (name for name in HOSTED_TOOL_FIELDS if body.get(name))


def _unbounded_error(why: str, param: str) -> GatewayError:
    message = f"This key has caps, and {why}. Remove it, or use a key without caps."
    return GatewayError(403, "uncountable", message, param=param)


def has_duplicate_fields(raw: bytes, body: Mapping[str, Any]) -> bool:
    """Return whether a cost field may occur twice: brim reads the last value, others the first.

    Escaped letters can hide a name, so they count as duplicates too.
    """
    if b"\\u00" in raw and _ESCAPED_LETTER.search(raw):
        return True
    return any(raw.count(_QUOTED_FIELDS[name]) > 1 for name in COST_FIELDS.intersection(body))


def max_output_tokens(body: Mapping[str, Any], keys: Sequence[str], reply: int) -> int:
    """Return the tokens of all replies that a body allows; `reply` for each without a limit."""
    longest = _largest_number(body, _length_fields(keys), reply)
    return min(longest * _largest_number(body, CHOICE_FIELDS, 1), MAX_OUTPUT)


@cache
def _length_fields(keys: Sequence[str]) -> frozenset[str]:
    """Return the fields of a format that limit the length of a reply."""
    return frozenset((*keys, LLAMA_CPP_LENGTH))


def _largest_number(body: Mapping[str, Any], names: frozenset[str], default: int) -> int:
    """Return the largest number in one of these fields."""
    return max(filter(_is_number, map(body.get, names.intersection(body))), default=default)


def _is_number(value: object) -> TypeGuard[int]:
    return type(value) is int and value > 0
