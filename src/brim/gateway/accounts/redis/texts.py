"""Values as the scripts of the Redis store read and write them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from brim.gateway.accounts.reservations import Charge


def dump_charge(charge: Charge) -> str:
    return json.dumps(charge.figures, separators=(",", ":"))


def dump_list(names: Iterable[str]) -> str:
    """Return names as JSON whose only brackets are the first and last: scripts match them."""
    inner = json.dumps(tuple(names), ensure_ascii=False, separators=(",", ":"))[1:-1]
    return "[" + inner.replace("[", "\\u005b").replace("]", "\\u005d") + "]"


def pairs(flat: Sequence[str]) -> Iterable[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)
