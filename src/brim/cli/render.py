"""Spending as tables, bar charts, CSV and JSON."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, Literal

from brim.fitting.text_tables import Bar, draw_bars, format_columns
from brim.models.pricing import SpendingRow, SpendingTotal
from brim.shell.render.sanitize import sanitize

if TYPE_CHECKING:
    from brim.gateway.accounts.reservations import LedgerRow

# Bars

MAX_IDLE_DAYS: Final = 7
"""Days without spending that get a line each; a longer gap shares one line."""


def fill_idle_days(bars: Iterable[Bar]) -> Iterator[Bar]:
    """Yield the bars of days, and empty bars for the days between them."""
    last: date | None = None
    for bar in bars:
        day = date.fromisoformat(bar.label)
        idle = 0 if last is None else (day - last).days - 1
        if idle > MAX_IDLE_DAYS:
            yield Bar(f"{idle} days", Decimal(0), "")
        elif last is not None:
            for number in range(1, idle + 1):
                yield Bar((last + timedelta(days=number)).isoformat(), Decimal(0), "")
        yield bar
        last = day


# Reports

PRESUMED: Final = "presumed: charged in full, because the actual cost is unknown"
NAMELESS: Final = "-"
"""Shown for an empty name, such as the project of a key without one."""

Source = Literal["shell", "gateway"]


@dataclass(frozen=True, slots=True)
class SpendingReport:
    """Spending by day, model or other columns, from the shell or the gateway."""

    source: Source
    by: tuple[str, ...]
    rows: Sequence[SpendingRow]

    @property
    def total(self) -> SpendingRow:
        total = sum((row.total for row in self.rows), SpendingTotal())
        blank = ("",) * (len(self.by) - 1)
        return SpendingRow(("total", *blank), total, sum(row.presumed for row in self.rows))

    @property
    def _unit(self) -> str:
        """The unit: the shell makes calls, the gateway receives requests."""
        return "calls" if self.source == "shell" else "requests"

    def to_dict(self) -> dict[str, Any]:
        rows = [dict(zip(self.by, row.keys, strict=True)) | self._numbers(row) for row in self.rows]
        return {"of": self.source, "rows": rows, "total": self._numbers(self.total)}

    def table(self, width: int | None) -> list[str]:
        """Return the lines of a table; if it is too wide, all tokens share one column."""
        lines = self._columns(("prompt", "cached", "completion"), None)
        if width is not None and max(map(len, lines)) > width:
            lines = self._columns(("tokens",), width)
        return [*lines, *self._notes(width)]

    def chart(self, width: int, *, plain: bool, paint: Callable[[str], str] = str) -> list[str]:
        """Return a bar for each row: dollars, or tokens if no price is known."""
        total = self.total
        is_money = bool(total.total.cost)
        bars = [_make_bar(row, is_money) for row in self.rows]
        if self.by == ("day",):
            bars = list(fill_idle_days(bars))
        elif "day" not in self.by:
            bars.sort(key=lambda bar: bar.size, reverse=True)
        if len(self.rows) > 1:
            bars.append(Bar("total", Decimal(0), _make_bar(total, is_money).amount))
        return [*draw_bars(bars, width, plain=plain, paint=paint), *self._notes(width)]

    def _columns(self, kinds: tuple[str, ...], width: int | None) -> list[str]:
        shown = [replace(row, keys=tuple(map(escape_name, row.keys))) for row in self.rows]
        if len(shown) > 1:
            shown.append(self.total)
        cells = [(*self.by, self._unit, *kinds, "cost")]
        for row in shown:
            usage = row.total.usage
            split = (usage.input, usage.cached, usage.output)
            tokens = split if len(kinds) > 1 else (row.total.tokens,)
            numbers = (f"{number:,}" for number in (row.total.calls, *tokens))
            cells.append((*row.keys, *numbers, row.cost))
        return format_columns(cells, width, "<" * len(self.by) + ">" * (len(kinds) + 1))

    def _notes(self, width: int | None) -> list[str]:
        if not self.total.presumed:
            return []
        return [PRESUMED] if width is None else wrap(PRESUMED, width)

    def _numbers(self, row: SpendingRow) -> dict[str, Any]:
        total = row.total
        is_shell = self.source == "shell"
        return {
            self._unit: total.calls,
            "input": total.usage.input,
            "cached": total.usage.cached,
            "output": total.usage.output,
            "cost": f"{total.cost:f}",
            "at_least": total.unknown,
            **({"estimated": total.estimated} if is_shell else {}),
            "presumed": row.presumed,
        }


def _make_bar(row: SpendingRow, is_money: bool) -> Bar:
    label = " ".join(map(escape_name, row.keys))
    if is_money:
        return Bar(label, row.total.cost, row.cost)
    return Bar(label, Decimal(row.total.tokens), f"{row.total.tokens:,} tokens")


def escape_name(text: str) -> str:
    """Return a name on one line, safe to print on a terminal; names of models come from clients."""
    return sanitize(text).replace("\n", "\u240a").replace("\t", "\u2409") or NAMELESS


# Single calls, as CSV or JSON

USAGE: Final = ("input", "cached", "written", "output")
SHELL_FIELDS: Final = (
    *("time", "day", "session", "project", "model", "category"),
    *(*USAGE, "cost", "estimated", "presumed"),
)
GATEWAY_FIELDS: Final = (
    *("id", "time", "day", "key", "key_id", "project", "model", "upstream"),
    *(*USAGE, "cost", "state", "counted"),
)

Writer = Callable[[Mapping[str, Any]], object]


def open_row_writer(fields: Sequence[str], as_json: bool) -> Writer:
    """Return a function that prints a row; print the header of a CSV file immediately."""
    if as_json:
        return lambda row: sys.stdout.write(f"{json.dumps(row)}\n")  # escaped, for terminals
    table = csv.DictWriter(sys.stdout, fields, lineterminator="\n")
    table.writeheader()
    return lambda row: table.writerow({name: _cell(value) for name, value in row.items()})


def make_shell_row(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call of the shell as a row; an unknown cost is None."""
    return {
        **{name: call[name] for name in SHELL_FIELDS},
        "time": format_time(call["time"]),
        "cost": None if call["unknown"] else call["cost"],
        "estimated": bool(call["estimated"]),
        "presumed": bool(call["presumed"]),
    }


def make_gateway_row(row: LedgerRow) -> dict[str, Any]:
    """Return a row of the gateway's ledger; an unknown cost is None."""
    from brim.gateway.accounts.caps import to_dollars

    bill = row.charge
    return {
        "id": row.id,
        "time": format_time(row.time),
        "day": row.day,
        "key": row.key_name,
        "key_id": row.key,
        "project": row.project,
        "model": row.model,
        "upstream": row.upstream,
        **{name: getattr(bill.usage, name) for name in USAGE},
        "cost": None if bill.is_unpriced else f"{to_dollars(bill.micro_dollars):f}",
        "state": row.state,
        "counted": row.is_estimated,
    }


def format_time(seconds: float) -> str:
    """Return a time in ISO format."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _cell(value: Any) -> Any:
    """Return a value that neither a spreadsheet nor a terminal executes."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str) or not value:
        return value
    return f"'{escape_name(value)}" if value[0] in "=+-@\t\r" else escape_name(value)
