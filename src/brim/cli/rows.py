"""Rows of books as they are, for spreadsheets and programs: CSV, or a JSON object a line."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from brim.gateway.accounts.reservations import LedgerRow

USAGE: Final = ("input", "cached", "written", "output")
SHELL: Final = (
    *("time", "day", "session", "project", "model", "category"),
    *(*USAGE, "cost", "estimated"),
)
GATEWAY: Final = (
    *("id", "time", "day", "key", "key_id", "project", "model", "upstream"),
    *(*USAGE, "cost", "state", "counted"),
)

Writer = Callable[[Mapping[str, Any]], object]


def open_row_writer(fields: Sequence[str], as_json: bool) -> Writer:
    """What takes a row and prints it; the head of a table is printed at once."""
    if as_json:
        return lambda row: sys.stdout.write(f"{json.dumps(row)}\n")  # escaped, for terminals
    table = csv.DictWriter(sys.stdout, fields, lineterminator="\n")
    table.writeheader()
    return lambda row: table.writerow({name: _cell(value) for name, value in row.items()})


def make_shell_row(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call of the shell; a cost that nobody knows is None."""
    return {
        **{name: call[name] for name in SHELL},
        "time": format_time(call["time"]),
        "cost": None if call["unknown"] else call["cost"],
        "estimated": bool(call["estimated"]),
    }


def make_gateway_row(row: LedgerRow) -> dict[str, Any]:
    """A line of the gateway's ledger; a cost that nobody knows is None."""
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
    """A time as programs read it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _cell(value: Any) -> Any:
    """What neither a spreadsheet runs nor a terminal obeys: names of models come from anybody."""
    from brim.cli.bill import escape_name

    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str) or not value:
        return value
    return f"'{escape_name(value)}" if value[0] in "=+-@\t\r" else escape_name(value)
