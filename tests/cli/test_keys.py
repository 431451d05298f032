"""`brim keys`: creates, lists and revokes keys, and sets caps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from brim.cli.accounts import StoreLocation
from brim.gateway.accounts import create_store
from brim.gateway.accounts.caps import ALL, Cap, key_scope, project_scope
from brim.gateway.accounts.keys import KEY_PREFIX, ApiKey, hash_secret
from tests.support.accounts.reservations import LONG, make_charge, make_reservation, make_settlement
from tests.support.cli.office import Office
from tests.support.fixtures import EmptyStore

DAILY = Cap(5_000_000, "dollars", "day")


# audit


def test_the_audit_log_has_every_change_and_no_secret(office: Office) -> None:
    assert "No changes" in office.brim("keys", "audit").stdout
    secret = office.brim("keys", "add", "alice", "--cap", "5/day", "-q").stdout.strip()
    office.brim("keys", "cap", "alice", "9/day")
    office.brim("keys", "edit", "alice", "--note", "for tests")
    office.brim("keys", "revoke", "alice")
    shown = office.brim("keys", "audit").stdout
    assert shown.count("cli:") == 4
    assert "$5/day → $9/day" in shown
    assert secret not in shown
    found = json.loads(office.brim("keys", "audit", "--last", 1, "--json").stdout)
    assert [each["action"] for each in found["changes"]] == ["key.revoke"]


# add


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_standard_output_is_only_the_key(office: Office, quiet: tuple[str, ...]) -> None:
    made = office.brim("keys", "add", "alice", "--cap", "5/day", *quiet)
    assert made.exit_code == 0
    secret = made.stdout.removesuffix("\n")
    assert secret.startswith(KEY_PREFIX)
    assert secret.split() == [secret]
    assert secret not in made.stderr
    assert bool(made.stderr) == (not quiet)
    access = office.ask(lambda store: store.access(hash_secret(secret)))
    assert access is not None
    assert access.key.name == "alice"
    assert access.caps == ((key_scope(access.key.id), DAILY),)


def test_a_key_is_not_stored_on_disk(office: Office) -> None:
    secret = office.brim("keys", "add", "alice", "-q").stdout.strip()
    for file in office.folder.rglob("*"):
        if file.is_file():
            assert secret.removeprefix(KEY_PREFIX).encode() not in file.read_bytes()


def test_a_new_key_is_printed_with_client_settings(office: Office) -> None:
    instructions = office.brim("keys", "add", "alice", "--project", "web").stderr
    assert "OPENAI_BASE_URL=http://127.0.0.1:8484/v1 OPENAI_API_KEY=" in instructions
    assert "ANTHROPIC_BASE_URL=http://127.0.0.1:8484 ANTHROPIC_API_KEY=" in instructions
    assert "project web" in instructions
    assert "brim keys cap alice 5/day" in instructions


def test_an_operator_key_is_for_the_dashboard(office: Office) -> None:
    instructions = office.brim("keys", "add", "boss", "--operator").stderr
    assert "opens the dashboard at http://127.0.0.1:8484/" in instructions
    assert "API_KEY" not in instructions
    assert "operator" in office.brim("keys").stdout


def test_a_key_can_be_printed_as_json(office: Office) -> None:
    made = office.brim("keys", "add", "ci", "--project", "web", "--cap", "2Mtokens/day", "--json")
    facts = json.loads(made.stdout)
    assert (facts["name"], facts["project"], facts["operator"]) == ("ci", "web", False)
    assert facts["caps"] == [
        {"unit": "tokens", "period": "day", "cap": 2_000_000, "spent": 0, "reserved": 0}
    ]
    access = office.ask(lambda store: store.access(hash_secret(facts["key"])))
    assert access is not None
    assert access.key.id == facts["id"]


# list


def test_caps_are_listed_with_spent_and_reserved_amounts(office: Office) -> None:
    key = office.key("alice", "--cap", "5/day", "--cap", "1k tokens")
    daily, total = (key_scope(key.id), DAILY), (key_scope(key.id), Cap(1_000, "tokens"))
    office.spend(key, make_charge(1_250_000, tokens=400), caps=(daily, total))
    office.begin(key, make_charge(300_000), daily)
    line = office.brim("keys", "list").stdout.splitlines()[1]
    assert line.split()[:2] == ["alice", key.id]
    assert line.endswith("$1.25 of $5/day, $0.3000 reserved; 400 of 1,000 tokens")
    listed = json.loads(office.brim("keys", "list", "--json").stdout)
    assert listed["keys"][0]["caps"] == [
        {"unit": "dollars", "period": "day", "cap": "5", "spent": "1.25", "reserved": "0.3"},
        {"unit": "tokens", "period": "total", "cap": 1_000, "spent": 400, "reserved": 0},
    ]


def test_a_daily_cap_ignores_yesterdays_spending(office: Office) -> None:
    key = office.key("alice", "--cap", "5/day")
    office.spend(key, make_charge(1_250_000), "2026-03-01", caps=((key_scope(key.id), DAILY),))
    assert "$0.00 of $5/day" in office.brim("keys").stdout


def test_an_empty_list_explains_how_to_create_a_key(office: Office) -> None:
    assert "~/accounts.sqlite3. Create one with `brim keys add NAME`" in office.brim("keys").stdout


def test_revoked_keys_are_listed_only_on_request(office: Office) -> None:
    ended = office.key("alice")
    assert office.brim("keys", "revoke", "alice").stdout == f"Revoked alice ({ended.id}).\n"
    new = office.key("alice")
    assert ended.id not in office.brim("keys").stdout
    listed = json.loads(office.brim("keys", "list", "--all", "--json").stdout)["keys"]
    assert [key["id"] for key in listed] == [ended.id, new.id]
    assert [key["revoked"] is None for key in listed] == [False, True]
    assert json.loads(office.brim("keys", "revoke", new.id, "--json").stdout)["id"] == new.id
    assert "There are no keys" in office.brim("keys").stdout


# edit


def test_a_key_expires_and_is_limited_to_models(office: Office) -> None:
    key = office.key("guest", "--expires", "7d", "--model", "gpt-4o*", "--note", "for the demo")
    assert key.rules.models == ("gpt-4o*",)
    assert key.rules.expires is not None
    assert 6.9 * 86_400 < key.rules.expires - key.created < 7.1 * 86_400
    (line,) = office.brim("keys").stdout.splitlines()[1:]
    assert "until 20" in line
    assert "; models gpt-4o*; for the demo" in line
    shown = office.brim("keys", "edit", "guest", "--expires", "9999-12-31", "--all-models")
    assert shown.stdout == "guest: until 9999-12-31; for the demo.\n"
    changed = office.brim("keys", "edit", key.id, "--expires", "never", "--note", "", "--json")
    facts = json.loads(changed.stdout)
    assert (facts["expires"], facts["models"], facts["note"]) == (None, [], "")
    assert "rules" not in office.brim("keys").stdout
    assert "expires: none → 20" in office.brim("keys", "audit").stdout


# cap


def test_a_rotated_key_has_a_new_secret_and_the_same_caps(office: Office) -> None:
    first = office.brim("keys", "add", "alice", "--cap", "5/day", "-q").stdout.strip()
    made = office.brim("keys", "rotate", "alice", "--overlap", "2h")
    assert "The old one stays valid until" in made.stderr
    second = made.stdout.strip()
    facts = json.loads(office.brim("keys", "rotate", "alice", "--overlap", "0", "--json").stdout)
    assert facts["old_secret_valid_until"] is None
    assert office.ask(lambda store: store.access(hash_secret(first))) is None
    assert office.ask(lambda store: store.access(hash_secret(second))) is None
    access = office.ask(lambda store: store.access(hash_secret(facts["key"])))
    assert access is not None
    assert access.caps == ((key_scope(facts["id"]), DAILY),)


def test_keys_have_labels(office: Office) -> None:
    for name, team in (("alice", "search"), ("ben", "ads")):
        office.brim("keys", "add", name, "--label", f"team={team}", "--label", "env=ci")
    listed = office.brim("keys", "list", "--label", "team=ads")
    assert ("ben" in listed.stdout, "alice" in listed.stdout) == (True, False)
    office.brim("keys", "edit", "ben", "--label", "team=sales", "--label", "env=")
    keys = json.loads(office.brim("keys", "list", "--json").stdout)["keys"]
    assert [key["labels"] for key in keys] == [
        {"env": "ci", "team": "search"},
        {"team": "sales"},
    ]


def test_new_caps_replace_the_old_ones(office: Office) -> None:
    key = office.key("alice", "--cap", "5/day")
    shown = office.brim("keys", "cap", "alice", "50/month", "2M tokens")
    assert shown.stdout == "alice: $0.00 of $50/month; 0 of 2,000,000 tokens\n"
    caps = office.ask(lambda store: store.caps())
    assert caps == {
        key_scope(key.id): (Cap(50_000_000, "dollars", "month"), Cap(2 * 10**6, "tokens"))
    }
    assert office.brim("keys", "cap", "alice").stdout == shown.stdout, "looking changes nothing"
    assert office.brim("keys", "cap", key.id, "--none").stdout == "alice: no cap\n"
    assert office.ask(lambda store: store.caps()) == {}
    assert office.brim("keys", "cap").stdout == "There are no caps.\n"


def test_projects_and_all_keys_together_can_have_caps(office: Office) -> None:
    office.key("ci", "--project", "web")
    office.brim("keys", "cap", "--project", "web", "200/month")
    office.brim("keys", "cap", "--all-keys", "1000/month")
    assert office.ask(lambda store: store.caps()) == {
        project_scope("web"): (Cap(200_000_000, "dollars", "month"),),
        ALL: (Cap(1_000_000_000, "dollars", "month"),),
    }
    shown = office.brim("keys", "cap").stdout
    assert office.brim("keys", "list").stdout.endswith(f"\n\n{shown}")
    assert "project web: $0.00 of $200/month\n" in shown
    assert "all keys together: $0.00 of $1,000/month\n" in shown
    listed = json.loads(office.brim("keys", "cap", "--project", "web", "--json").stdout)
    assert [one["scope"] for one in listed] == ["project:web"]
    assert listed[0]["caps"][0]["cap"] == "200"


def test_rate_limits_and_caps_of_end_users_are_set_and_listed(office: Office) -> None:
    key = office.key("app")
    office.brim("keys", "cap", "app", "5/day", "60rpm", "8 concurrent")
    assert office.brim("keys", "cap", "app", "--each-user", "1/day", "10rpm").exit_code == 0
    assert office.brim("keys", "cap").stdout.splitlines() == [
        "app: $0.00 of $5/day; 0 of 60 requests/minute; 0 of 8 concurrent requests",
        "each end user of app: $1/day; 10 requests/minute",
    ]
    assert office.brim("keys", "cap", "--each-user", "--project", "web", "1/day").exit_code == 2
    office.brim("keys", "cap", "app", "--each-user", "--none")
    assert len(office.brim("keys", "cap").stdout.splitlines()) == 1
    for number, user in enumerate(("max", "mia", "")):
        id = f"r{number}"
        office.ask(lambda store: store.reserve(make_reservation(id, 1, key=key, user=user), LONG))  # noqa: B023
        office.ask(lambda store: store.settle([make_settlement(id, 10_000 * number, 7)]))  # noqa: B023
    table = office.brim("keys", "users", "app").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["end", "(none)", "mia", "max"]
    listed = json.loads(office.brim("keys", "users", "app", "--json").stdout)
    assert listed[0] == {"user": "", "requests": 1, "tokens": 7, "cost": "0.02"}
    later = office.brim("keys", "users", "app", "--since", "2999-01-01")
    assert later.stdout == "app has sent no requests since 2999-01-01.\n"


def test_a_store_is_copied_and_pruned(office: Office, tmp_path: Path) -> None:
    key = office.key("app")
    office.ask(lambda store: store.reserve(make_reservation("r", 1, key=key), LONG))
    busy = office.brim("keys", "copy", str(office.file), str(tmp_path / "new.sqlite3"))
    assert "1 requests in flight" in busy.stderr
    office.ask(lambda store: store.settle([make_settlement("r", 1_500_000, 7)]))
    done = office.brim("keys", "copy", str(office.file), str(tmp_path / "new.sqlite3"))
    assert "1 keys, 1 rows of the ledger with $1.5 and 7 tokens" in done.stdout
    again = office.brim("keys", "copy", str(office.file), str(tmp_path / "new.sqlite3"), "--json")
    assert json.loads(again.stdout)["cost"] == "1.5"
    assert office.brim("keys", "prune", "--older-than", "90d").stdout.startswith("Deleted 0 rows")
    short = office.brim("keys", "prune", "--older-than", "2d")
    assert "at least 40 days" in short.stderr


def test_caps_are_listed_for_keys_then_projects_then_all(office: Office) -> None:
    for name in ("zoe", "adam", "gone"):
        office.key(name, "--project", f"{name}s", "--cap", "5/day")
    office.brim("keys", "revoke", "gone")
    for whose in (("--all-keys",), ("--project", "zoes"), ("--project", "adams")):
        office.brim("keys", "cap", *whose, "200/month")
    shared = ["project adams", "project zoes", "all keys together"]
    shown = office.brim("keys", "cap").stdout.splitlines()
    assert [line.partition(":")[0] for line in shown] == ["zoe", "adam", *shared]
    assert office.brim("keys", "list").stdout.splitlines()[-3:] == shown[-3:]


def test_a_project_without_keys_causes_a_warning(office: Office) -> None:
    office.key("ci", "--project", "web")
    assert office.brim("keys", "cap", "--project", "web", "5").stderr == ""
    wrong = office.brim("keys", "cap", "--project", "wbe", "5")
    assert (wrong.exit_code, wrong.stderr) == (0, "brim: There are no keys in project wbe yet.\n")


# Errors


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("add alice", "Key name already in use: alice"),
        ("add no/name", "Invalid key name: 'no/name'"),
        ("add ci --project no/name", "Invalid project name: 'no/name'"),
        ("add ci --cap 5/year", "Invalid cap: '5/year'"),
        ("add ci --cap 5/day --cap 6/day", "$5/day and $6/day have the same unit"),
        ("add ci --operator --cap 5", "An operator key cannot send requests"),
        ("revoke bob", "No active key: bob"),
        ("add ci --expires soon", "Invalid expiry: 'soon'"),
        ("edit alice", "Give --expires"),
        ("edit alice --model a --all-models", "not both"),
        ("edit bob --note x", "No active key: bob"),
        ("edit boss --note x", "boss is an operator key"),
        ("cap bob 5/day", "No active key: bob"),
        ("cap 5/day", "No active key: 5/day"),
        ("cap boss 5/day", "boss is an operator key"),
        ("cap alice 5/day --none", "and no CAP"),
        ("cap --none", "--none needs a NAME"),
        ("cap --project web --all-keys 5", "not both"),
        ("list --store mysql://h/x", "Unknown account store: mysql://"),
        ("list --store /dev/null/accounts", "/dev/null/accounts"),
        ("list --store ~/team.sqlite3", "Account store not found: ~/team.sqlite3"),
        ("revoke alice --store ~/team.sqlite3", "Account store not found: ~/team.sqlite3"),
        ("cap --store ~/team.sqlite3", "Account store not found: ~/team.sqlite3"),
        ("cap alice --none --store ~/team.sqlite3", "Account store not found: ~/team.sqlite3"),
        ("add ci --cap 1,5/day", "Did you mean 1.5/day?"),
        ("add ci --cap 5M/day", "Did you mean 5M tokens/day?"),
    ],
)
def test_invalid_arguments_are_reported(office: Office, words: str, reason: str) -> None:
    office.key("alice")
    office.key("boss", "--operator")
    before = office.brim("keys", "list", "--json").stdout
    ended = office.brim("keys", *words.split())
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert reason in ended.stderr
    assert office.brim("keys", "list", "--json").stdout == before
    assert not (office.folder / "team.sqlite3").exists()


# The store


def test_an_option_names_another_store_file(office: Office) -> None:
    other = office.folder / "team" / "other.sqlite3"
    assert office.brim("keys", "add", "alice", "--store", other).exit_code == 0
    assert "There are no keys" in office.brim("keys").stdout
    assert "alice" in office.brim("keys", "list", "--store", other).stdout


def test_the_configuration_names_the_store(office: Office) -> None:
    other = office.folder / "other.sqlite3"
    office.environment["BRIM_GATEWAY__STORE"] = str(other)
    office.brim("keys", "add", "alice")
    assert other.exists()
    assert not office.file.exists()
    assert "alice" in office.brim("keys", "list").stdout


@pytest.mark.parametrize("words", ["list", "cap", "list --all --json"])
def test_reading_creates_no_store(office: Office, words: str) -> None:
    assert office.brim("keys", *words.split()).exit_code == 0
    assert "No active key: bob" in office.brim("keys", "revoke", "bob").stderr
    assert "No active key: bob" in office.brim("keys", "cap", "bob", "--none").stderr
    office.environment["BRIM_GATEWAY__STORE"] = str(office.folder / "configured.sqlite3")
    assert office.brim("keys", *words.split()).exit_code == 0
    assert list(office.folder.rglob("*.sqlite3*")) == []


def test_setting_a_cap_creates_the_store(office: Office) -> None:
    shown = office.brim("keys", "cap", "--all-keys", "5/day")
    assert (shown.exit_code, shown.stdout) == (0, "all keys together: $0.00 of $5/day\n")
    assert office.file.exists()


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest, empty_store: EmptyStore) -> str:
    return empty_store(request.param)


async def spend_daily(store: str, id: str) -> None:
    """Record 1.25 dollars against a daily cap."""
    account_store = create_store(store, Path())
    await account_store.open()
    key = ApiKey(id, "alice", "web")
    assert (
        await account_store.reserve(
            make_reservation("r1", 2_000_000, (key_scope(id), DAILY), key=key), LONG
        )
        is None
    )
    await account_store.mark_sent("r1", LONG)
    await account_store.settle([make_settlement("r1", 1_250_000)])
    await account_store.close()


def test_the_commands_work_with_every_store(office: Office, store: str) -> None:
    def brim(*words: str) -> str:
        ended = office.brim(*words, "--store", store)
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    brim("keys", "add", "alice", "--cap", "5/day", "--project", "web")
    brim("keys", "cap", "--project", "web", "1Mtokens/month")
    listed = json.loads(brim("keys", "list", "--json"))
    assert [key["name"] for key in listed["keys"]] == ["alice"]
    assert listed["keys"][0]["caps"][0]["cap"] == "5"
    assert [one["scope"] for one in listed["shared"]] == ["project:web"]
    asyncio.run(spend_daily(store, listed["keys"][0]["id"]))
    ever = ("--since", "0001-01-01", "--until", "9999-12-31")
    (row,) = json.loads(brim("cost", "--by", "key", "--json", *ever))["rows"]
    assert (row["key"], row["requests"], row["cost"]) == ("alice", 1, "1.25")
    assert json.loads(brim("cost", "--rows", "--json", *ever))["state"] == "settled"
    assert "$1.25 of $5/day" in brim("keys", "list")
    brim("keys", "revoke", "alice")
    assert json.loads(brim("keys", "list", "--json"))["keys"] == []
    assert office.brim("keys", "revoke", "alice", "--store", store).exit_code == 2


@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
@pytest.mark.parametrize("words", ["keys", "keys add alice", "cost"])
def test_an_unavailable_store_is_named_without_its_password(
    office: Office, scheme: str, words: str
) -> None:
    office.environment["BRIM_GATEWAY__STORE"] = f"{scheme}://brim:hush@127.0.0.1:1/0"
    ended = office.brim(*words.split(), *(["--gateway"] if words == "cost" else []))
    assert (ended.exit_code, ended.stdout) == (4, "")
    assert ended.stderr.startswith("brim: ")
    assert "127.0.0.1:1" in ended.stderr
    assert "hush" not in ended.stderr


@pytest.mark.parametrize("words", ["keys", "keys add alice", "cost --gateway", "serve"])
@pytest.mark.parametrize(
    "store", ["postgresql://brim:hush[ss@h/db", "redis://brim:hush[ss@h/0", "redis://:hush@h:99999"]
)
def test_an_invalid_store_url_is_reported(office: Office, store: str, words: str) -> None:
    office.environment["BRIM_GATEWAY__STORE"] = store
    upstream = ("--upstream", "http://127.0.0.1:1/v1") if words == "serve" else ()
    ended = office.brim(*words.split(), *upstream)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("brim: ")
    assert "hush" not in ended.stderr


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://brim:secret@db:5432/brim?sslmode=require", "postgresql://db:5432/brim"),
        ("redis://:secret@cache/3", "redis://cache/3"),
        ("rediss://cache", "rediss://cache"),
    ],
)
def test_the_password_of_a_store_is_not_shown(office: Office, address: str, shown: str) -> None:
    assert str(StoreLocation(address, office.folder, "")) == shown


# Terminals


@pytest.mark.parametrize("columns", [50, 80])
def test_a_list_fits_the_width_of_the_terminal(office: Office, columns: int) -> None:
    office.key("alice", "--project", "web", "--cap", "5/day", "--cap", "50/month", "--cap", "1000")
    shown = office.on_terminal(columns, "keys").splitlines()
    assert max(map(len, shown)) <= columns
    assert "$50/month" in " ".join(shown)
    listed = office.on_terminal(columns, "keys", "cap").splitlines()
    assert max(map(len, listed)) <= columns
    assert "$50/month" in " ".join(listed)


# Help


@pytest.mark.parametrize("words", ["keys", "keys add", "keys cap", "cost"])
def test_help_has_examples(office: Office, words: str) -> None:
    page = office.brim(*words.split(), "--help").stdout
    assert page.startswith(f"Usage: brim {words} ")
    assert page.count(f"brim {words} ") >= 3  # examples
