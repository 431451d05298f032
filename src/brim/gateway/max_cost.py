"""Pricing: what a request may come to at most, by all fields of its body that cost.

A key with caps may not send what nobody can bound: answers without end, tools that the upstream
runs and charges for by itself, dearer service than the price list is of. Everything that is known
to cost stands in the tables here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from brim.gateway.accounts.reservations import Charge
from brim.gateway.errors import GatewayError
from brim.models.pricing import HOUR_CACHE_RATE, Usage
from brim.wire import read_tools

if TYPE_CHECKING:
    from brim.gateway.fit_request import FittedRequest
    from brim.gateway.routes import ModelRoute
    from brim.models.pricing import Price
    from brim.wire import Format

CHOICE_FIELDS: Final = frozenset(("n", "best_of"))
"""How many answers a body asks for."""
LLAMA_CPP_LENGTH: Final = "n_predict"
"""llama.cpp's own name for the length of an answer, which goes before all others there."""
HOSTED_TOOL_PREFIXES: Final = (
    *("web_search", "web_fetch", "code_execution", "code_interpreter", "file_search"),
    *("image_generation", "mcp", "tool_search", "x_search", "google_search", "url_context"),
)
"""How the types of tools begin that upstreams run themselves, as often as they like, for a fee."""
HOSTED_TOOL_FIELDS: Final = ("mcp_servers", "web_search_options", "plugins")
"""Fields that ask for such tools."""
MODEL_CHOICE_FIELDS: Final = ("models",)
"""Fields by which an upstream may take another model than the one that was claimed."""
TIER_FIELD: Final = "service_tier"
LIST_PRICE_TIERS: Final = (None, "auto", "default", "flex", "standard", "standard_only")
"""Kinds of service that cost no more than the list says."""
COST_FIELDS: Final = frozenset(
    (
        *(
            "max_tokens",
            "max_completion_tokens",
            "max_output_tokens",
            LLAMA_CPP_LENGTH,
            *CHOICE_FIELDS,
        ),
        *(
            "model",
            "tools",
            "background",
            "stream",
            TIER_FIELD,
            *HOSTED_TOOL_FIELDS,
            *MODEL_CHOICE_FIELDS,
        ),
    )
)
"""All fields of a body that decide what it costs."""
UNBOUNDED_FIELDS: Final = frozenset(
    ("background", "tools", *HOSTED_TOOL_FIELDS, *MODEL_CHOICE_FIELDS)
)
"""Those that may ask for what nobody can bound."""
_QUOTED_FIELDS: Final = {name: b'"%s"' % name.encode() for name in COST_FIELDS}
_ESCAPED_LETTER: Final = re.compile(rb"\\u00(?:3[0-9]|5[fF]|[67])")
"""A digit, `_` or a small letter as no library writes it, so that a word hides what it is."""
MAX_SERVER_OVERHEAD: Final = 1_000
"""Tokens that a server may add to a prompt by itself."""
MAX_OUTPUT: Final = 1 << 40
"""Tokens beyond which nobody answers; a sum of more could not be kept."""
HOUR_CACHE: Final = b'"1h"'
"""How a body asks for a cache that is kept for an hour, which costs twice the prompt."""


def check_bounded(body: Mapping[str, Any], form: Format) -> None:
    """A fault where nobody can say what a body may come to; it is for keys with caps."""
    if not "".join(body).islower():  # nearly all bodies have names in small letters only
        _check_letter_case(body)
    for name in sorted(_length_fields(form.REPLY_KEYS).union(CHOICE_FIELDS).intersection(body)):
        if body[name] is not None and not _is_number(body[name]):
            said = f"this key has caps, and `{name}` is not a whole number above 0"
            raise GatewayError(400, "invalid_request", said, param=name)
    if not UNBOUNDED_FIELDS.isdisjoint(body):
        _check_unbounded_fields(body)


def _check_letter_case(body: Mapping[str, Any]) -> None:
    for name in body:
        if name not in COST_FIELDS and name.lower() in COST_FIELDS:
            raise _unbounded_error(
                f"`{name}` would be taken for `{name.lower()}` by some servers", name
            )


def _check_unbounded_fields(body: Mapping[str, Any]) -> None:
    if body.get("background"):
        raise _unbounded_error(
            "an answer in the background tells nobody what it took", "background"
        )
    for name in MODEL_CHOICE_FIELDS:
        if body.get(name):
            raise _unbounded_error(f"with `{name}` the upstream chooses what is asked", name)
    for name in _find_hosted_tools(body):
        raise _unbounded_error(f"what `{name}` takes is up to the upstream that runs it", "tools")


