"""Keys and caps, in every store."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from brim.errors import InputError
from brim.gateway.accounts.caps import ALL, MAX_AMOUNT, Cap, project_scope
from brim.gateway.accounts.keys import (
    NO_RULES,
    Access,
    ApiKey,
    KeyRules,
    change_labels,
    create_key,
    hash_secret,
    parse_expiry,
    parse_overlap,
)
from brim.gateway.accounts.reservations import ReservationInvalid
from brim.gateway.accounts.store import AccountStore
from tests.support.accounts.reservations import (
    KEY,
    LONG,
    OWN,
    SECRET,
    TEN,
    make_reservation,
    make_settlement,
    read_rows,
)

pytestmark = pytest.mark.anyio


async def test_a_key_is_found_by_the_hash_of_its_secret(blank: AccountStore) -> None:
    key, secret = create_key("anna", "blue")
    await blank.add_key(key, hash_secret(secret))
    assert await blank.access(hash_secret(secret)) == Access(key)
    assert await blank.access(hash_secret("another")) is None
    assert await blank.access(secret) is None


RULES = KeyRules(
    expires=1_900_000_000.25,
    models=("gpt-4o*", "größer"),
    note="for ü",
    labels=("env=ci", "team=x y"),
)


async def test_the_rules_of_a_key_are_stored_and_can_be_changed(blank: AccountStore) -> None:
    ruled = replace(KEY, rules=RULES)
    await blank.add_key(ruled, SECRET, [Cap(1)])
    assert await blank.access(SECRET) == Access(ruled, ((OWN, Cap(1)),))
    assert await blank.keys() == [ruled]
    longer = replace(RULES, expires=None)
    assert await blank.set_rules("anna", longer) == replace(KEY, rules=longer)
    assert await blank.set_rules(KEY.id, NO_RULES) == KEY
    assert await blank.keys() == [KEY]
    await blank.set_rules("anna", RULES)
    assert (await blank.revoke("anna")).rules == RULES
    for name in ("anna", KEY.id, "ben"):
        with pytest.raises(InputError, match="No active key"):
            await blank.set_rules(name, RULES)


async def test_a_key_has_its_own_caps_and_those_of_its_project_and_of_all_keys(
    blank: AccountStore,
) -> None:
    await blank.set_caps(ALL, [Cap(3, "dollars", "month")])
    await blank.set_caps(project_scope("blue"), [Cap(2, "tokens", "day")])
    await blank.set_caps(project_scope("red"), [Cap(9)])
    await blank.add_key(KEY, SECRET, [Cap(1, "dollars", "day"), Cap(5)])
    assert await blank.access(SECRET) == Access(
        KEY,
        (
            (OWN, Cap(1, "dollars", "day")),
            (OWN, Cap(5)),
            (project_scope("blue"), Cap(2, "tokens", "day")),
            (ALL, Cap(3, "dollars", "month")),
        ),
    )


async def test_a_key_without_a_project_has_no_project_caps(blank: AccountStore) -> None:
    await blank.set_caps(project_scope(""), [Cap(1)])
    await blank.add_key(replace(KEY, project=""), SECRET)
    assert await blank.access(SECRET) == Access(replace(KEY, project=""))


async def test_two_active_keys_cannot_have_the_same_name(store: AccountStore) -> None:
    with pytest.raises(InputError, match="anna"):
        await store.add_key(replace(KEY, id="k_2"), hash_secret("other"), [Cap(1)])
    assert await store.keys() == [KEY]
    assert await store.access(hash_secret("other")) is None
    assert await store.caps() == {}


async def test_the_name_of_a_revoked_key_can_be_used_again(store: AccountStore) -> None:
    await store.revoke("anna")
    again = replace(KEY, id="k_2", created=KEY.created + 1)
    await store.add_key(again, hash_secret("other"))
    first, second = await store.keys()
    assert first.revoked is not None
    assert second == again
    assert (await store.revoke("anna")).id == "k_2"


async def test_keys_are_listed_oldest_first_including_revoked_ones(blank: AccountStore) -> None:
    for number, name in enumerate(["c", "a", "b"]):
        is_operator = name == "a"
        await blank.add_key(
            ApiKey(f"k_{name}", name, "", is_operator, 100.0 + number), hash_secret(name)
        )
    await blank.revoke("a")
    found = await blank.keys()
    assert [(key.name, key.is_operator, key.revoked is None) for key in found] == [
        *(("c", False, True), ("a", True, False), ("b", False, True)),
    ]


@pytest.mark.parametrize("by", ["anna", "k_1"])
async def test_a_revoked_key_has_no_access(store: AccountStore, by: str) -> None:
    revoked = await store.revoke(by)
    assert revoked == replace(KEY, revoked=revoked.revoked)
    assert revoked.revoked is not None
    assert await store.access(SECRET) is None
    assert await store.reserve(make_reservation("r"), LONG) == ReservationInvalid()
    with pytest.raises(InputError, match=by):
        await store.revoke(by)


async def test_no_query_returns_a_secret_or_its_hash(store: AccountStore) -> None:
    await store.reserve(make_reservation("r", 1, TEN), LONG)
    await store.settle([make_settlement("r", 1)])
    read = repr(
        [
            *(await store.keys(), await store.access(SECRET), await store.revoke(KEY.name)),
            *(await store.counters(), await read_rows(store)),
        ]
    )
    assert SECRET not in read
    assert "brim-secret" not in read


async def test_setting_caps_replaces_all_caps_of_a_scope(blank: AccountStore) -> None:
    await blank.set_caps("all", [Cap(1), Cap(2, "tokens", "day")])
    await blank.set_caps("project:blue", [Cap(MAX_AMOUNT, "tokens", "month")])
    await blank.set_caps("all", [Cap(3, "dollars", "month")])
    assert await blank.caps() == {
        "all": (Cap(3, "dollars", "month"),),
        "project:blue": (Cap(MAX_AMOUNT, "tokens", "month"),),
    }
    await blank.set_caps("all", [])
    await blank.set_caps("project:never", [])
    assert list(await blank.caps()) == ["project:blue"]


# Expiry


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600), ("1970-01-02", 172_800 - 1_000)],
)
def test_a_key_ends_after_a_duration_or_a_last_day(text: str, seconds: float) -> None:
    assert parse_expiry(text, 1_000.0) == 1_000.0 + seconds
    assert parse_expiry("never", 1_000.0) is None


@pytest.mark.parametrize("text", ["", "30", "0d", "soon", "2026-13-01", "1970-01-01", "3 d"])
def test_an_invalid_expiry_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="Invalid expiry"):
        parse_expiry(text, 2 * 86_400.0)


# Rotation


async def test_a_rotated_key_accepts_both_secrets_during_the_overlap(store: AccountStore) -> None:
    new, newer = hash_secret("new"), hash_secret("newer")
    assert await store.rotate("anna", new, LONG) == KEY
    assert await store.access(SECRET) == await store.access(new) == Access(KEY)
    assert await store.rotate(KEY.id, newer, LONG) == KEY
    assert [await store.access(one) for one in (SECRET, new, newer)] == [Access(KEY)] * 3
    assert await store.keys() == [KEY]


async def test_without_overlap_the_old_secrets_end_immediately(store: AccountStore) -> None:
    await store.rotate("anna", hash_secret("new"), LONG)
    await store.rotate("anna", hash_secret("newer"), 0)
    ended = [await store.access(one) for one in (SECRET, hash_secret("new"))]
    assert ended == [None, None]
    assert await store.access(hash_secret("newer")) == Access(KEY)


async def test_a_longer_overlap_does_not_extend_an_ending_secret(store: AccountStore) -> None:
    await store.rotate("anna", hash_secret("new"), 0.05)
    await store.rotate("anna", hash_secret("newer"), LONG)
    await anyio.sleep(0.06)
    assert await store.access(SECRET) is None
    assert await store.access(hash_secret("new")) == Access(KEY)


async def test_rotation_affects_one_active_key_only(store: AccountStore) -> None:
    other = replace(KEY, id="k_2", name="ben")
    await store.add_key(other, hash_secret("ben"))
    await store.rotate("anna", hash_secret("new"), 0)
    assert await store.access(hash_secret("ben")) == Access(other)
    await store.revoke("anna")
    assert await store.access(hash_secret("new")) is None
    for name in ("anna", "ben-2"):
        with pytest.raises(InputError, match="No active key"):
            await store.rotate(name, hash_secret("again"), LONG)


def test_labels_are_changed_by_name() -> None:
    labels = change_labels((), ["team=search", "env=ci"])
    assert labels == ("env=ci", "team=search")
    assert change_labels(labels, ["env=", "team=ads", "cost-center=12"]) == (
        "cost-center=12",
        "team=ads",
    )
    for text in ("team", "=x", "a b=c", "a=" + 65 * "x"):
        with pytest.raises(InputError, match="Invalid label"):
            change_labels((), [text])


def test_an_overlap_is_a_duration_or_zero() -> None:
    assert (parse_overlap("24h"), parse_overlap("0")) == (86_400, 0)
    with pytest.raises(InputError, match="Invalid overlap"):
        parse_overlap("soon")
