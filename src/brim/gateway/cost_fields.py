"""The fields of a body that affect its cost, and checks that the cost has a bound.

A key with caps can send only what the reserved maximum covers: the fields, values and tools that
`data/capped_fields.toml` lists, and those of `gateway.allowed_fields`. Anything else may cost more
than tokens: tools that the upstream runs and charges for, higher tiers, other models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeGuard

from brim.data import load_table
from brim.gateway.errors import GatewayError
from brim.providers.transport import encode_body
from brim.wire.formats import GEMINI, REPLY_KEYS, BodyFormat, list_tool_kinds, read_tools

CHOICES_FIELDS: Final = ("n", "candidateCount")
"""The fields for the number of replies."""
LLAMA_CPP_LENGTH: Final = "n_predict"
"""llama.cpp's own field for the length of a reply; it overrides all others there."""
TIER_FIELD: Final = "service_tier"
LIST_PRICE_TIERS: Final = (None, "auto", "default", "flex", "standard", "standard_only")
"""Service tiers that cost at most the list price."""
UNPRICED_PARTS: Final = ("input_audio", "tool_addition")
"""Types of parts of a message: audio has its own price, and an added tool can be any tool."""
BILLED_MODEL_SUFFIXES: Final = (":online", ":nitro")
"""Endings of OpenRouter's model names: a web search for a fee, and the fastest seller."""
MAX_OUTPUT: Final = 1 << 40
"""More tokens than any reply has; a larger amount could not be stored."""

_COST_FIELDS: Final = frozenset(
    (*CHOICES_FIELDS, LLAMA_CPP_LENGTH, TIER_FIELD, "model", "tools", "stream", *REPLY_KEYS)
)
"""Permitted fields whose value decides the cost."""
_QUOTED_FIELDS: Final = {name: b'"%s"' % name.encode() for name in _COST_FIELDS}
_QUOTED_PARTS: Final = {name: b'"%s"' % name.encode() for name in UNPRICED_PARTS}
_SOUND: Final = re.compile(rb'"(?:audio|video)(?:\\?/|\\u002[fF])')
"""The beginning of a media type whose tokens have a price of their own."""
_DATE: Final = re.compile(r"(?<=_)[0-9]{8}$")
_ESCAPED_LETTER: Final = re.compile(rb"\\u00(?:3[0-9]|5[fF]|[67])")
"""A digit, `_` or a lower-case letter as an escape, which no library writes: it hides a name."""


@dataclass(frozen=True, slots=True)
class CappedFields:
    """What a key with caps may send in one format."""

    fields: frozenset[str]
    values: Mapping[str, Sequence[object]]
    """Fields that pass with these values only."""
    tools: frozenset[str]
    """Types of tools; `*` stands for a date."""
    uncounted: frozenset[str]
    """Fields whose text the upstream adds to the prompt, where brim does not count it."""
    allowed: frozenset[str]
    """Fields and types of tools that the configuration allows."""
    format: BodyFormat


@cache
def load_capped_fields(format: BodyFormat, allowed: tuple[str, ...] = ()) -> CappedFields:
    """Return the table of a format, extended by `gateway.allowed_fields`."""
    table = load_table("capped_fields")
    own = table[format.name]
    return CappedFields(
        frozenset((*table["fields"], *own["fields"], *allowed)),
        {name: values for name, values in table["values"].items() if name not in allowed},
        frozenset((*table["tools"][format.name], *allowed)),
        frozenset(own["uncounted"]),
        frozenset(allowed),
        format,
    )


def flatten_options(body: Mapping[str, Any], format: BodyFormat) -> Mapping[str, Any]:
    """Return the fields of a body together with those of its options."""
    if not (format.options_key and isinstance(body.get(format.options_key), Mapping)):
        return body
    rest = {name: value for name, value in body.items() if name != format.options_key}
    return {**rest, **format.options(body)}


