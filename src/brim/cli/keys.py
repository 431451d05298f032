"""`brim keys`: API keys of the gateway and their spending caps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from brim.cli.main import main
from brim.cli.options import SUBCOMMAND, Command, json_option, print_result, store_option

if TYPE_CHECKING:
    from brim.cli.accounts import StoreLocation
    from brim.gateway.accounts.caps import Cap
    from brim.gateway.accounts.keys import ApiKey, KeyRules
    from brim.gateway.accounts.store import AccountStore


@main.group(invoke_without_command=True, subcommand_metavar=SUBCOMMAND)
@click.pass_context
def keys(context: click.Context) -> None:
    """Manage the API keys of the gateway and their spending caps.

    As soon as a key exists, every client needs one. A key is shown only when it is created; the
    gateway stores a hash. A cap limits dollars or tokens per day, week or month, or in total, for a
    key, for a project of several keys, or for all keys. A request that could exceed a cap is
    rejected before it is sent. Days, weeks (from Monday) and months are in UTC.

    A gateway that has seen keys in a file keeps requiring them even if the file is lost. To allow
    requests without keys again, remove the file and accounts.required from the state folder.

    Without a command, this lists the keys.

    \b
    brim keys add alice --cap 5/day --cap 50/month
    brim keys add ci --project web --cap 2Mtokens/day
    brim keys cap --project web 200/month
    brim keys list
    brim keys revoke alice
    """
    if context.invoked_subcommand is None:
        context.invoke(list_)


def rule_options(command: Command) -> Command:
    """Add the options for what a key may do."""
    for option in (
        click.option("--note", metavar="TEXT", help="Your own words about the key."),
        click.option(
            "--label",
            "labels",
            multiple=True,
            metavar="NAME=VALUE",
            help="Label, such as team=search; repeatable. `NAME=` removes one.",
        ),
        click.option(
            "--model",
            "models",
            multiple=True,
            metavar="PATTERN",
            help="Model the key may use, such as 'gpt-4o*'; repeatable.  [default: all]",
        ),
        click.option(
            "--expires",
            metavar="WHEN",
            help="End of the key: 12h, 30d, 2w, its last day (2026-12-31, in UTC), or never.",
        ),
    ):
        command = option(command)
    return command


@keys.command()
@click.argument("name")
@click.option(
    "--project", default="", metavar="NAME", help="Project whose caps apply to this key too."
)
@click.option(
    "--cap", "caps", multiple=True, metavar="CAP", help="Spending cap, such as 5/day; repeatable."
)
@click.option("--operator", is_flag=True, help="Key for the dashboard and metrics only.")
@rule_options
@click.option("-q", "--quiet", is_flag=True, help="Print only the key.")
@json_option
@store_option
def add(
    name: str,
    project: str,
    caps: Sequence[str],
    operator: bool,
    expires: str | None,
    models: Sequence[str],
    labels: Sequence[str],
    note: str | None,
    quiet: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Create a key and print it; it is not shown again.

    The key is printed to standard output, and how to use it to standard error.

    \b
    brim keys add alice --cap 5/day
    KEY=$(brim keys add ci --project web --quiet)
    brim keys add guest --cap 5 --expires 7d --model 'gpt-4o*'
    brim keys add boss --operator
    """
    from brim.cli.accounts import edit_as_local_user, key_to_dict, locate_store
    from brim.gateway.accounts.caps import key_scope, parse_caps
    from brim.gateway.accounts.keys import NO_RULES, create_key, hash_secret
    from brim.gateway.accounts.store import CapUsage

    if operator and (caps or project):
        raise click.UsageError(
            "An operator key cannot send requests, so it takes no --cap and no --project."
        )
    own = parse_caps(caps)
    rules = _change_rules(NO_RULES, expires, models, labels, note)
    key, secret = create_key(name, project, is_operator=operator, rules=rules)
    location = locate_store(store)
    location.write(
        lambda accounts: edit_as_local_user(accounts).add_key(key, hash_secret(secret), own)
    )
    unused = [CapUsage(key_scope(key.id), cap) for cap in own]
    made = {"key": secret, "gateway": location.gateway}
    print_result(key_to_dict(key, unused) | made, secret, as_json=as_json)
    if not (quiet or as_json):
        click.echo("\n".join(["", *_format_directions(key, own, location)]), err=True)


def _format_directions(key: ApiKey, caps: Sequence[Cap], location: StoreLocation) -> list[str]:
    """Return instructions for a new key, without the key itself."""
    lines = [
        f"This is the key of {key.name}. It is not shown again.",
        f"Its hash is in {location}.",
    ]
    if key.is_operator:
        return [*lines, f"It opens the dashboard at {location.gateway}/ and cannot send requests."]
    if key.project:
        lines.append(f"Its spending counts toward the caps of project {key.project}.")
    held = ", ".join(map(str, caps))
    sets = f"It has no cap of its own. Set one with `brim keys cap {key.name} 5/day`."
    return [
        *lines,
        f"It may spend {held}." if caps else sets,
        "",
        f"  OPENAI_BASE_URL={location.gateway}/v1 OPENAI_API_KEY=...",
        f"  ANTHROPIC_BASE_URL={location.gateway} ANTHROPIC_API_KEY=...",
    ]


