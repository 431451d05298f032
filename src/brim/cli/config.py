"""`brim config`: what is set, and where."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from brim.cli.main import FILE_PATH, main
from brim.errors import InputError

if TYPE_CHECKING:
    from brim.config import LoadedConfig


@main.group("config", invoke_without_command=True)
@click.option("--all", "everything", is_flag=True, help="Show what is at its default, too.")
@click.option("--example", is_flag=True, help="Print a file with every key and its default.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
@click.pass_context
def configuration(context: click.Context, everything: bool, example: bool, as_json: bool) -> None:
    """Show what is set, and where.

    Settings come from your own file, from the project's `.brim.toml`, from the environment and
    from flags; the later goes before the earlier, key by key. A project's file counts once you
    trust it, and again after each change. BRIM_CONFIG names another file in place of your own. A
    variable is named after its key: BRIM_CONTEXT__POLICY is context.policy.

    The shell reads all of them but upstreams and gateway, which are for `brim serve` (it reads
    count, too); `brim ask` reads models, context, short_view, count and cost.

    \b
    brim config                         what is set
    brim config --example > brim.toml   a file to begin with
    brim config trust                   show the project's file, and use it from now on
    """
    from brim import config

    if context.invoked_subcommand is not None:
        if everything or example or as_json:
            raise click.UsageError(
                f"options go after the command: brim config {context.invoked_subcommand}"
            )
        return
    if example:
        click.echo(config.write_example(), nl=False)
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
        click.echo("nothing is set; `brim config --all` shows the defaults")
    for notice in loaded.notices:
        click.echo(f"brim: {notice}", err=True)


@configuration.command()
@click.argument("path", type=FILE_PATH, required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--revoke", is_flag=True, help="Use it no more.")
@click.pass_context
def trust(context: click.Context, path: Path | None, yes: bool, revoke: bool) -> None:
    """Show a project's `.brim.toml`, ask, and use it from now on.

    It can name servers that get your words and programs that are started, so read it first. When
    it changes, it is not used until it is trusted again. PATH is the file or its folder; without
    it, it is the file that counts in this folder.
    """
    from brim import config

    file = _overlay(path)
    store = config.Trust.of(os.environ)
    if revoke:
        was = store.revoke(file)
        click.echo(f"{file} is not used any more" if was else f"{file} was not trusted")
        return
    data = file.read_bytes()
    digest = config.digest(data)
    if store.is_trusted(file, digest):
        click.echo(f"{file} is trusted already")
        return
    config.check_file(data, file)
    click.echo(f"{file}:\n\n{config.escape_unprintable(data)}")
    if not yes and not sys.stdin.isatty():
        raise InputError("there is nobody to ask; --yes trusts it without a question")
    if not yes and not click.confirm("Use it?"):
        context.exit(1)
    store.trust(file, digest)
    click.echo(f"{file} is used from now on")


def _overlay(path: Path | None) -> Path:
    """The project's file that is meant."""
    from brim.config import OVERLAY, project_file

    if path is not None:
        return path / OVERLAY if path.is_dir() else path
    if (found := project_file(Path.cwd())) is None:
        raise InputError(f"there is no {OVERLAY} in this folder or above it")
    return found
