"""`brim doctor`: check the installation."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from brim.cli.main import main
from brim.cli.options import json_option


@main.command()
@json_option
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Check the installation, and suggest a fix for every problem.

    Checks the installed packages, the configuration, each configured model and its server, other
    servers on this machine, the embedded model, the folder for conversations, the account store of
    the gateway, and the terminal. It costs nothing and prints no keys. It changes nothing, except
    that it creates the schema in a database of gateway.store. Exits with code 1 if a check fails.

    \b
    brim doctor
    brim doctor --json | jq '.checks[] | select(.state != "ok")'
    """
    from brim import config
    from brim.cli.accounts import check_account_store
    from brim.errors import ConfigError
    from brim.shell.setup.doctor import format_check, is_healthy, run_checks

    loaded: config.LoadedConfig | ConfigError
    try:
        loaded = config.discover(folder=Path.cwd(), environment=os.environ)
    except ConfigError as error:
        loaded = error
    checks = []
    for check in run_checks(loaded, os.environ, extra=[check_account_store]):
        checks.append(check)
        if not as_json:
            click.echo("\n".join(format_check(check)))
    if as_json:
        shown = [asdict(check) for check in checks]
        click.echo(json.dumps({"ok": is_healthy(checks), "checks": shown}, indent=2))
    if not is_healthy(checks):
        context.exit(1)
