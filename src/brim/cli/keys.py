"""`brim keys`: who may use the gateway, and what each may spend."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from brim.cli.accounts import StoreLocation, locate_store, store_option
from brim.cli.main import main, terminal_width
from brim.cli.rows import format_time

if TYPE_CHECKING:
    from brim.cli.caps import AccountSnapshot, CapStatus
    from brim.gateway.accounts.caps import Cap
    from brim.gateway.accounts.keys import ApiKey
    from brim.gateway.accounts.store import AccountStore


@main.group(invoke_without_command=True)
@click.pass_context
def keys(context: click.Context) -> None:
    """Who may use the gateway, and what each may spend.

    Once there is a key, the gateway asks every client for one. A key is shown when it is made and
    never again: what is kept is a hash. Caps are dollars or tokens, a day, a month or for good, for
    a key, for a project of several keys, or for all keys together. A request that could pass one is
    refused before it is sent. Days and months are those of UTC.

    A gateway that has found keys in a file goes on asking for them, even if the file is lost: to
    let in everybody again, remove accounts.required from the state folder, and the file.

    Without a command, the keys are listed.

    \b
    brim keys add alice --cap 5/day --cap 50/month
    brim keys add ci --project web --cap 2Mtokens/day
    brim keys cap --project web 200/month
    brim keys list
    brim keys revoke alice
    """
    if context.invoked_subcommand is None:
        context.invoke(list_)


@keys.command()
@click.argument("name")
@click.option("--project", default="", metavar="NAME", help="What its spending also counts for.")
@click.option("--cap", "caps", multiple=True, metavar="CAP", help="As 5/day; can be given again.")
@click.option("--operator", is_flag=True, help="For the gateway's page and numbers, and no more.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but the key.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
@store_option
def add(
    name: str,
    project: str,
    caps: Sequence[str],
    operator: bool,
    quiet: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Make a key and show it, this once.

    The key alone goes to standard output, what is said about it to standard error.

    \b
    brim keys add alice --cap 5/day
    KEY=$(brim keys add ci --project web --quiet)
    brim keys add boss --operator
    """
    from brim.cli.caps import CapStatus, parse_caps
    from brim.gateway.accounts.keys import create_key, hash_secret

    if operator and (caps or project):
        raise click.UsageError("an operator's key spends nothing: it has no caps and no project")
    own = parse_caps(caps)
    key, secret = create_key(name, project, is_operator=operator)
    place = locate_store(store)
    place.write(lambda books: books.add_key(key, hash_secret(secret), own))
    if as_json:
        made = {**_key_to_dict(key, map(CapStatus, own)), "key": secret, "gateway": place.gateway}
        click.echo(json.dumps(made, indent=2))
        return
    click.echo(secret)
    if not quiet:
        click.echo("\n".join(["", *_format_directions(key, own, place)]), err=True)


def _format_directions(key: ApiKey, caps: Sequence[Cap], place: StoreLocation) -> list[str]:
    """What a key is good for, and how it is used; the key itself is not in it."""
    lines = [f"This is the key of {key.name}. It is not shown again.", f"Its hash is in {place}."]
    if key.is_operator:
        return [*lines, f"It opens {place.gateway}/ in a browser, and sends no requests."]
    if key.project:
        lines.append(f"What it spends counts for project {key.project}, too.")
    held = ", ".join(map(str, caps))
    sets = f"It has no cap of its own; `brim keys cap {key.name} 5/day` sets one."
    return [
        *lines,
        f"It may spend {held}." if caps else sets,
        "",
        f"  OPENAI_BASE_URL={place.gateway}/v1 OPENAI_API_KEY=...",
        f"  ANTHROPIC_BASE_URL={place.gateway} ANTHROPIC_API_KEY=...",
    ]


