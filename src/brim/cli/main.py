"""The door: the command without a command, and what ends one that fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, Final

import click

from brim import __version__
from brim.errors import (
    AccountStoreError,
    BrimError,
    BudgetError,
    ContextOverflowError,
    InvalidResponseError,
    ProviderError,
    SpendingCapError,
)

EXIT_CODES: Final[Mapping[type[BaseException], int]] = {
    ContextOverflowError: 3,
    SpendingCapError: 3,
    ProviderError: 4,
    InvalidResponseError: 4,
    AccountStoreError: 4,
    BrimError: 2,
    KeyboardInterrupt: 130,
    BrokenPipeError: 141,
    OSError: 2,
}
"""What ends a command, and with which code; the first that fits counts. 130 and 141 are what a
shell reports for any program that was interrupted, or whose reader has gone."""

FILE: Final = "brim.file"
"""Where a command says which file it is about."""
FILE_PATH: Final = click.Path(path_type=Path)


class CommandGroup(click.Group):
    """Turns what a user can cause into a sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            click.echo(nl=False)  # what is buffered goes out while its errors can be told
        except tuple(EXIT_CODES) as error:
            sentence = _format_error(error, ctx.meta.get(FILE))
            if sentence:
                click.echo(f"brim: {sentence}", err=True)
            ctx.exit(next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind)))
        return result


def _format_error(error: BaseException, file: str | None) -> str:
    match error:
        case KeyboardInterrupt():
            return ""
        case BudgetError():
            return (
                "the size of the context window is not known; give --window 8192, "
                "or -m with a name that `brim models` lists"
            )
        case OSError() if not isinstance(error, BrimError):
            _detach_stdout()
            quiet = isinstance(error, BrokenPipeError)
            return "" if quiet else f"{error.filename or 'the output'}: {error.strerror or error}"
        case _:
            return str(error) if file is None or str(error).startswith(file) else f"{file}: {error}"


def _detach_stdout() -> None:
    """What could not be written would be tried again at the end, and complained about."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    "brim",
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("-m", "--model", metavar="NAME", help="The model to talk to in the shell.")
@click.option(
    "--window", type=click.IntRange(1), metavar="N", help="Tokens it holds, answer included."
)
@click.option(
    "--yes",
    is_flag=True,
    help="Run what a model proposes without asking, unless it is destructive.",
)
@click.version_option(__version__, "--version", message="brim %(version)s")
@click.pass_context
def main(context: click.Context, model: str | None, window: int | None, yes: bool) -> None:
    """Keep an LLM conversation inside the model's context window.

    Without a command it starts the shell: commands and plain language share one prompt. Lines that
    come through a pipe are done one after the other.

    \b
    brim                                         the shell
    brim resume                                  go on with the last conversation of this folder
    brim count notes.md -m gpt-5-mini            how many tokens is this?
    brim fit chat.json -m gpt-5-mini > out.json  make it fit, leave out no more than needed
    brim fit rows.jsonl --window 8192 -o out.jsonl   a file of conversations, on all cores
    brim models gpt-5-mini                       what is known about a model
    brim ask "why did this fail?" < build.log    ask a model once
    brim cost --since monday                     what was spent
    brim doctor                                  what is wrong with the set-up
    brim local serve                             a small model on this machine
    brim serve --upstream https://api.openai.com/v1  an address for clients that you have
    brim keys add alice --cap 5/day              who may use it, and what each may spend
    brim cost --by key --plot                    what each spent

    FILE can be - for standard input, and may be compressed with gzip.

    \b
    Exit codes: 0; 2 for a wrong call or input that cannot be read; 3 where something cannot fit
    the window or the spending cap; 4 where a server or the store of keys fails.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # arrows and dashes are not in every code page
            stream.reconfigure(errors="replace")
    if context.invoked_subcommand is None:
        from brim.cli.shell import start_shell

        start_shell(context, model=model, window=window, yes=yes)
    elif model or window or yes:
        raise click.UsageError(f"options go after the command: brim {context.invoked_subcommand}")


def terminal_width(stream: IO[str]) -> int | None:
    """The columns of a terminal; elsewhere lines are as long as they are."""
    with suppress(OSError):
        return os.get_terminal_size(stream.fileno()).columns or None
    return None
