"""Alerts: webhooks when half, 80 % and all of a cap is used.

Gateways compare the counters with the caps and add the alerts that are due to the outbox in the
store. The id of an alert names the cap, its period and the level, so several gateways add it once.
A gateway claims an alert before it sends it; if the delivery is not recorded, another attempt is
made later. So every alert is delivered at least once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from brim.gateway.accounts.caps import (
    Cap,
    caps_scope,
    period_kind,
    reset_time,
    scope_parts,
    to_dollars,
)
from brim.gateway.accounts.reservations import CapCounter

LEVELS: Final = (50, 80, 100)
"""Percent of a cap."""
FIRST_RETRY_SECONDS: Final = 15
MAX_RETRY_SECONDS: Final = 3_600
"""Seconds until an alert that was not delivered is sent again; they double each time."""
KEPT_SECONDS: Final = 86_400
"""Seconds for which a delivered alert is kept after its cap has reset."""


class Alert(NamedTuple):
    """A message in the outbox."""

    id: str
    body: str
    """The JSON that is sent."""
    expires: float | None = None
    """When it need not be remembered any more; None: never."""


class ClaimedAlert(NamedTuple):
    """An alert to send now."""

    id: str
    body: str
    attempt: int
    """1 for the first attempt."""


@dataclass(frozen=True, slots=True)
class Recipients:
    """Names for the scopes in alerts."""

    keys: Mapping[str, str]
    """The names of keys by their ids."""

    def describe(self, scope: str) -> dict[str, str]:
        kind, name = scope_parts(scope)
        if kind == "user":
            id, _, user = name.partition("/")
            return {"scope": "user", "key": self.keys.get(id, id), "key_id": id, "user": user}
        if kind == "key":
            return {"scope": "key", "key": self.keys.get(name, name), "key_id": name}
        return {"scope": kind, "project": name} if kind == "project" else {"scope": "all"}


def find_alerts(
    caps: Mapping[str, Sequence[Cap]],
    counters: Iterable[CapCounter],
    rejecting: Collection[tuple[str, Cap]],
    recipients: Recipients,
    now: float,
) -> Iterator[Alert]:
    """Yield an alert for every level that a counter has reached.

    A cap in `rejecting` has rejected a request that it had no room for, so all of it counts as
    used.
    """
    for counter in counters:
        kind = period_kind(counter.period)
        for cap in caps.get(caps_scope(counter.scope), ()):
            if (cap.unit, cap.period) != (counter.unit, kind):
                continue
            for level in LEVELS:
                is_full = level == 100 and (counter.scope, cap) in rejecting
                if is_full or 100 * counter.spent >= level * cap.limit:
                    yield _build_alert(counter, cap, level, recipients, now)


def _build_alert(
    counter: CapCounter, cap: Cap, level: int, recipients: Recipients, now: float
) -> Alert:
    name = f"{counter.scope} {counter.unit} {counter.period} {cap.limit} {level}"
    id = f"alert_{hashlib.sha256(name.encode()).hexdigest()[:24]}"
    data: dict[str, Any] = {
        **recipients.describe(counter.scope),
        "level": level,
        "cap": str(cap),
        "unit": counter.unit,
        "limit": _amount(cap.limit, cap),
        "spent": _amount(counter.spent, cap),
        "period": cap.period,
        "period_name": counter.period,
    }
    reset = reset_time(cap.period, now)
    body = {"id": id, "type": "cap.reached", "timestamp": round(now), "data": data}
    return Alert(id, json.dumps(body), None if reset is None else reset + KEPT_SECONDS)


def _amount(number: int, cap: Cap) -> str | int:
    return str(to_dollars(number)) if cap.unit == "dollars" else number
