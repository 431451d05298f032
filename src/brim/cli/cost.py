"""`brim cost`: what was spent, over all runs, by the shell or through the gateway."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from brim.cli.accounts import locate_store, store_option
from brim.cli.main import main, terminal_width
from brim.errors import InputError

if TYPE_CHECKING:
    from brim.cli.bill import Source, SpendingReport
    from brim.gateway.accounts.reservations import LedgerTotal
    from brim.gateway.accounts.store import AccountStore
    from brim.models.spending import SpendingRow, SpendingTotal
    from brim.storage import SpendLog

DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
SHARED: Final = ("day", "model", "project")
SHELL: Final = ("category", "session")
GATEWAY: Final = ("key", "upstream", "state")
"""What only one of the two can be summed up by."""
NARROW: Final = 80
"""Columns of a picture that goes into a file."""


@dataclass(frozen=True, slots=True)
class CostQuery:
    """Whose spending is asked for, of which days, and summed up by what."""

    source: Source
    by: tuple[Any, ...]
    since: date | None
    until: date | None
    store: str | None = None


@main.command()
@click.option("--gateway", is_flag=True, help="What went through the gateway, not the shell.")
@click.option(
    "--since", metavar="DAY", help="A day (2026-11-01), a weekday, today, yesterday, or 7d."
)
@click.option("--until", metavar="DAY", help="The last day that counts, said in the same way.")
@click.option(
    "--by",
    multiple=True,
    type=click.Choice((*SHARED, *SHELL, *GATEWAY)),
    help="Sum up by this; can be given again.  [default: day, and model or key]",
)
@click.option("--plot", is_flag=True, help="Draw it.")
@click.option("--rows", is_flag=True, help="All calls, one by one, as CSV.")
@click.option("--json", "as_json", is_flag=True, help="For programs; with --rows an object a line.")
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
    """Show what was spent: all runs of the shell and of `brim ask` together, or the gateway.

    The gateway keeps a ledger of its own, with keys and in days of UTC; `--by key`, upstream or
    state asks for it, too. The two are never added up: a shell that talks through the gateway is
    in both.

    A total with calls whose price is not known is shown as *at least*. What is *presumed* was
    charged in full because its gateway died before the answer ended. Removing a conversation or a
    key does not remove what it cost.

    \b
    brim cost --since monday
    brim cost --by project --by model --since 30d --json
    brim cost --by key --plot              who spends most?
    brim cost --gateway --since 2026-11-01 --until 2026-11-30 --rows > november.csv
    """
    if rows and (plot or by):
        raise click.UsageError("--rows goes without --by and --plot")
    if plot and as_json:
        raise click.UsageError("--plot is for people and --json for programs; take one")
    question = _build_query(gateway, since, until, tuple(by), store, plot)
    if rows:
        _export(question, as_json)
        return
    bill = _report_shell(question) if question.source == "shell" else _report_gateway(question)
    if as_json:
        days = {"since": _iso(question.since), "until": _iso(question.until)}
        click.echo(json.dumps({**days, **bill.to_dict()}, indent=2))
    elif not bill.lines:
        where = "in the shell; --gateway looks into the gateway's ledger"
        click.echo(f"nothing was spent {where if bill.source == 'shell' else 'by the gateway'}")
    elif plot:
        click.echo("\n".join(_draw_chart(bill)))
    else:
        click.echo("\n".join(bill.table(terminal_width(sys.stdout))))


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
        raise click.UsageError(f"--by {wrong[0]} is for what was spent in the shell")
    # Each keeps its days by its own clock.
    today = datetime.now(UTC).date() if is_gateway else datetime.now().astimezone().date()
    beside = () if plot else ("key",) if is_gateway else ("model",)
    first = None if since is None else parse_day(since, today, "--since")
    last = None if until is None else parse_day(until, today, "--until")
    if first is not None and last is not None and first > last:
        raise InputError(f"--since {first} is after --until {last}, so no day is left")
    source: Source = "gateway" if is_gateway else "shell"
    return CostQuery(source, tuple(dict.fromkeys(by)) or ("day", *beside), first, last, store)


def parse_day(words: str, today: date, flag: str = "--since") -> date:
    """A day as people say it."""
    said = words.strip().lower()
    if said in ("today", "yesterday"):
        return today - timedelta(days=said == "yesterday")
    if said in DAYS:
        return today - timedelta(days=(today.weekday() - DAYS.index(said)) % 7)
    if match := re.fullmatch(r"(\d{1,4})\s*d(ays?)?", said):
        return today - timedelta(days=int(match[1]))
    try:
        return date.fromisoformat(said)
    except ValueError:
        raise InputError(
            f"{flag} {words!r} is no day; try 2026-11-01, monday, yesterday or 7d"
        ) from None


# Where it stands


@contextmanager
def _open_spending() -> Iterator[SpendLog]:
    from brim.storage import Database, SpendLog, state_folder

    database = Database(state_folder(os.environ))
    try:
        yield SpendLog(database)
    finally:
        database.close()


def _report_shell(question: CostQuery) -> SpendingReport:
    from brim.cli.bill import SpendingReport

    with _open_spending() as spending:
        found = spending.by(*question.by, since=question.since, until=question.until)
    return SpendingReport("shell", question.by, found)


def _report_gateway(question: CostQuery) -> SpendingReport:
    from brim.cli.bill import SpendingReport
    from brim.gateway.accounts.keys import unique_names
    from brim.models.spending import SpendingRow

    async def lines(books: AccountStore) -> list[SpendingRow]:
        spent = await books.totals(question.by, question.since, question.until)
        names = {"key": unique_names(await books.keys())} if "key" in question.by else {}

        def named(on: Sequence[str]) -> tuple[str, ...]:
            pairs = zip(question.by, on, strict=True)
            return tuple(names.get(by, {}).get(part, part) for by, part in pairs)

        made = (SpendingRow(named(each.group), _slot(each), each.presumed) for each in spent)
        return sorted(made, key=lambda line: line.keys)

    return SpendingReport("gateway", question.by, locate_store(question.store).look(lines))


def _slot(spent: LedgerTotal) -> SpendingTotal:
    from brim.gateway.accounts.caps import to_dollars
    from brim.models.spending import SpendingTotal

    cost, is_unpriced = to_dollars(spent.charge.micro_dollars), spent.charge.is_unpriced
    return SpendingTotal(spent.requests, spent.charge.usage, cost, unknown=is_unpriced)


def _export(question: CostQuery, as_json: bool) -> None:
    from brim.cli import rows

    if question.source == "shell":
        write = rows.open_row_writer(rows.SHELL, as_json)
        with _open_spending() as spending:
            for call in spending.calls(question.since, question.until):
                write(rows.make_shell_row(dict(call)))
        return

    async def printed(books: AccountStore) -> None:
        write = rows.open_row_writer(rows.GATEWAY, as_json)
        async for row in books.rows(question.since, question.until):
            write(rows.make_gateway_row(row))

    locate_store(question.store).look(printed)


# How it is shown


def _iso(day: date | None) -> str | None:
    return None if day is None else day.isoformat()


def _draw_chart(bill: SpendingReport) -> list[str]:
    quiet = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    paint = _paint if sys.stdout.isatty() and not quiet else str
    return bill.picture(terminal_width(sys.stdout) or NARROW, plain=not _has_blocks(), paint=paint)


def _paint(signs: str) -> str:
    return click.style(signs, fg="cyan")


def _has_blocks() -> bool:
    from brim.cli.bars import BLOCKS

    try:
        BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