def check_bounded(body: Mapping[str, Any], raw: bytes, permitted: CappedFields) -> None:
    """Raise `GatewayError` if the cost of a body has no known bound. For keys with caps."""
    body = flatten_options(body, permitted.format)
    for name in body.keys() - permitted.fields:
        value = body[name]
        if value is not None and value not in permitted.values.get(name, ()):
            shown = f"`{name}` = {value!r:.40}" if name in permitted.values else f"`{name:.40}`"
            raise _uncountable_error(f"the cost of {shown} has no known bound", name)
    for name in _length_fields(()) & body.keys():
        if body[name] is not None and not _is_number(body[name]):
            message = f"This key has caps, and `{name}` is not a whole number above 0."
            raise GatewayError(400, "invalid_request", message, param=name)
    for tool in read_tools(body):
        _check_tool(tool, permitted)
    model = body.get("model")
    if isinstance(model, str) and model.lower().endswith(BILLED_MODEL_SUFFIXES):
        raise _uncountable_error(f"the ending of `{model:.80}` adds a fee", "model")
    _check_parts(body, raw, permitted)


def _check_tool(tool: object, permitted: CappedFields) -> None:
    kinds = list_tool_kinds(tool, permitted.format) if isinstance(tool, Mapping) else [None]
    for kind in kinds:
        name = "" if kind is None else kind
        if not isinstance(name, str) or _DATE.sub("*", name) not in permitted.tools:
            shown = f"{kind!r:.40}"
            raise _uncountable_error(f"the cost of the tool {shown} has no known bound", "tools")


def _check_parts(body: Mapping[str, Any], raw: bytes, permitted: CappedFields) -> None:
    """Check the parts of messages. A name in quotes is a whole JSON string, not part of a text."""
    if b"\\u00" in raw and _ESCAPED_LETTER.search(raw):
        raw = encode_body(body)
    if permitted.format is GEMINI and _SOUND.search(raw):
        raise _uncountable_error("the cost of audio and video has no known bound", "inlineData")
    for name, quoted in _QUOTED_PARTS.items():
        if quoted in raw and name not in permitted.allowed:
            raise _uncountable_error(f"the cost of parts of type `{name}` has no known bound", name)


def check_tier(body: Mapping[str, Any]) -> None:
    """Raise `GatewayError` if a body costs more than the list price. For caps in dollars."""
    if body.get(TIER_FIELD) not in LIST_PRICE_TIERS:
        raise _uncountable_error(f"this `{TIER_FIELD}` costs more than the list price", TIER_FIELD)


def _uncountable_error(why: str, param: str) -> GatewayError:
    message = (
        f"This key has caps, and {why}. Remove it, use a key without caps, or ask the operator to "
        "add it to gateway.allowed_fields."
    )
    return GatewayError(403, "uncountable", message, param=param)


def has_duplicate_fields(raw: bytes, body: Mapping[str, Any]) -> bool:
    """Return whether a cost field may occur twice: brim reads the last value, others the first.

    Escaped letters can hide a name, so they count as duplicates too.
    """
    if b"\\u00" in raw and _ESCAPED_LETTER.search(raw):
        return True
    if GEMINI.options_key in body:
        body = flatten_options(body, GEMINI)
    return any(raw.count(_QUOTED_FIELDS[name]) > 1 for name in _COST_FIELDS.intersection(body))


def count_uncounted(
    body: Mapping[str, Any], permitted: CappedFields, count: Callable[[str], int]
) -> int:
    """Return the tokens of fields that the upstream adds to the prompt, such as a JSON schema."""
    names = permitted.uncounted.intersection(body)
    added = {name: body[name] for name in names if body[name] is not None}
    return count(encode_body(added).decode()) if added else 0


def max_output_tokens(body: Mapping[str, Any], keys: Sequence[str], reply: int) -> int:
    """Return the tokens of all replies that a body allows; `reply` for each without a limit."""
    lengths = map(body.get, _length_fields(tuple(keys)) & body.keys())
    longest = max(filter(_is_number, lengths), default=reply)
    choices = max(filter(_is_number, map(body.get, CHOICES_FIELDS)), default=1)
    return min(longest * choices, MAX_OUTPUT)


@cache
def _length_fields(keys: tuple[str, ...]) -> frozenset[str]:
    """Return the fields that limit the length of a reply; those of all formats without `keys`."""
    return frozenset((*(keys or (*REPLY_KEYS, *CHOICES_FIELDS)), LLAMA_CPP_LENGTH))


def _is_number(value: object) -> TypeGuard[int]:
    return type(value) is int and value > 0
