"""`brim cost`: spending of the shell or the gateway."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from brim.cli.main import main
from brim.cli.options import store_option, terminal_width
from brim.errors import InputError
from brim.fitting.text_tables import BLOCKS

if TYPE_CHECKING:
    from brim.cli.render import Source, SpendingReport
    from brim.gateway.accounts.store import AccountStore
    from brim.models.pricing import SpendingRow
    from brim.storage import SpendLog

DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
SHARED: Final = ("day", "model", "project")
SHELL: Final = ("category", "session")
GATEWAY: Final = ("key", "upstream", "state")
"""Columns that only one of the two has."""
NARROW: Final = 80
"""Width of a chart that is written to a file."""


@dataclass(frozen=True, slots=True)
class CostQuery:
    """The source, the days and the columns of a report."""

    source: Source
    by: tuple[Any, ...]
    since: date | None
    until: date | None
    store: str | None = None


@main.command()
@click.option("--gateway", is_flag=True, help="Show the gateway's spending instead of the shell's.")
@click.option(
    "--since", metavar="DAY", help="First day: 2026-11-01, monday, today, yesterday or 7d."
)
@click.option("--until", metavar="DAY", help="Last day, in the same format.")
@click.option(
    "--by",
    multiple=True,
    type=click.Choice((*SHARED, *SHELL, *GATEWAY)),
    help="Group by this column; repeatable.  [default: day, and model or key]",
)
@click.option("--plot", is_flag=True, help="Draw a bar chart.")
@click.option("--rows", is_flag=True, help="Print every call as CSV.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON; with --rows, one object per line."
)
@store_option
def cost(
    gateway: bool,
    since: str | None,
    until: str | None,
    by: Sequence[str],
    plot: bool,
    rows: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Show the spending of the shell and `brim ask`, or of the gateway.

    The gateway has its own ledger, with keys and days in UTC; `--by key`, `--by upstream` and `--by
    state` select it too. The two are never added up, because a shell that uses the gateway appears
    in both.

    A total that includes calls of unknown price is shown as *at least*. A *presumed* cost was
    charged in full, because brim was killed before the actual cost was known. Removing a
    conversation or a key does not remove its cost.

    \b
    brim cost --since monday
    brim cost --by project --by model --since 30d --json
    brim cost --by key --plot              which keys spend the most?
    brim cost --gateway --since 2026-11-01 --until 2026-11-30 --rows > november.csv
    """
    if rows and (plot or by):
        raise click.UsageError("--rows cannot be combined with --by or --plot.")
    if plot and as_json:
        raise click.UsageError("--plot and --json cannot be combined.")
    query = _build_query(gateway, since, until, tuple(by), store, plot)
    if rows:
        _export(query, as_json)
        return
    report = _report_shell(query) if query.source == "shell" else _report_gateway(query)
    if as_json:
        days = {
            "since": query.since and query.since.isoformat(),
            "until": query.until and query.until.isoformat(),
        }
        click.echo(json.dumps({**days, **report.to_dict()}, indent=2))
    elif not report.rows:
        hint = " Use --gateway for the spending of the gateway."
        is_shell = report.source == "shell"
        click.echo(f"No spending was recorded.{hint if is_shell else ''}")
    elif plot:
        click.echo("\n".join(_draw_chart(report)))
    else:
        click.echo("\n".join(report.table(terminal_width(sys.stdout))))


def _build_query(
    gateway: bool,
    since: str | None,
    until: str | None,
    by: tuple[str, ...],
    store: str | None,
    plot: bool,
) -> CostQuery:
    is_gateway = gateway or store is not None or any(each in GATEWAY for each in by)
    if is_gateway and (wrong := [each for each in by if each in SHELL]):
        raise click.UsageError(f"--by {wrong[0]} is only available for the shell's spending.")
    # The gateway's days are in UTC, the shell's in local time.
    today = datetime.now(UTC).date() if is_gateway else datetime.now().astimezone().date()
    second = () if plot else ("key",) if is_gateway else ("model",)
    first = None if since is None else parse_day(since, today, "--since")
    last = None if until is None else parse_day(until, today, "--until")
    if first is not None and last is not None and first > last:
        raise InputError(f"--since {first} is after --until {last}.")
    source: Source = "gateway" if is_gateway else "shell"
    return CostQuery(source, tuple(dict.fromkeys(by)) or ("day", *second), first, last, store)


def parse_day(text: str, today: date, flag: str = "--since") -> date:
    """Return a day from a date, a weekday, `today`, `yesterday` or a number of days."""
    value = text.strip().lower()
    if value in ("today", "yesterday"):
        return today - timedelta(days=value == "yesterday")
    if value in DAYS:
        return today - timedelta(days=(today.weekday() - DAYS.index(value)) % 7)
    if match := re.fullmatch(r"(\d{1,4})\s*d(ays?)?", value):
        return today - timedelta(days=int(match[1]))
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise InputError(
            f"{flag} {text!r} is not a day. Use a day such as 2026-11-01, monday, yesterday or 7d."
        ) from None


# Sources


@contextmanager
def _open_spending() -> Iterator[SpendLog]:
    from brim.storage import Database, SpendLog, state_folder

    with closing(Database(state_folder(os.environ))) as database:
        yield SpendLog(database)


def _report_shell(query: CostQuery) -> SpendingReport:
    from brim.cli.render import SpendingReport

    with _open_spending() as spending:
        found = spending.by(*query.by, since=query.since, until=query.until)
    return SpendingReport("shell", query.by, found)


def _report_gateway(query: CostQuery) -> SpendingReport:
    from brim.cli.accounts import locate_store
    from brim.cli.render import SpendingReport
    from brim.gateway.accounts.keys import unique_names

    async def read_rows(accounts: AccountStore) -> list[SpendingRow]:
        spent = await accounts.totals(query.by, query.since, query.until)
        names = {"key": unique_names(await accounts.keys())} if "key" in query.by else {}

        def named(row: SpendingRow) -> SpendingRow:
            pairs = zip(query.by, row.keys, strict=True)
            return replace(row, keys=tuple(names.get(by, {}).get(key, key) for by, key in pairs))

        return sorted(map(named, spent), key=lambda row: row.keys)

    return SpendingReport("gateway", query.by, locate_store(query.store).read(read_rows))


def _export(query: CostQuery, as_json: bool) -> None:
    from brim.cli import render
    from brim.cli.accounts import locate_store

    if query.source == "shell":
        write = render.open_row_writer(render.SHELL_FIELDS, as_json)
        with _open_spending() as spending:
            for call in spending.calls(query.since, query.until):
                write(render.make_shell_row(dict(call)))
        return

    async def export(accounts: AccountStore) -> None:
        write = render.open_row_writer(render.GATEWAY_FIELDS, as_json)
        async for row in accounts.rows(query.since, query.until):
            write(render.make_gateway_row(row))

    locate_store(query.store).read(export)


# Output


def _draw_chart(report: SpendingReport) -> list[str]:
    quiet = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    paint = partial(click.style, fg="cyan") if sys.stdout.isatty() and not quiet else str
    try:
        plain = not BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        plain = True
    return report.chart(terminal_width(sys.stdout) or NARROW, plain=plain, paint=paint)