@keys.command("list")
@click.option("--all", "everything", is_flag=True, help="Include revoked keys.")
@click.option("--label", metavar="NAME=VALUE", help="Only keys with this label.")
@json_option
@store_option
def list_(
    everything: bool = False,
    label: str | None = None,
    as_json: bool = False,
    store: str | None = None,
) -> None:
    """List the keys and the use of their caps.

    A *reserved* amount is the maximum cost of the requests in flight.
    """
    from brim.cli.accounts import (
        AccountSnapshot,
        format_keys,
        key_to_dict,
        locate_store,
        scopes_to_dicts,
    )
    from brim.gateway.accounts.caps import key_scope

    location = locate_store(store)
    snapshot = location.read(AccountSnapshot.of)
    shown = snapshot.keys if everything else snapshot.active
    if label is not None:
        shown = [key for key in shown if label in key.rules.labels]
    listed = [key_to_dict(key, snapshot.caps_of(key_scope(key.id))) for key in shown]
    facts = {"keys": listed, "shared": scopes_to_dicts(snapshot, snapshot.shared)}
    which = "" if label is None else f" with the label {label}"
    text = f"There are no keys{which} in {location}. Create one with `brim keys add NAME`."
    if shown:
        text = "\n".join(format_keys(shown, snapshot, everything))
    print_result(facts, text, as_json=as_json)


@keys.command()
@click.argument("name")
@json_option
@store_option
def revoke(name: str, as_json: bool, store: str | None) -> None:
    """Revoke a key, by its name or its id.

    Its spending stays in the ledger, and another key can take its name.
    """
    from brim.cli.accounts import edit_as_local_user, key_to_dict, locate_store

    ended = locate_store(store).read(lambda accounts: edit_as_local_user(accounts).revoke(name))
    text = f"Revoked {ended.name} ({ended.id})."
    print_result(key_to_dict(ended, ()), text, as_json=as_json)


@keys.command()
@click.argument("name")
@click.option(
    "--overlap",
    default="24h",
    metavar="DURATION",
    show_default=True,
    help="Time for which the old secret stays valid: 12h, 7d, or 0.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only the key.")
@json_option
@store_option
def rotate(name: str, overlap: str, quiet: bool, as_json: bool, store: str | None) -> None:
    """Give a key a new secret and print it; it is not shown again.

    The key keeps its id, caps, rules and spending. Its old secret stays valid for the overlap, so
    that clients can be changed one after the other; after a leak, use --overlap 0.

    \b
    brim keys rotate alice
    KEY=$(brim keys rotate ci --overlap 0 --quiet)
    """
    from brim.cli.accounts import edit_as_local_user, key_to_dict, locate_store
    from brim.cli.render import format_time
    from brim.gateway.accounts.keys import create_secret, hash_secret, parse_overlap

    secret, seconds = create_secret(), parse_overlap(overlap)
    location = locate_store(store)
    hashed = hash_secret(secret)
    key = location.read(lambda accounts: edit_as_local_user(accounts).rotate(name, hashed, seconds))
    until = format_time(time.time() + seconds) if seconds else None
    made = {"key": secret, "gateway": location.gateway, "old_secret_valid_until": until}
    print_result(key_to_dict(key, ()) | made, secret, as_json=as_json)
    if not (quiet or as_json):
        ends = f"stays valid until {until}" if until else "is no longer valid"
        click.echo(f"\nThis is the new key of {key.name}. The old one {ends}.", err=True)


@keys.command()
@click.argument("name")
@rule_options
@click.option("--all-models", is_flag=True, help="Allow all models.")
@json_option
@store_option
def edit(
    name: str,
    expires: str | None,
    models: Sequence[str],
    labels: Sequence[str],
    note: str | None,
    all_models: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Change when a key expires, which models it may use, its labels or its note.

    The secret stays the same. Gateways apply the change within seconds.

    \b
    brim keys edit guest --expires 30d
    brim keys edit guest --model 'gpt-4o*' --model gpt-5-mini
    brim keys edit guest --all-models --note 'summer interns'
    """
    from brim.cli.accounts import (
        AccountSnapshot,
        describe_rules,
        edit_as_local_user,
        key_to_dict,
        locate_store,
    )

    if all_models and models:
        raise click.UsageError("Give --model or --all-models, not both.")
    if expires is None and note is None and not (models or all_models or labels):
        raise click.UsageError("Give --expires, --model, --all-models, --label or --note.")

    async def update(accounts: AccountStore) -> ApiKey:
        key = (await AccountSnapshot.of(accounts)).find(name)
        rules = replace(key.rules, models=()) if all_models else key.rules
        changed = _change_rules(rules, expires, models, labels, note)
        return await edit_as_local_user(accounts).set_rules(key, changed)

    changed = locate_store(store).read(update)
    text = f"{changed.name}: {describe_rules(changed) or 'no limits besides its caps'}."
    print_result(key_to_dict(changed, ()), text, as_json=as_json)


def _change_rules(
    rules: KeyRules,
    expires: str | None,
    models: Sequence[str],
    labels: Sequence[str],
    note: str | None,
) -> KeyRules:
    """Return rules with those options that were given."""
    from brim.gateway.accounts.keys import change_labels, parse_expiry

    if expires is not None:
        rules = replace(rules, expires=parse_expiry(expires, time.time()))
    if models:
        rules = replace(rules, models=tuple(models))
    rules = replace(rules, labels=change_labels(rules.labels, labels))
    return rules if note is None else replace(rules, note=note)
