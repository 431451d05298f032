"""`brim sessions`: the conversations on disk."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from brim.cli.main import main, terminal_width

if TYPE_CHECKING:
    from brim.storage import ConversationStore


@main.group(invoke_without_command=True)
@click.pass_context
def sessions(context: click.Context) -> None:
    """The shell's conversations, as they were kept on disk.

    Without a command, those of this folder are listed.

    \b
    brim sessions
    brim sessions list --all
    brim sessions rm 20261115-1432-3f9a1c
    """
    if context.invoked_subcommand is None:
        context.invoke(list_)


@contextmanager
def _log() -> Iterator[ConversationStore]:
    from brim.storage import ConversationStore, Database, state_folder

    database = Database(state_folder(os.environ))
    try:
        yield ConversationStore(database)
    finally:
        database.close()


@sessions.command("list")
@click.option("--all", "everywhere", is_flag=True, help="Of all folders, not only this one.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The newest N only.")
@click.option("--json", "as_json", is_flag=True, help="Print a list for programs.")
def list_(everywhere: bool, limit: int | None, as_json: bool) -> None:
    """List the conversations of this folder, the newest first."""
    from brim.config import home_as_tilde
    from brim.fitting.explain import format_columns

    with _log() as log:
        saved = log.list(None if everywhere else Path.cwd(), limit=limit)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in saved], indent=2, ensure_ascii=False))
        return
    if not saved:
        where = "anywhere" if everywhere else "in this folder; --all lists those of all folders"
        click.echo(f"there is no conversation {where}")
        return
    head = [("id", "changed", "turns", "model", *(("folder",) if everywhere else ()), "title")]
    for one in saved:
        day = datetime.fromtimestamp(one.updated).astimezone().strftime("%Y-%m-%d %H:%M")
        folder = (str(home_as_tilde(Path(one.folder))),) if everywhere else ()
        head.append((one.id, day, str(one.turns), one.model, *folder, one.title))
    align = "<<><" + ("<<" if everywhere else "<")
    click.echo("\n".join(format_columns(head, terminal_width(sys.stdout), align)))


@sessions.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove(names: Sequence[str]) -> None:
    """Remove conversations and their outputs; what they cost stays in the books."""
    with _log() as log:
        for name in [log.find(name).id for name in names]:
            log.remove(name)
            click.echo(f"{name} is removed")
