"""`brim keys audit`: who changed which keys, caps and settings."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from brim.cli.keys import keys
from brim.cli.options import number_option, store_option, terminal_width

if TYPE_CHECKING:
    from brim.gateway.accounts.audit import AuditEntry


@keys.command()
@number_option("--last", default=50, show_default=True, help="Number of changes.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@store_option
def audit(last: int, as_json: bool, store: str | None) -> None:
    """List who changed which keys, caps and settings, the newest first.

    The commands, the administration API and the dashboard record each change after it was made.
    Entries are never changed or removed.

    \b
    brim keys audit --last 10
    """
    from brim.cli.accounts import locate_store
    from brim.cli.render import format_time
    from brim.fitting.text_tables import format_columns

    location = locate_store(store)
    entries = location.read(lambda accounts: accounts.audit_entries(last))
    if as_json:
        listed = [{**each.to_dict(), "time": format_time(each.time)} for each in entries]
        click.echo(json.dumps({"changes": listed}, indent=2))
    elif not entries:
        click.echo(f"No changes are recorded in {location}.")
    else:
        cells = [("time", "who", "action", "what")]
        cells += [
            (format_time(each.time), each.actor, each.action, _describe(each)) for each in entries
        ]
        click.echo("\n".join(format_columns(cells, terminal_width(sys.stdout), "<<<<")))


def _describe(entry: AuditEntry) -> str:
    """Return the subject with what changed, on one line."""
    details = dict(entry.details)
    name = details.pop("name", entry.subject)
    changes = [f"{field}: {_describe_change(value)}" for field, value in details.items() if value]
    return "; ".join([f"{name}", *changes])


def _describe_change(value: object) -> str:
    if isinstance(value, dict) and value.keys() == {"before", "after"}:
        return f"{_describe_change(value['before'])} → {_describe_change(value['after'])}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value) if value not in (None, "") else "none"
