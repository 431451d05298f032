"""`GET /v1/retrieve/{id}`: what requests of the last hour dropped, for the key that sent them.

It is kept in memory only, and only with `gateway.retrieve = true`. The id stands for the messages
up to the last trim, so all requests until the next one have the same id in their notes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from brim.fitting.plan import DroppedRun, Plan, find_plan_id, find_trimmed_texts
from brim.gateway import bodies
from brim.wire.notes import ID

RETRIEVE_HINT: Final = f"id {ID}"
"""What notes say about it."""
MAX_AGE: Final = 3_600.0
"""Seconds after the last request that dropped it."""
MAX_BYTES: Final = 64 << 20
"""The size of all that is kept."""


@dataclass(slots=True)
class _Dropped:
    runs: Sequence[DroppedRun]
    changed: Sequence[int]
    raw: bytes
    """The response that returns it."""
    time: float


class DroppedMessages:
    """What recent requests dropped, the least recent first. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[tuple[str | None, str], _Dropped] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def add(self, key: str | None, plan: Plan) -> str:
        """Keep what a plan dropped for a key; return its id."""
        id = find_plan_id(plan)
        runs, changed = tuple(plan.dropped_runs), tuple(plan.changes)
        with self._lock:
            known = self._kept.get((key, id))
            if known is not None and (known.runs, known.changed) == (runs, changed):
                known.time = self._clock()
                self._kept.move_to_end((key, id))
                return id
        raw = _serialize(id, plan)
        with self._lock:
            self._remove((key, id))
            self._kept[key, id] = _Dropped(runs, changed, raw, self._clock())
            self._bytes += len(raw)
            self._forget()
        return id

    def find(self, key: str | None, id: str) -> bytes | None:
        """Return what a request of this key dropped, as JSON; None if it is not kept."""
        with self._lock:
            self._forget()
            found = self._kept.get((key, id))
        return None if found is None else found.raw

    def _forget(self) -> None:
        """Remove what is too old, and the oldest above the limit."""
        oldest = self._clock() - MAX_AGE
        while self._kept:
            place, first = next(iter(self._kept.items()))
            if first.time >= oldest and self._bytes <= MAX_BYTES:
                break
            self._remove(place)

    def _remove(self, place: tuple[str | None, str]) -> None:
        if (removed := self._kept.pop(place, None)) is not None:
            self._bytes -= len(removed.raw)


def _serialize(id: str, plan: Plan) -> bytes:
    messages = [
        {"index": source.message, "role": source.role, "text": source.text}
        for source in find_trimmed_texts(plan)
    ]
    return bodies.serialize({"object": "brim.dropped", "id": id, "messages": messages})
