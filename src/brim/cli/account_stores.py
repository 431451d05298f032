"""`brim keys copy`, `prune` and `audit`: account stores as a whole."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from brim.cli.keys import keys
from brim.cli.options import json_option, number_option, print_result, store_option, terminal_width

if TYPE_CHECKING:
    from brim.gateway.accounts.audit import AuditEntry
    from brim.gateway.accounts.store import AccountStore


@keys.command("copy")
@click.argument("source")
@click.argument("target")
@json_option
def copy_(source: str, target: str, as_json: bool) -> None:
    """Copy an account store to another one: keys, caps, ledger and audit log.

    SOURCE and TARGET are files or URLs. Stop the gateways of both first. The target must be empty,
    or have a part of this source: an interrupted copy can be started again. Afterwards, row counts
    and sums of both stores are compared. Set gateway.store to the target then.

    \b
    brim keys copy ~/.local/state/brim/accounts.sqlite3 postgresql://brim@db.example.com/brim
    """
    from dataclasses import asdict

    from brim.cli.accounts import locate_store
    from brim.gateway.accounts.caps import to_dollars
    from brim.gateway.accounts.migration import CopyReport, copy_store

    to = locate_store(target)

    async def copy(store: AccountStore) -> CopyReport:
        other = to.create()
        await other.open()
        try:
            return await copy_store(store, other)
        finally:
            await other.close()

    report = locate_store(source).read(copy)
    dollars = to_dollars(report.micro_dollars)
    facts = asdict(report) | {"target": str(to), "cost": str(dollars)}
    del facts["micro_dollars"]
    text = (
        f"Copied to {to}: {report.keys:,} keys, {report.rows:,} rows of the ledger with "
        f"${dollars:,} and {report.tokens:,} tokens. Counts and sums are those of the source."
    )
    print_result(facts, text, as_json=as_json)


@keys.command()
@click.option(
    "--older-than",
    required=True,
    metavar="DURATION",
    help="Age of the rows to delete: 90d, 52w; at least 40d.",
)
@json_option
@store_option
def prune(older_than: str, as_json: bool, store: str | None) -> None:
    """Delete old rows of the ledger.

    Caps stay exact: the sums of deleted rows are kept for total caps. Gateways may run meanwhile.
    With gateway.keep_ledger_days they prune by themselves.

    \b
    brim keys prune --older-than 90d
    """
    from brim.cli.accounts import locate_store
    from brim.gateway.accounts.keys import parse_duration
    from brim.gateway.accounts.store import check_retention

    seconds = parse_duration(older_than)
    if seconds is None:
        raise click.UsageError(f"Invalid duration: {older_than!r}. Write 90d or 52w.")
    days = check_retention(max(1, int(seconds // 86_400)))
    before = datetime.now(UTC).date() - timedelta(days=days)
    location = locate_store(store)
    rows = location.read(lambda accounts: accounts.prune(before))
    text = f"Deleted {rows:,} rows of the ledger from before {before} in {location}."
    print_result({"rows": rows, "before": str(before)}, text, as_json=as_json)


@keys.command()
@number_option("--last", default=50, show_default=True, help="Number of changes.")
@json_option
@store_option
def audit(last: int, as_json: bool, store: str | None) -> None:
    """List who changed which keys, caps and settings, the newest first.

    The commands, the administration API and the dashboard record each change after it was made.
    Entries are never changed or removed.

    \b
    brim keys audit --last 10
    """
    from brim.cli.accounts import locate_store
    from brim.cli.render import format_time
    from brim.fitting.text_tables import format_columns

    location = locate_store(store)
    entries = location.read(lambda accounts: accounts.audit_entries(last))
    listed = [{**each.to_dict(), "time": format_time(each.time)} for each in entries]
    cells = [("time", "who", "action", "what")]
    cells += [
        (format_time(each.time), each.actor, each.action, _describe(each)) for each in entries
    ]
    text = f"No changes are recorded in {location}."
    if entries:
        text = "\n".join(format_columns(cells, terminal_width(sys.stdout), "<<<<"))
    print_result({"changes": listed}, text, as_json=as_json)


def _describe(entry: AuditEntry) -> str:
    """Return the subject with what changed, on one line."""
    details = dict(entry.details)
    name = details.pop("name", entry.subject)
    changes = [f"{field}: {_describe_change(value)}" for field, value in details.items() if value]
    return "; ".join([f"{name}", *changes])


def _describe_change(value: object) -> str:
    if isinstance(value, dict) and value.keys() == {"before", "after"}:
        return f"{_describe_change(value['before'])} → {_describe_change(value['after'])}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value) if value not in (None, "") else "none"
