"""`brim sessions`: saved conversations of the shell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from brim.cli.main import main
from brim.cli.options import SUBCOMMAND, number_option, terminal_width

if TYPE_CHECKING:
    from brim.storage import ConversationStore


@main.group(invoke_without_command=True, subcommand_metavar=SUBCOMMAND)
@click.pass_context
def sessions(context: click.Context) -> None:
    """List and remove saved conversations of the shell.

    Without a command, this lists the conversations of the current folder.

    \b
    brim sessions
    brim sessions list --all
    brim sessions rm 20261115-1432-3f9a1c
    """
    if context.invoked_subcommand is None:
        context.invoke(list_)


@contextmanager
def _open_log() -> Iterator[ConversationStore]:
    from brim.storage import ConversationStore, Database, state_folder

    with closing(Database(state_folder(os.environ))) as database:
        yield ConversationStore(database)


@sessions.command("list")
@click.option("--all", "everywhere", is_flag=True, help="List the conversations of all folders.")
@number_option("--limit", help="List at most N conversations.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_(everywhere: bool, limit: int | None, as_json: bool) -> None:
    """List the conversations of the current folder, newest first."""
    from brim.config import home_as_tilde
    from brim.fitting.text_tables import format_columns

    with _open_log() as log:
        saved = log.list(None if everywhere else Path.cwd(), limit=limit)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in saved], indent=2, ensure_ascii=False))
        return
    if not saved:
        hint = "" if everywhere else " in this folder. Use --all to list all folders"
        click.echo(f"There are no conversations{hint}.")
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
    """Remove conversations and their outputs; their cost stays recorded."""
    with _open_log() as log:
        for name in [log.find(name).id for name in names]:
            log.remove(name)
            click.echo(f"Removed {name}.")
