"""`brim keys`: API keys of the gateway and their spending caps."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from brim.cli.main import main
from brim.cli.options import Command, store_option, terminal_width

if TYPE_CHECKING:
    from brim.cli.accounts import AccountSnapshot, StoreLocation
    from brim.gateway.accounts.caps import Cap
    from brim.gateway.accounts.keys import ApiKey, KeyRules
    from brim.gateway.accounts.store import AccountStore, CapUsage
    from brim.models.pricing import SpendingRow


@main.group(invoke_without_command=True)
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
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
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
    from brim.cli.accounts import edit_as_local_user, locate_store
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
    if as_json:
        unused = [CapUsage(key_scope(key.id), cap) for cap in own]
        made = {"key": secret, "gateway": location.gateway}
        click.echo(json.dumps(_key_to_dict(key, unused) | made, indent=2))
        return
    click.echo(secret)
    if not quiet:
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
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
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
    from brim.cli.accounts import AccountSnapshot, locate_store
    from brim.gateway.accounts.caps import key_scope

    location = locate_store(store)
    snapshot = location.read(AccountSnapshot.of)
    shown = snapshot.keys if everything else snapshot.active
    if label is not None:
        shown = [key for key in shown if label in key.rules.labels]
    if as_json:
        listed = [_key_to_dict(key, snapshot.caps_of(key_scope(key.id))) for key in shown]
        shared = _scopes_to_dicts(snapshot, snapshot.shared)
        click.echo(json.dumps({"keys": listed, "shared": shared}, indent=2))
    elif not shown:
        which = "" if label is None else f" with the label {label}"
        click.echo(f"There are no keys{which} in {location}. Create one with `brim keys add NAME`.")
    else:
        click.echo("\n".join(_format_table(shown, snapshot, everything)))


def _format_table(
    shown: Sequence[ApiKey], snapshot: AccountSnapshot, with_ended: bool
) -> list[str]:
    from brim.cli.accounts import format_caps
    from brim.fitting.text_tables import format_columns
    from brim.gateway.accounts.caps import key_scope

    ended = ("revoked",) if with_ended else ()
    limited = ("rules",) if any(map(_describe_rules, shown)) else ()
    cells = [("name", "id", "project", "made", *ended, *limited, "spent")]
    for key in shown:
        revoked = (_format_day(key.revoked),) if with_ended else ()
        spent = format_caps(snapshot.caps_of(key_scope(key.id))) or "no cap"
        use = "operator" if key.is_operator else spent
        rules = (_describe_rules(key),) if limited else ()
        made = _format_day(key.created)
        cells.append((key.name, key.id, key.project, made, *revoked, *rules, use))
    lines = format_columns(cells, terminal_width(sys.stdout), "<" * len(cells[0]))
    return [*lines, "", *_format_scopes(snapshot, snapshot.shared)] if snapshot.shared else lines


@keys.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@store_option
def revoke(name: str, as_json: bool, store: str | None) -> None:
    """Revoke a key, by its name or its id.

    Its spending stays in the ledger, and another key can take its name.
    """
    from brim.cli.accounts import edit_as_local_user, locate_store

    ended = locate_store(store).read(lambda accounts: edit_as_local_user(accounts).revoke(name))
    if as_json:
        click.echo(json.dumps(_key_to_dict(ended, ()), indent=2))
    else:
        click.echo(f"Revoked {ended.name} ({ended.id}).")


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
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@store_option
def rotate(name: str, overlap: str, quiet: bool, as_json: bool, store: str | None) -> None:
    """Give a key a new secret and print it; it is not shown again.

    The key keeps its id, caps, rules and spending. Its old secret stays valid for the overlap, so
    that clients can be changed one after the other; after a leak, use --overlap 0.

    \b
    brim keys rotate alice
    KEY=$(brim keys rotate ci --overlap 0 --quiet)
    """
    from brim.cli.accounts import edit_as_local_user, locate_store
    from brim.cli.render import format_time
    from brim.gateway.accounts.keys import create_secret, hash_secret, parse_overlap

    secret, seconds = create_secret(), parse_overlap(overlap)
    location = locate_store(store)
    hashed = hash_secret(secret)
    key = location.read(lambda accounts: edit_as_local_user(accounts).rotate(name, hashed, seconds))
    until = format_time(time.time() + seconds) if seconds else None
    if as_json:
        made = {"key": secret, "gateway": location.gateway, "old_secret_valid_until": until}
        click.echo(json.dumps(_key_to_dict(key, ()) | made, indent=2))
        return
    click.echo(secret)
    if not quiet:
        ends = f"stays valid until {until}" if until else "is no longer valid"
        click.echo(f"\nThis is the new key of {key.name}. The old one {ends}.", err=True)


@keys.command()
@click.argument("name")
@rule_options
@click.option("--all-models", is_flag=True, help="Allow all models.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
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
    from brim.cli.accounts import AccountSnapshot, edit_as_local_user, locate_store

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
    if as_json:
        click.echo(json.dumps(_key_to_dict(changed, ()), indent=2))
    else:
        click.echo(f"{changed.name}: {_describe_rules(changed) or 'no limits besides its caps'}.")


@keys.command()
@click.argument("words", nargs=-1, metavar="[NAME] [CAP]...")
@click.option("--project", metavar="NAME", help="Caps shared by the keys of a project.")
@click.option("--all-keys", is_flag=True, help="Caps shared by all keys.")
@click.option("--each-user", is_flag=True, help="Caps that each end user of the key has.")
@click.option("--none", "lift", is_flag=True, help="Remove the caps.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
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
    from brim.cli.accounts import AccountSnapshot, edit_as_local_user, locate_store
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
    if as_json:
        click.echo(json.dumps(_scopes_to_dicts(snapshot, scopes), indent=2))
    else:
        click.echo("\n".join(_format_scopes(snapshot, scopes)) or "There are no caps.")
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
    if as_json:
        click.echo(json.dumps([_user_to_dict(row) for row in rows], indent=2))
    elif not rows:
        click.echo(f"{name} has sent no requests since {first}.")
    else:
        cells = [("end user", "requests", "tokens", "cost")]
        for row in rows:
            total, user = row.total, row.keys[1] or "(none)"
            numbers = f"{total.calls:,}", f"{total.tokens:,}", format_dollars(total.cost)
            cells.append((user, *numbers))
        click.echo("\n".join(format_columns(cells, terminal_width(sys.stdout), "<>>>")))


@keys.command("copy")
@click.argument("source")
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def copy_(source: str, target: str, as_json: bool) -> None:
    """Copy an account store to another one: keys, caps, ledger and audit log.

    SOURCE and TARGET are files or URLs. Stop the gateways of both first. The target must be empty,
    or have a part of this source: an interrupted copy can be started again. Afterwards, row counts
    and sums of both stores are compared. Set gateway.store to the target then.

    \b
    brim keys copy ~/.local/state/brim/accounts.sqlite3 postgresql://brim@db.example.com/brim
    """
    from dataclasses import asdict

    from brim.cli.accounts import locate_store
    from brim.gateway.accounts.caps import to_dollars
    from brim.gateway.accounts.migration import CopyReport, copy_store

    to = locate_store(target)

    async def copy(store: AccountStore) -> CopyReport:
        other = to.create()
        await other.open()
        try:
            return await copy_store(store, other)
        finally:
            await other.close()

    report = locate_store(source).read(copy)
    dollars = to_dollars(report.micro_dollars)
    if as_json:
        facts = asdict(report) | {"target": str(to), "cost": str(dollars)}
        del facts["micro_dollars"]
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(
        f"Copied to {to}: {report.keys:,} keys, {report.rows:,} rows of the ledger with "
        f"${dollars:,} and {report.tokens:,} tokens. Counts and sums are those of the source."
    )


@keys.command()
@click.option(
    "--older-than",
    required=True,
    metavar="DURATION",
    help="Age of the rows to delete: 90d, 52w; at least 40d.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@store_option
def prune(older_than: str, as_json: bool, store: str | None) -> None:
    """Delete old rows of the ledger.

    Caps stay exact: the sums of deleted rows are kept for total caps. Gateways may run meanwhile.
    With gateway.keep_ledger_days they prune by themselves.

    \b
    brim keys prune --older-than 90d
    """
    from brim.cli.accounts import locate_store
    from brim.gateway.accounts.keys import parse_duration
    from brim.gateway.accounts.store import check_retention

    seconds = parse_duration(older_than)
    if seconds is None:
        raise click.UsageError(f"Invalid duration: {older_than!r}. Write 90d or 52w.")
    days = check_retention(max(1, int(seconds // 86_400)))
    before = datetime.now(UTC).date() - timedelta(days=days)
    location = locate_store(store)
    rows = location.read(lambda accounts: accounts.prune(before))
    if as_json:
        click.echo(json.dumps({"rows": rows, "before": str(before)}))
    else:
        click.echo(f"Deleted {rows:,} rows of the ledger from before {before} in {location}.")


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


# Output


def _describe_rules(key: ApiKey) -> str:
    rules, parts = key.rules, []
    if rules.expires is not None:
        parts.append(f"until {_format_day(rules.expires - 1)}")
    if rules.models:
        parts.append("models " + ", ".join(rules.models))
    if rules.labels:
        parts.append(", ".join(rules.labels))
    return "; ".join(parts + ([rules.note] if rules.note else []))


def _format_scopes(snapshot: AccountSnapshot, scopes: Iterable[str]) -> list[str]:
    from brim.cli.accounts import format_caps

    lines: list[str] = []
    for scope in scopes:
        text = f"{snapshot.name_scope(scope)}: {format_caps(snapshot.caps_of(scope)) or 'no cap'}"
        columns = terminal_width(sys.stdout) or len(text)
        lines += wrap(text, columns, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def _scopes_to_dicts(snapshot: AccountSnapshot, scopes: Iterable[str]) -> list[dict[str, Any]]:
    from brim.cli.accounts import cap_to_dict

    return [
        {
            "scope": scope,
            "name": snapshot.name_scope(scope),
            "caps": list(map(cap_to_dict, snapshot.caps_of(scope))),
        }
        for scope in scopes
    ]


def _key_to_dict(key: ApiKey, caps: Iterable[CapUsage]) -> dict[str, Any]:
    from brim.cli.accounts import cap_to_dict
    from brim.cli.render import format_time

    return {
        "name": key.name,
        "id": key.id,
        "project": key.project,
        "operator": key.is_operator,
        "created": format_time(key.created),
        "revoked": None if key.revoked is None else format_time(key.revoked),
        "expires": None if key.rules.expires is None else format_time(key.rules.expires),
        "models": list(key.rules.models),
        "note": key.rules.note,
        "labels": dict(label.split("=", 1) for label in key.rules.labels),
        "caps": list(map(cap_to_dict, caps)),
    }


def _format_day(seconds: float | None) -> str:
    from brim.cli.render import format_time

    return "" if seconds is None else format_time(seconds)[:10]
