"""`brim cost`: what was spent, over all runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from brim.cli.door import main, width
from brim.errors import InputError

if TYPE_CHECKING:
    from brim.store import Spent

DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
BYS: Final = ("day", "model", "project", "category", "session")


@main.command()
@click.option(
    "--since", metavar="DAY", help="A day (2026-11-01), a weekday, today, yesterday, or 7d."
)
@click.option(
    "--by",
    "keys",
    multiple=True,
    type=click.Choice(BYS),
    help="Sum up by this; can be given again.  [default: day, model]",
)
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def cost(since: str | None, keys: Sequence[str], as_json: bool) -> None:
    """Show what was spent, all runs of the shell and of `brim ask` together.

    A total with calls whose price is not known is shown as *at least*. Removing a conversation does
    not remove what it cost.

    \b
    brim cost --since monday
    brim cost --by project --by model --since 30d --json
    """
    from brim.store import Database, Spending, state_folder
    from brim.store.spending import By

    first = None if since is None else day_of(since, datetime.now().astimezone().date())
    chosen: tuple[Any, ...] = tuple(keys) or ("day", "model")
    assert set(chosen) <= set(get_args(By))
    database = Database(state_folder(os.environ))
    try:
        rows = Spending(database).by(*chosen, since=first)
    finally:
        database.close()
    if as_json:
        click.echo(json.dumps(_as_json(rows, chosen, first), indent=2))
    else:
        click.echo(_table(rows, chosen))


def day_of(words: str, today: date) -> date:
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
            f"--since {words!r} is no day; try 2026-11-01, monday, yesterday or 7d"
        ) from None


def _as_json(rows: Sequence[Spent], keys: Sequence[str], since: date | None) -> dict[str, Any]:
    from brim.ledger import Slot

    total = sum((row.slot for row in rows), Slot())
    return {
        "since": None if since is None else since.isoformat(),
        "rows": [{**dict(zip(keys, row.on, strict=True)), **_numbers(row.slot)} for row in rows],
        "total": _numbers(total),
    }


def _numbers(slot: Any) -> dict[str, Any]:
    return {
        "calls": slot.calls,
        "input": slot.usage.input,
        "cached": slot.usage.cached,
        "output": slot.usage.output,
        "cost": str(slot.cost),
        "at_least": slot.unknown,
        "estimated": slot.estimated,
    }


def _table(rows: Sequence[Spent], keys: Sequence[str]) -> str:
    import sys

    from brim.explain import columns
    from brim.ledger import Slot

    if not rows:
        return "nothing was spent"
    total = Slot()
    cells = [(*keys, "calls", "prompt", "cached", "completion", "cost")]
    for row in rows:
        cells.append((*row.on, *_shown(row.slot)))
        total += row.slot
    if len(rows) > 1:
        cells.append(("total", *("" for _ in keys[1:]), *_shown(total)))
    align = "<" * len(keys) + ">" * 5
    return "\n".join(columns(cells, width(sys.stdout), align))


def _shown(slot: Any) -> tuple[str, ...]:
    usage = slot.usage
    tokens = (f"{number:,}" for number in (usage.input, usage.cached, usage.output))
    return (f"{slot.calls:,}", *tokens, slot.spent())
