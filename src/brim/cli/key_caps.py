"""`brim keys cap` and `brim keys users`: caps, and the end users of a key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from brim.cli.keys import keys
from brim.cli.options import json_option, print_result, store_option, terminal_width

if TYPE_CHECKING:
    from brim.cli.accounts import AccountSnapshot
    from brim.gateway.accounts.store import AccountStore
    from brim.models.pricing import SpendingRow


@keys.command()
@click.argument("words", nargs=-1, metavar="[NAME] [CAP]...")
@click.option("--project", metavar="NAME", help="Caps shared by the keys of a project.")
@click.option("--all-keys", is_flag=True, help="Caps shared by all keys.")
@click.option("--each-user", is_flag=True, help="Caps that each end user of the key has.")
@click.option("--none", "lift", is_flag=True, help="Remove the caps.")
@json_option
@store_option
def cap(
    words: Sequence[str],
    project: str | None,
    all_keys: bool,
    each_user: bool,
    lift: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Show or set the caps of a key, a project or all keys.

    New CAPs replace the existing ones. Without a CAP, the caps are shown; without any argument,
    all of them. A CAP is an amount of dollars or tokens and a period: 5/day, 20/week,
    2Mtokens/day, or 250 for a total. A CAP is also a rate limit: 60 requests/minute (or 60rpm),
    100k tokens/minute (or 100ktpm), or 8 concurrent, in quotes where it has spaces.

    An end user is named by the field `user` of a request, by `metadata.user_id`, or by the header
    of gateway.user_header. Requests without a user count as one end user.

    \b
    brim keys cap alice 5/day 50/month 60rpm '8 concurrent'
    brim keys cap chat-app --each-user 1/day 10rpm
    brim keys cap --project web 200/month
    brim keys cap --all-keys 1000/month
    brim keys cap alice --none
    """
    from brim.cli.accounts import (
        AccountSnapshot,
        edit_as_local_user,
        format_scopes,
        locate_store,
        scopes_to_dicts,
    )
    from brim.gateway.accounts.caps import parse_caps

    if each_user and (project is not None or all_keys or not words):
        raise click.UsageError("--each-user needs the NAME of a key.")
    find_scope, given = _parse_scope(words, project, all_keys, each_user)
    if lift and (given or find_scope is None):
        raise click.UsageError("--none needs a NAME, --project or --all-keys, and no CAP.")
    new = parse_caps(given)

    async def update(accounts: AccountStore) -> tuple[list[str], AccountSnapshot]:
        snapshot = await AccountSnapshot.of(accounts)
        if find_scope is None:
            return snapshot.scopes, snapshot
        scope = find_scope(snapshot)
        if new or lift:
            await edit_as_local_user(accounts).set_caps(scope, new)
            snapshot = await AccountSnapshot.of(accounts)
        return [scope], snapshot

    location = locate_store(store)
    scopes, snapshot = location.write(update) if new else location.read(update)
    text = "\n".join(format_scopes(snapshot, scopes)) or "There are no caps."
    print_result(scopes_to_dicts(snapshot, scopes), text, as_json=as_json)
    if new and snapshot.is_idle(*scopes):
        click.echo(f"brim: There are no keys in {snapshot.name_scope(*scopes)} yet.", err=True)


@keys.command()
@click.argument("name")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    help="First day, in UTC.  [default: the first of this month]",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@store_option
def users(name: str, since: datetime | None, as_json: bool, store: str | None) -> None:
    """List the end users of a key and what they spent, the highest cost first.

    \b
    brim keys users chat-app
    brim keys users chat-app --since 2026-11-01 --json
    """
    from brim.cli.accounts import AccountSnapshot, locate_store
    from brim.fitting.text_tables import format_columns
    from brim.models.pricing import format_dollars

    first = datetime.now(UTC).date().replace(day=1) if since is None else since.date()

    async def read(accounts: AccountStore) -> list[SpendingRow]:
        id = (await AccountSnapshot.of(accounts)).find(name).id
        rows = await accounts.totals(["key", "user"], first)
        return sorted(
            (row for row in rows if row.keys[0] == id), key=lambda row: row.total.cost, reverse=True
        )

    rows = locate_store(store).read(read)
    cells = [("end user", "requests", "tokens", "cost")]
    for row in rows:
        total, user = row.total, row.keys[1] or "(none)"
        numbers = f"{total.calls:,}", f"{total.tokens:,}", format_dollars(total.cost)
        cells.append((user, *numbers))
    text = f"{name} has sent no requests since {first}."
    if rows:
        text = "\n".join(format_columns(cells, terminal_width(sys.stdout), "<>>>"))
    print_result([_user_to_dict(row) for row in rows], text, as_json=as_json)


def _user_to_dict(row: SpendingRow) -> dict[str, Any]:
    total = row.total
    facts = {"user": row.keys[1], "requests": total.calls, "tokens": total.tokens}
    return {**facts, "cost": str(total.cost)}


def _parse_scope(
    words: Sequence[str], project: str | None, all_keys: bool, each_user: bool
) -> tuple[Callable[[AccountSnapshot], str] | None, Sequence[str]]:
    """Return a function that finds the scope, or None for all scopes, and the caps."""
    from brim.gateway.accounts.caps import ALL, each_user_scope, key_scope, project_scope
    from brim.gateway.accounts.keys import check_name

    if project is not None and all_keys:
        raise click.UsageError("Give --project or --all-keys, not both.")
    if project is not None:
        check_name("project", project)
        return lambda _: project_scope(project), words
    if all_keys:
        return lambda _: ALL, words
    own = each_user_scope if each_user else key_scope
    return (lambda snapshot: own(snapshot.find(words[0]).id)) if words else None, words[1:]
