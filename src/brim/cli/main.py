"""The `brim` command and `brim resume`, which start the shell."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from brim import __version__
from brim.cli.options import FILE, SUBCOMMAND, number_option, reject_group_options, require_packages
from brim.errors import (
    AccountStoreError,
    BrimError,
    BudgetError,
    ContextOverflowError,
    InvalidResponseError,
    ProviderError,
    SpendingCapError,
)
from brim.shell.render.sanitize import sanitize

if TYPE_CHECKING:
    from brim.config import Config
    from brim.shell.setup import CheckResult

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
"""Exit codes by exception; the first match counts. 130 and 141 are what a shell reports for a
program that was interrupted or whose output was closed."""

SHELL_PACKAGES: Final = "prompt_toolkit rich httptools tree_sitter tree_sitter_bash pathspec"

COMMANDS: Final = (
    "ask config cost doctor fit keys key_caps account_stores local models serve sessions"
)
"""The modules with the commands."""

yes_option = click.option(
    "--yes",
    is_flag=True,
    help="Run proposed commands without confirmation, except destructive ones.",
)


class CommandGroup(click.Group):
    """A group of commands that turns expected errors into a message and an exit code.

    The modules of the commands are imported when a command is looked up.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = super().get_command(ctx, cmd_name)
        if known is None:
            _register_commands()
        return known or super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        _register_commands()
        return super().list_commands(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            click.echo(nl=False)  # flush now, so that errors are still reported
        except tuple(EXIT_CODES) as error:
            sentence = _format_error(error, ctx.meta.get(FILE))
            if sentence:
                click.echo(f"brim: {sanitize(sentence)}", err=True)
            ctx.exit(next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind)))
        return result


def _register_commands() -> None:
    """Import the modules of the commands, which registers them."""
    for name in COMMANDS.split():
        import_module(f"brim.cli.{name}")


def _format_error(error: BaseException, file: str | None) -> str:
    match error:
        case KeyboardInterrupt():
            return ""
        case BudgetError():
            return (
                "The context window of the model is unknown. Use --window 8192, "
                "or -m with a name from `brim models`."
            )
        case OSError() if not isinstance(error, BrimError):
            with suppress(OSError):  # Python would try to flush standard output again at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            quiet = isinstance(error, BrokenPipeError)
            return "" if quiet else f"{error.filename or 'the output'}: {error.strerror or error}"
        case _:
            return str(error) if file is None or str(error).startswith(file) else f"{file}: {error}"


@click.group(
    "brim",
    cls=CommandGroup,
    invoke_without_command=True,
    subcommand_metavar=SUBCOMMAND,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("-m", "--model", metavar="NAME", help="Model for the shell.")
@number_option("--window", help="Context window in tokens.")
@yes_option
@click.version_option(__version__, "--version", message="brim %(version)s")
@click.pass_context
def main(context: click.Context, model: str | None, window: int | None, yes: bool) -> None:
    """Keep LLM conversations inside the context window and the spending limit.

    Without a command, this starts the shell, where commands and plain language share one prompt.
    Piped lines are executed one after the other.

    \b
    brim                                         the shell
    brim resume                                  resume the last conversation of this folder
    brim count notes.md -m gpt-5-mini            count tokens
    brim fit chat.json -m gpt-5-mini > out.json  fit a conversation into the context window
    brim fit rows.jsonl --window 8192 -o out.jsonl   fit many conversations, on all cores
    brim models gpt-5-mini                       show a model's limits and prices
    brim ask "why did this fail?" < build.log    ask one question
    brim cost --since monday                     show spending
    brim doctor                                  check the installation
    brim local serve                             run a small model on this machine
    brim serve --upstream https://api.openai.com/v1  run a gateway for your clients
    brim keys add alice --cap 5/day              create a key for the gateway
    brim cost --by key --plot                    show spending by key

    FILE can be - for standard input, and may be compressed with gzip.

    \b
    Exit codes: 0 success; 2 invalid options or unreadable input; 3 something does not fit the
    context window or a spending cap; 4 a server or the account store failed.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # not every code page has arrows and dashes
            stream.reconfigure(errors="replace")
    reject_group_options(context, model, window, yes)
    if context.invoked_subcommand is None:
        _start_shell(context, model=model, window=window, yes=yes)


@main.command()
@click.argument("name", required=False, default="")
@click.option("-m", "--model", metavar="NAME", help="Continue with another model.")
@number_option("--window", help="Context window in tokens.")
@yes_option
@click.pass_context
def resume(
    context: click.Context, name: str, model: str | None, window: int | None, yes: bool
) -> None:
    """Resume the last conversation of this folder, or the one called NAME.

    `brim sessions list` shows the names; the end of a name is enough.
    """
    _start_shell(context, model=model, window=window, resume=name, yes=yes)


def _check_account_store(config: Config, environment: Mapping[str, str]) -> CheckResult:
    from brim.cli.accounts import check_account_store

    return check_account_store(config, environment)


def _start_shell(
    context: click.Context,
    *,
    model: str | None = None,
    window: int | None = None,
    resume: str | None = None,
    yes: bool = False,
) -> None:
    """Start the shell, or execute piped lines."""
    require_packages("shell", SHELL_PACKAGES.split())
    if sys.stdin.isatty() and sys.stdout.isatty():
        sys.stdout.write(f"brim {__version__}\r")  # overwritten by the first line of the shell
        sys.stdout.flush()
    gc.disable()  # collections would take a quarter of the time to the prompt
    from brim import config
    from brim.shell.main import open_shell
    from brim.shell.state import StartOptions

    gc.freeze()
    gc.enable()
    loaded = config.discover(folder=Path.cwd(), environment=os.environ)
    options = StartOptions(
        model,
        window,
        resume,
        yes,
        is_script=not sys.stdin.isatty(),
        extra_checks=(_check_account_store,),
    )
    if not open_shell(options, loaded, os.environ):
        context.exit(1)
