"""`brim keys copy` and `brim keys prune`: account stores as a whole."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from brim.cli.keys import keys
from brim.cli.options import store_option

if TYPE_CHECKING:
    from brim.gateway.accounts.store import AccountStore


@keys.command("copy")
@click.argument("source")
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
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
    if as_json:
        facts = asdict(report) | {"target": str(to), "cost": str(dollars)}
        del facts["micro_dollars"]
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(
        f"Copied to {to}: {report.keys:,} keys, {report.rows:,} rows of the ledger with "
        f"${dollars:,} and {report.tokens:,} tokens. Counts and sums are those of the source."
    )


@keys.command()
@click.option(
    "--older-than",
    required=True,
    metavar="DURATION",
    help="Age of the rows to delete: 90d, 52w; at least 40d.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
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
    if as_json:
        click.echo(json.dumps({"rows": rows, "before": str(before)}))
    else:
        click.echo(f"Deleted {rows:,} rows of the ledger from before {before} in {location}.")
