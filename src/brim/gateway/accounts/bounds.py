"""Bounds: claims and settlements as every store can keep them, whatever clients and upstreams say.

A zero byte or half of a character is replaced, a name that goes on and on is cut, and a number that
nobody can mean becomes one that no cap has room for. So all stores do the same, and none of them
fails at a request that another takes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from brim.errors import InputError
from brim.gateway.accounts.caps import ALL, LARGEST, key_scope, project_scope
from brim.gateway.accounts.reservations import Bill, Claim, Settlement
from brim.models.pricing import Usage

LONGEST: Final = 256
"""Characters of a name that is kept."""
BEYOND: Final = LARGEST + 1
"""The highest number in a bill; no cap has room for it."""

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def bounded(claim: Claim) -> Claim:
    """The claim itself, if it can be kept as it is. `InputError` where a cap is not one of its."""
    id, key, key_name, project, model, upstream, worst, caps, is_forwarded = claim
    own = (ALL, key_scope(key), project_scope(project))
    for scope, _ in caps:
        if scope not in own:
            raise InputError(f"a claim of {key} cannot count against {scope}")
    most = bounded_bill(worst)
    names = f"{id}{key}{key_name}{project}{model}{upstream}"
    if most is worst and len(names) <= LONGEST and _is_plain(names):
        return claim
    # What belongs together by its name is not cut: it is brim's own, and short.
    return Claim(
        plain(id),
        plain(key),
        plain(key_name)[:LONGEST],
        plain(project),
        plain(model)[:LONGEST],
        plain(upstream)[:LONGEST],
        most,
        tuple((plain(scope), cap) for scope, cap in caps),
        is_forwarded,
    )


def bounded_settlements(settlements: Sequence[Settlement]) -> list[Settlement]:
    return [
        one._replace(id=plain(one.id), bill=bill)
        if (bill := bounded_bill(one.bill)) is not one.bill or not _is_plain(one.id)
        else one
        for one in settlements
    ]


def bounded_bill(bill: Bill) -> Bill:
    used, cost, is_unpriced = bill
    numbers = (used.input, used.cached, used.output, used.written, cost)
    if min(numbers) >= 0 and max(numbers) <= BEYOND:
        return bill
    *tokens, cost = (min(max(number, 0), BEYOND) for number in numbers)
    return Bill(Usage(*tokens), cost, is_unpriced)


def plain(text: str) -> str:
    return text if _is_plain(text) else _UNSTORABLE.sub("\ufffd", text)


def _is_plain(text: str) -> bool:
    return text.isascii() and "\0" not in text
