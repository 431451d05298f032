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
from brim.gateway.accounts.caps import ALL, MAX_AMOUNT, key_scope, project_scope
from brim.gateway.accounts.reservations import Charge, Reservation, Settlement
from brim.models.pricing import Usage

MAX_NAME_LENGTH: Final = 256
"""Characters of a name that is kept."""
OVER_ANY_CAP: Final = MAX_AMOUNT + 1
"""The highest number in a bill; no cap has room for it."""

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def clean_reservation(claim: Reservation) -> Reservation:
    """The claim itself, if it can be kept as it is. `InputError` where a cap is not one of its."""
    id, key, key_name, project, model, upstream, worst, caps, is_forwarded = claim
    own = (ALL, key_scope(key), project_scope(project))
    for scope, _ in caps:
        if scope not in own:
            raise InputError(f"a claim of {key} cannot count against {scope}")
    most = clamp_charge(worst)
    names = f"{id}{key}{key_name}{project}{model}{upstream}"
    if most is worst and len(names) <= MAX_NAME_LENGTH and _is_storable(names):
        return claim
    # What belongs together by its name is not cut: it is brim's own, and short.
    return Reservation(
        clean_text(id),
        clean_text(key),
        clean_text(key_name)[:MAX_NAME_LENGTH],
        clean_text(project),
        clean_text(model)[:MAX_NAME_LENGTH],
        clean_text(upstream)[:MAX_NAME_LENGTH],
        most,
        tuple((clean_text(scope), cap) for scope, cap in caps),
        is_forwarded,
    )


def clean_settlements(settlements: Sequence[Settlement]) -> list[Settlement]:
    return [
        one._replace(id=clean_text(one.id), bill=bill)
        if (bill := clamp_charge(one.bill)) is not one.bill or not _is_storable(one.id)
        else one
        for one in settlements
    ]


def clamp_charge(bill: Charge) -> Charge:
    used, cost, is_unpriced = bill
    numbers = (used.input, used.cached, used.output, used.written, cost)
    if min(numbers) >= 0 and max(numbers) <= OVER_ANY_CAP:
        return bill
    *tokens, cost = (min(max(number, 0), OVER_ANY_CAP) for number in numbers)
    return Charge(Usage(*tokens), cost, is_unpriced)


def clean_text(text: str) -> str:
    return text if _is_storable(text) else _UNSTORABLE.sub("\ufffd", text)


def _is_storable(text: str) -> bool:
    return text.isascii() and "\0" not in text
