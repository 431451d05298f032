"""Options, checks and output that several commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click

from brim.errors import InputError
from brim.shell.render.sanitize import sanitize

if TYPE_CHECKING:
    from brim.config import LoadedConfig

Command = TypeVar("Command", bound=Callable[..., Any])

SUBCOMMAND: Final = "[COMMAND] [ARGS]..."
"""What usage lines show for a group that runs without a command; click does so from 8.5 on."""
FILE: Final = "brim.file"
"""Key of the context's metadata for the file that a command reads."""
FILE_PATH: Final = click.Path(path_type=Path)

store_option = click.option(
    "--store",
    metavar="ADDRESS",
    help="Account store of the gateway, if it is not gateway.store: a file, or a PostgreSQL or "
    "Redis URL.",
)


json_option = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


def number_option(*names: str, least: int = 1, **settings: Any) -> Callable[[Command], Command]:
    """Return an option that takes a whole number."""
    return click.option(*names, type=click.IntRange(least), metavar="N", **settings)


def print_result(facts: object, text: str, *, as_json: bool) -> None:
    """Print facts as JSON, or the text that says the same."""
    click.echo(json.dumps(facts, indent=2) if as_json else text)


def reject_group_options(context: click.Context, *given: object) -> None:
    """Raise UsageError if options of a group were given together with a command of it."""
    if context.invoked_subcommand is not None and any(given):
        command = f"{context.command_path} {context.invoked_subcommand}"
        raise click.UsageError(f"Options must follow the command: {command} ...")


def require_packages(extra: str, packages: Iterable[str]) -> None:
    """Raise InputError if a package of an extra is missing."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise InputError(
            f"The {extra} needs missing packages: {', '.join(missing)}. "
            f"Run: pip install 'brim[{extra}]'"
        )


def load_config(flags: Mapping[str, object] = MappingProxyType({})) -> LoadedConfig:
    """Return the configuration for the current folder, and print its notices."""
    from brim import config

    loaded = config.discover(folder=Path.cwd(), environment=os.environ, flags=flags)
    print_notices(loaded.notices)
    return loaded


def print_notices(notices: Iterable[str]) -> None:
    for notice in notices:
        click.echo(f"brim: {sanitize(notice)}", err=True)


def terminal_width(stream: IO[str]) -> int | None:
    """Return the columns of a terminal; None if the stream is not a terminal."""
    with suppress(OSError):
        return os.get_terminal_size(stream.fileno()).columns or None
    return None