def check_tier(body: Mapping[str, Any]) -> None:
    """A fault where a body costs more than the price list says; it is for caps in dollars."""
    if body.get(TIER_FIELD) not in LIST_PRICE_TIERS:
        raise _unbounded_error(
            f"this `{TIER_FIELD}` costs more than the price list says", TIER_FIELD
        )


def _find_hosted_tools(body: Mapping[str, Any]) -> Iterator[str]:
    """What a body lets its upstream run."""
    for tool in read_tools(body):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if isinstance(kind, str) and kind.startswith(HOSTED_TOOL_PREFIXES):
            yield kind
    yield from (name for name in HOSTED_TOOL_FIELDS if body.get(name))


def _unbounded_error(why: str, param: str) -> GatewayError:
    said = f"this key has caps, and {why}; leave it out, or use a key without caps"
    return GatewayError(403, "uncountable", said, param=param)


def has_duplicate_fields(raw: bytes, body: Mapping[str, Any]) -> bool:
    """Whether a field that costs may stand there twice: brim reads the last, others the first.

    So it may where words hide what they are, and `LASTING` too.
    """
    if b"\\u00" in raw and _ESCAPED_LETTER.search(raw):
        return True
    return any(raw.count(_QUOTED_FIELDS[name]) > 1 for name in COST_FIELDS.intersection(body))


def compute_max_cost(lane: ModelRoute, out: FittedRequest, *, is_capped: bool) -> Charge:
    """The most that a request can come to: its count, the margin, and the longest answers."""
    budget = out.plan.budget
    output = max_output_tokens(out.body, out.parsed.format.REPLY_KEYS, budget.reply)
    usage = Usage(input=_max_prompt(lane, out, is_capped), output=output)
    price = lane.target.price_for(usage.input)
    if price is None or price.input is None or price.output is None:
        return Charge(usage, is_unpriced=True)
    # Dollars for a million tokens are micro-dollars for one.
    rate = _max_input_rate(price, lasting=HOUR_CACHE in out.raw)
    return Charge(usage, math.ceil(usage.input * rate + output * price.output))


def _max_prompt(lane: ModelRoute, out: FittedRequest, is_capped: bool) -> int:
    if out.is_whole and not out.is_open_ended:
        return out.plan.size + _count_margin(lane, out)
    # The server adds the rest, of which nobody knows more than the window.
    if not lane.is_guessed:
        return out.plan.budget.room
    if not is_capped:
        return out.plan.size
    raise GatewayError(
        403,
        "uncountable",
        "the server keeps or adds a part of this conversation, and nobody knows the model's "
        "window: what it costs cannot be bounded. Set "
        f"upstreams.{lane.upstream.name}.window.",
    )


def _count_margin(lane: ModelRoute, out: FittedRequest) -> int:
    """How much more than its count a prompt may take."""
    plan = out.plan
    if plan.server_tokens is not None or plan.exact:
        return 0
    # The budget's margin is a share of the whole window; of a small request the doubt is smaller.
    counter, offset = out.parsed.planner.counter, round(lane.target.calibration.offset)
    doubt = math.ceil(plan.size * counter.uncertainty) + max(MAX_SERVER_OVERHEAD, offset)
    return doubt if lane.is_guessed else min(doubt, plan.budget.margin)


def _max_input_rate(price: Price, *, lasting: bool) -> Decimal:
    """The most that a token of the prompt can cost."""
    long = HOUR_CACHE_RATE * price.input if lasting and price.input else None
    rates = (price.input, price.cached, price.written, long)
    return max(filter(None, rates), default=Decimal(0))


def max_output_tokens(body: Mapping[str, Any], keys: Sequence[str], reply: int) -> int:
    """Tokens of all answers that a body asks for; where it sets no bound, as much as is kept."""
    longest = _largest_number(body, _length_fields(keys), reply)
    return min(longest * _largest_number(body, CHOICE_FIELDS, 1), MAX_OUTPUT)


@cache
def _length_fields(keys: Sequence[str]) -> frozenset[str]:
    """The names by which a body of a form says how long an answer may be."""
    return frozenset((*keys, LLAMA_CPP_LENGTH))


def _largest_number(body: Mapping[str, Any], names: frozenset[str], default: int) -> int:
    """The largest number that a body has by one of these names."""
    return max(filter(_is_number, map(body.get, names.intersection(body))), default=default)


def _is_number(value: object) -> TypeGuard[int]:
    return type(value) is int and value > 0
