"""`brim doctor`: what is in order and what is not."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from brim.cli.main import main


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Check what brim needs, and say what to do where something is missing.

    Looks at what is installed, the configuration, each configured model and its server, what else
    runs on this machine, the embedded model, the folder for conversations, the gateway's books of
    keys and caps, and the terminal. It costs nothing, shows no key, and changes nothing, but that
    a server of gateway.store is made ready for books. Ends with code 1 if something is bad.

    \b
    brim doctor
    brim doctor --json | jq '.checks[] | select(.state != "ok")'
    """
    from brim import config
    from brim.errors import ConfigError
    from brim.shell.setup.doctor import format_check, is_healthy, run_checks

    loaded: config.LoadedConfig | ConfigError
    try:
        loaded = config.discover(folder=Path.cwd(), environment=os.environ)
    except ConfigError as error:
        loaded = error
    checks = []
    for check in run_checks(loaded, os.environ):
        checks.append(check)
        if not as_json:
            click.echo("\n".join(format_check(check)))
    if as_json:
        shown = [asdict(check) for check in checks]
        click.echo(json.dumps({"ok": is_healthy(checks), "checks": shown}, indent=2))
    if not is_healthy(checks):
        context.exit(1)
