"""`brim config`: show settings and their sources."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from brim.cli.main import main
from brim.cli.options import FILE_PATH, SUBCOMMAND, json_option, print_notices, reject_group_options
from brim.errors import InputError

if TYPE_CHECKING:
    from brim.config import LoadedConfig


@main.group("config", invoke_without_command=True, subcommand_metavar=SUBCOMMAND)
@click.option("--all", "everything", is_flag=True, help="Include defaults.")
@click.option(
    "--example", is_flag=True, help="Print an example file with every key and its default."
)
@json_option
@click.pass_context
def configuration(context: click.Context, everything: bool, example: bool, as_json: bool) -> None:
    """Show the settings and their sources.

    Settings come from your own file, the project's `.brim.toml`, the environment and flags; later
    sources override earlier ones, key by key. A project's file is used only after you trust it, and
    must be trusted again after every change. BRIM_CONFIG replaces your own file. A variable is
    named after its key: BRIM_CONTEXT__POLICY sets context.policy.

    `brim serve` uses [upstreams], [gateway] and [count]; `brim ask` uses [models], [context],
    [short_view], [count] and [cost]; the shell uses everything except [upstreams] and [gateway].

    \b
    brim config                         show settings
    brim config --example > brim.toml   create a file
    brim config trust                   review and trust the project's file
    """
    from brim import config

    reject_group_options(context, everything, example, as_json)
    if context.invoked_subcommand is not None:
        return
    if example:
        click.echo(config.read_example(), nl=False)
        return
    loaded = config.discover(folder=Path.cwd(), environment=os.environ)
    shown = {
        key: {"value": config.redact(key, setting.value), "source": setting.source}
        for key, setting in loaded.settings.items()
        if everything or setting.source != config.DEFAULT
    }
    if as_json:
        files = [{"path": str(file.path), "state": file.state} for file in loaded.files]
        click.echo(json.dumps({"settings": shown, "files": files}, indent=2))
    else:
        _show_settings(loaded, shown)


def _show_settings(loaded: LoadedConfig, shown: Mapping[str, Mapping[str, object]]) -> None:
    from brim.config import format_value, home_as_tilde

    for file in loaded.files:
        click.echo(f"{home_as_tilde(file.path)}: {file.state}")
    click.echo()
    rows = [(f"{key} = {format_value(row['value'])}", row["source"]) for key, row in shown.items()]
    width = min(60, max((len(text) for text, _ in rows), default=0))
    for text, source in rows:
        click.echo(f"{text:{width}}  # {source}")
    if not rows:
        click.echo("Nothing is set. Use `brim config --all` to show the defaults.")
    print_notices(loaded.notices)


@configuration.command()
@click.argument("path", type=FILE_PATH, required=False)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--revoke", is_flag=True, help="Stop trusting the file.")
@click.pass_context
def trust(context: click.Context, path: Path | None, yes: bool, revoke: bool) -> None:
    """Show a project's `.brim.toml` and trust it after confirmation.

    The file can name servers that receive your messages and programs that are started, so read it
    first. After a change, it must be trusted again. PATH is the file or its folder; the default is
    the project file of the current folder.
    """
    from brim import config

    file = _overlay(path)
    store = config.Trust.of(os.environ)
    if revoke:
        was = store.revoke(file)
        click.echo(f"{file} is no longer trusted." if was else f"{file} was not trusted.")
        return
    data = file.read_bytes()
    digest = config.digest(data)
    if store.is_trusted(file, digest):
        click.echo(f"{file} is already trusted.")
        return
    config.check_file(data, file)
    click.echo(f"{file}:\n\n{config.escape_unprintable(data)}")
    if not yes and not sys.stdin.isatty():
        raise InputError(
            "Cannot ask for confirmation without a terminal. Use --yes to trust the file."
        )
    if not yes and not click.confirm("Trust this file?"):
        context.exit(1)
    store.trust(file, digest)
    click.echo(f"{file} is now trusted.")


def _overlay(path: Path | None) -> Path:
    """Return the project file at a path, or of the current folder."""
    from brim.config import OVERLAY, project_file

    if path is not None:
        return path / OVERLAY if path.is_dir() else path
    if (found := project_file(Path.cwd())) is None:
        raise InputError(f"{OVERLAY} not found in this folder or its parents.")
    return found
