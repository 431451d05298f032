"""The cost of every call across runs: one row per call, never changed or removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import groupby
from sqlite3 import Row
from typing import Literal

from brim.errors import StoreError
from brim.models.pricing import SpendingRow, SpendingTotal, Usage
from brim.session.ledger import DailyCap
from brim.session.session import Session
from brim.storage.database import Database

SpendKey = Literal["day", "model", "project", "category", "session"]


class SpendLog:
    """The calls of all runs."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def add(
        self, call: SpendingTotal, *, session: str, project: str, model: str, category: str
    ) -> None:
        """Record one call."""
        now, usage = self._clock(), call.usage
        self._database.write(
            "INSERT INTO spending (time, day, session, project, model, category, input, cached, "
            "written, output, counted, cost, unknown, estimated) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(now, _format_day(now), session, project, model, category, usage.input, usage.cached),
            *(usage.written, usage.output, call.counted, str(call.cost)),
            *(call.unknown, call.estimated),
        )

    def follow(
        self, session: Session, project: str, cap: Decimal | None, name: Callable[[], str] = str
    ) -> None:
        """Record the calls of a session from now on, and apply a cap to the spending of a day."""

        def record(model: str, category: str, call: SpendingTotal) -> None:
            try:
                self.add(call, session=name(), project=project, model=model, category=category)
            except StoreError as error:  # the reply must not be lost because of this
                session.warnings.append(str(error))

        session.ledger.on_record = record
        if cap is not None:
            session.ledger.daily_cap = DailyCap(cap, lambda: self.today().cost)

    def today(self) -> SpendingTotal:
        """Return the spending of today, over all runs."""
        rows = self._database.rows(
            "SELECT * FROM spending WHERE day = ?", _format_day(self._clock())
        )
        return sum(map(_parse_row, rows), SpendingTotal())

    def by(
        self, *keys: SpendKey, since: date | None = None, until: date | None = None
    ) -> Sequence[SpendingRow]:
        """Return the spending grouped by these keys, sorted by their values."""
        return list(_group_rows(self.calls(since, until), keys))

    def calls(self, since: date | None = None, until: date | None = None) -> list[Row]:
        """Return the rows of the calls, oldest first."""
        first, last = since or date.min, until or date.max
        return self._database.rows(
            "SELECT * FROM spending WHERE day BETWEEN ? AND ? ORDER BY id",
            *(first.isoformat(), last.isoformat()),
        )


def _group_rows(rows: Iterable[Row], keys: Sequence[SpendKey]) -> Iterable[SpendingRow]:
    def group_key(row: Row) -> tuple[str, ...]:
        return tuple(row[key] for key in keys)

    for found, group in groupby(sorted(rows, key=group_key), key=group_key):
        yield SpendingRow(found, sum(map(_parse_row, group), SpendingTotal()))


def _parse_row(row: Row) -> SpendingTotal:
    usage = Usage(
        input=row["input"], cached=row["cached"], written=row["written"], output=row["output"]
    )
    known = bool(row["unknown"]), bool(row["estimated"])
    return SpendingTotal(1, usage, Decimal(row["cost"]), row["counted"], *known)


def _format_day(now: float) -> str:
    """Return the date in the local time zone."""
    return datetime.fromtimestamp(now).astimezone().date().isoformat()
