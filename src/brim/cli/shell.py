"""`brim` without a command, and `brim resume`: the shell."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from brim.cli.main import main
from brim.errors import InputError

NEEDED: Final = (
    "prompt_toolkit",
    "rich",
    "httptools",
    "tree_sitter",
    "tree_sitter_bash",
    "pathspec",
)
INSTALL: Final = "pip install 'brim[shell]'"


def start_shell(
    context: click.Context,
    *,
    model: str | None = None,
    window: int | None = None,
    resume: str | None = None,
    yes: bool = False,
) -> None:
    """Start the shell, or execute piped lines."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(f"The shell needs missing packages: {', '.join(missing)}. Run: {INSTALL}")
    from brim import config
    from brim.cli.doctor import check_account_store
    from brim.shell.main import open_shell
    from brim.shell.state import StartOptions

    loaded = config.discover(folder=Path.cwd(), environment=os.environ)
    options = StartOptions(
        model,
        window,
        resume,
        yes,
        is_script=not sys.stdin.isatty(),
        extra_checks=(check_account_store,),
    )
    if not open_shell(options, loaded, os.environ):
        context.exit(1)


@main.command()
@click.argument("name", required=False, default="")
@click.option("-m", "--model", metavar="NAME", help="Continue with another model.")
@click.option(
    "--yes",
    is_flag=True,
    help="Run proposed commands without confirmation, except destructive ones.",
)
@click.pass_context
def resume(context: click.Context, name: str, model: str | None, yes: bool) -> None:
    """Resume the last conversation of this folder, or the one called NAME.

    `brim sessions list` shows the names; the end of a name is enough.
    """
    start_shell(context, model=model, resume=name, yes=yes)