@keys.command("list")
@click.option("--all", "everything", is_flag=True, help="Those that were revoked, too.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
@store_option
def list_(everything: bool = False, as_json: bool = False, store: str | None = None) -> None:
    """List the keys, and how much of their caps is spent.

    What is *reserved* may still be spent by requests that are under way.
    """
    from brim.cli.caps import AccountSnapshot
    from brim.gateway.accounts.caps import key_scope

    place = locate_store(store)
    snapshot = place.look(AccountSnapshot.of)
    shown = snapshot.keys if everything else snapshot.living
    if as_json:
        listed = [_key_to_dict(key, snapshot.against(key_scope(key.id))) for key in shown]
        shared = _scopes_to_dicts(snapshot, snapshot.shared)
        click.echo(json.dumps({"keys": listed, "shared": shared}, indent=2))
    elif not shown:
        click.echo(f"there is no key in {place}; `brim keys add NAME` makes one")
    else:
        click.echo("\n".join(_format_table(shown, snapshot, everything)))


def _format_table(
    shown: Sequence[ApiKey], snapshot: AccountSnapshot, with_ended: bool
) -> list[str]:
    from brim.cli.caps import format_caps
    from brim.fitting.explain import format_columns
    from brim.gateway.accounts.caps import key_scope

    ended = ("revoked",) if with_ended else ()
    cells = [("name", "id", "project", "made", *ended, "spent")]
    for key in shown:
        over = (_format_day(key.revoked),) if with_ended else ()
        spent = format_caps(snapshot.against(key_scope(key.id))) or "no cap"
        told = "operator" if key.is_operator else spent
        cells.append((key.name, key.id, key.project, _format_day(key.created), *over, told))
    lines = format_columns(cells, terminal_width(sys.stdout), "<" * len(cells[0]))
    return [*lines, "", *_format_scopes(snapshot, snapshot.shared)] if snapshot.shared else lines


@keys.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
@store_option
def revoke(name: str, as_json: bool, store: str | None) -> None:
    """End a key for good, by its name or its id.

    What it spent stays in the ledger, and its name is free for another key.
    """
    ended = locate_store(store).look(lambda books: books.revoke(name))
    if as_json:
        click.echo(json.dumps(_key_to_dict(ended, ()), indent=2))
    else:
        click.echo(f"{ended.name} ({ended.id}) is revoked")


@keys.command()
@click.argument("words", nargs=-1, metavar="[NAME] [CAP]...")
@click.option("--project", metavar="NAME", help="Caps that the keys of a project share.")
@click.option("--all-keys", is_flag=True, help="Caps that all keys share.")
@click.option("--none", "lift", is_flag=True, help="Take the caps away.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
@store_option
def cap(
    words: Sequence[str],
    project: str | None,
    all_keys: bool,
    lift: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Set the caps of a key, a project or all keys together, or show them.

    CAPs take the place of those that were. Without one they are shown, and without anything else
    those of all. A CAP is dollars or tokens and a period: 5/day, 100/month, 2Mtokens/day, or 250
    for good.

    \b
    brim keys cap alice 5/day 50/month
    brim keys cap --project web 200/month
    brim keys cap --all-keys 1000/month
    brim keys cap alice --none
    """
    from brim.cli.caps import AccountSnapshot, parse_caps

    whose, given = _parse_scope(words, project, all_keys)
    if lift and (given or whose is None):
        raise click.UsageError("--none goes with whose caps are meant, and without caps")
    new = parse_caps(given)

    async def done(books: AccountStore) -> tuple[list[str], AccountSnapshot]:
        snapshot = await AccountSnapshot.of(books)
        if whose is None:
            return snapshot.scopes, snapshot
        scope = whose(snapshot)
        if new or lift:
            await books.set_caps(scope, new)
            snapshot = await AccountSnapshot.of(books)
        return [scope], snapshot

    place = locate_store(store)
    scopes, snapshot = place.write(done) if new else place.look(done)
    if as_json:
        click.echo(json.dumps(_scopes_to_dicts(snapshot, scopes), indent=2))
    else:
        click.echo("\n".join(_format_scopes(snapshot, scopes)) or "there is no cap")
    if new and snapshot.is_idle(*scopes):
        click.echo(f"brim: no key belongs to {snapshot.named(*scopes)} yet", err=True)


def _parse_scope(
    words: Sequence[str], project: str | None, all_keys: bool
) -> tuple[Callable[[AccountSnapshot], str] | None, Sequence[str]]:
    """What tells the scope that is meant, None where it is all of them; and the caps."""
    from brim.gateway.accounts.caps import ALL, project_scope
    from brim.gateway.accounts.keys import check_name

    if project is not None and all_keys:
        raise click.UsageError("--project or --all-keys, not both")
    if project is not None:
        check_name("project", project)
        return lambda _: project_scope(project), words
    if all_keys:
        return lambda _: ALL, words
    return (lambda snapshot: snapshot.scope_of(words[0])) if words else None, words[1:]


# How it is shown


def _format_scopes(snapshot: AccountSnapshot, scopes: Iterable[str]) -> list[str]:
    from brim.cli.caps import format_caps

    lines: list[str] = []
    for scope in scopes:
        text = f"{snapshot.named(scope)}: {format_caps(snapshot.against(scope)) or 'no cap'}"
        columns = terminal_width(sys.stdout) or len(text)
        lines += wrap(text, columns, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def _scopes_to_dicts(snapshot: AccountSnapshot, scopes: Iterable[str]) -> list[dict[str, Any]]:
    return [
        {
            "scope": scope,
            "name": snapshot.named(scope),
            "caps": [one.to_dict() for one in snapshot.against(scope)],
        }
        for scope in scopes
    ]


def _key_to_dict(key: ApiKey, standings: Iterable[CapStatus]) -> dict[str, Any]:
    return {
        "name": key.name,
        "id": key.id,
        "project": key.project,
        "operator": key.is_operator,
        "created": format_time(key.created),
        "revoked": None if key.revoked is None else format_time(key.revoked),
        "caps": [one.to_dict() for one in standings],
    }


def _format_day(seconds: float | None) -> str:
    return "" if seconds is None else format_time(seconds)[:10]
