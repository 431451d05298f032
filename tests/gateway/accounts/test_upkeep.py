"""Pruning, copying and the outbox of alerts, in every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from brim.errors import InputError
from brim.gateway.accounts import create_store
from brim.gateway.accounts.alerts import Alert
from brim.gateway.accounts.audit import AuditEntry
from brim.gateway.accounts.caps import (
    ALL,
    PERIODS,
    Cap,
    each_user_scope,
    key_scope,
    project_scope,
    user_scope,
)
from brim.gateway.accounts.keys import Access, KeyRules, hash_secret
from brim.gateway.accounts.migration import copy_store
from brim.gateway.accounts.reservations import CapReached, LedgerRow, PrunedSum
from brim.gateway.accounts.store import AccountStore
from tests.gateway.accounts.conftest import Replica
from tests.support.accounts.reservations import (
    KEY,
    LONG,
    OVER,
    OWN,
    SECRET,
    make_charge,
    make_reservation,
    make_settlement,
    read_rows,
)
from tests.support.fixtures import EmptyStore

pytestmark = pytest.mark.anyio

TODAY = datetime.now(UTC).date()


def make_row(id: str, day: date, cost: int, user: str = "", **changes: object) -> LedgerRow:
    at = datetime(day.year, day.month, day.day, 12, 30, 0, 250_000, UTC).timestamp()
    names = (KEY.id, KEY.name, KEY.project, "gpt", "main", user)
    row = LedgerRow(id, at, str(day), *names, make_charge(cost, 8 * cost), "settled", False)
    return replace(row, **changes)  # type: ignore[arg-type]


async def read_spent(store: AccountStore, scope: str, cap: Cap, user: str = "") -> int:
    """Return what a new cap counts, by a request that it rejects."""
    request = make_reservation("x", cap.limit + 1, (scope, cap), tokens=cap.limit + 1, user=user)
    rejected = await store.reserve(request, LONG)
    assert isinstance(rejected, CapReached)
    return rejected.spent


async def rounded_rows(store: AccountStore) -> list[LedgerRow]:
    """Return the ledger; stores keep times with different precision."""
    return [replace(row, time=round(row.time, 3)) for row in (await read_rows(store)).values()]


# Pruning


async def test_pruned_rows_still_count_in_total_caps(store: AccountStore) -> None:
    old, new = TODAY - timedelta(days=100), TODAY
    rows = [make_row("a", old, 3, "max"), make_row("b", old, 4), make_row("c", new, 5, "max")]
    await store.load_rows(rows)
    assert await store.prune(TODAY - timedelta(days=90)) == 2
    assert await store.prune(TODAY - timedelta(days=90)) == 0
    assert set(await read_rows(store)) == {"c"}
    for scope, dollars in ((OWN, 12), (project_scope("blue"), 12), (ALL, 12)):
        assert await read_spent(store, scope, Cap(1)) == dollars
        assert await read_spent(store, scope, Cap(1, "tokens")) == 8 * dollars
        assert await read_spent(store, scope, Cap(1, "dollars", "month")) == 5
    assert await read_spent(store, user_scope(KEY.id, "max"), Cap(1), "max") == 8
    assert await read_spent(store, user_scope(KEY.id, ""), Cap(1)) == 4
    assert await store.dump_pruned() == [
        PrunedSum(KEY.id, "blue", "", 4, 32),
        PrunedSum(KEY.id, "blue", "max", 3, 24),
    ]


async def test_pruning_does_not_change_counters(store: AccountStore) -> None:
    await store.load_rows([make_row("a", TODAY - timedelta(days=99), 3)])
    cap = (OWN, Cap(10))
    await store.reserve(make_reservation("r", 4, cap), LONG)
    await store.settle([make_settlement("r", 4)])
    before = await store.counters()
    await store.prune(TODAY - timedelta(days=50))
    await store.load_rows([make_row("b", TODAY - timedelta(days=98), 1)])
    await store.prune(TODAY - timedelta(days=50))
    assert [(one.spent, one.reserved) for one in before] == [(7, 0)]
    assert await read_spent(store, OWN, Cap(1)) == 8


async def test_many_rows_are_pruned(store: AccountStore) -> None:
    day = TODAY - timedelta(days=60)
    await store.load_rows([make_row(f"r{number}", day, 1) for number in range(1_200)])
    assert await store.prune(TODAY) == 1_200
    assert await store.dump_pruned() == [PrunedSum(KEY.id, "blue", "", 1_200, 9_600)]


# Copying


@pytest.fixture
async def target(empty_store: EmptyStore, tmp_path: Path) -> AsyncIterator[AccountStore]:
    """A store in PostgreSQL."""
    store = create_store(empty_store("postgres"), tmp_path)
    await store.open()
    yield store
    await store.close()


async def fill(store: AccountStore) -> None:
    """Add one of everything that a store keeps."""
    rules = KeyRules(models=("gpt-4o*",), labels=("team=a",))
    await store.add_key(replace(KEY, rules=rules), SECRET, [Cap(100, "dollars", "day")])
    await store.rotate("anna", hash_secret("new"), LONG)
    await store.add_key(replace(KEY, id="k_0", name="old"), hash_secret("old"))
    await store.revoke("old")
    await store.set_caps(each_user_scope(KEY.id), [Cap(5)])
    await store.add_audit_entry(AuditEntry.create("cli:x", "key.add", KEY.id, {"name": "anna"}))
    await store.load_rows([make_row("ancient", TODAY - timedelta(days=99), 2, "max")])
    await store.prune(TODAY - timedelta(days=50))
    for number, user in enumerate(("max", "größer", "")):
        await store.reserve(make_reservation(f"r{number}", 9, user=user, tokens=70), LONG)
        await store.settle([make_settlement(f"r{number}", number + 1, 60)])
    await store.reserve(make_reservation("lost", 7), LONG)
    await store.mark_sent("lost", OVER)
    await store.sweep()


async def test_a_copied_store_has_the_same_keys_caps_and_ledger(
    blank: AccountStore, target: AccountStore
) -> None:
    await fill(blank)
    for _ in range(2):  # an interrupted copy is started again
        report = await copy_store(blank, target)
    assert (report.keys, report.scopes, report.rows) == (2, 2, 4)
    assert (report.micro_dollars, report.tokens) == (1 + 2 + 3 + 7, 180)
    assert await rounded_rows(target) == await rounded_rows(blank)
    assert await target.access(SECRET) == await blank.access(SECRET)
    assert await target.access(hash_secret("new")) == await blank.access(hash_secret("new"))
    assert await target.access(hash_secret("old")) is None
    assert [entry.id for entry in await target.audit_entries(9)] == [
        entry.id for entry in await blank.audit_entries(9)
    ]
    assert await read_spent(target, OWN, Cap(1)) == 15
    await target.settle([make_settlement("lost", 1)])
    assert (await read_rows(target))["lost"].charge.micro_dollars == 1


async def test_a_store_can_be_copied_to_every_store(blank: AccountStore, tmp_path: Path) -> None:
    source = create_store(str(tmp_path / "source.sqlite3"), tmp_path)
    await fill(source)
    await copy_store(source, blank)
    assert await rounded_rows(blank) == await rounded_rows(source)
    assert [key.rules for key in await blank.keys()] == [key.rules for key in await source.keys()]
    await blank.settle([make_settlement("lost", 1)])
    assert (await read_rows(blank))["lost"].state == "settled"
    await source.close()


async def test_a_copy_needs_a_store_at_rest_and_an_empty_target(
    store: AccountStore, target: AccountStore
) -> None:
    await store.reserve(make_reservation("r", 1), LONG)
    with pytest.raises(InputError, match="1 requests in flight"):
        await copy_store(store, target)
    await store.settle([make_settlement("r", 1)])
    await target.add_key(replace(KEY, id="k_9"), hash_secret("other"))
    with pytest.raises(InputError, match="keys that the source does not have: anna"):
        await copy_store(store, target)
    assert await read_rows(target) == {}


async def test_loaded_rows_are_counted_by_caps_in_use(store: AccountStore) -> None:
    caps = [(OWN, Cap(100, "dollars", period)) for period in PERIODS]
    await store.reserve(make_reservation("r", 4, *caps), LONG)
    await store.load_rows([make_row("a", TODAY, 3), make_row("a", TODAY, 3)])
    await store.reserve(make_reservation("s", 4, *caps), LONG)
    assert {(one.spent, one.reserved) for one in await store.counters()} == {(3, 8)}


async def test_a_key_with_a_name_in_use_is_not_loaded(store: AccountStore) -> None:
    with pytest.raises(InputError, match="anna"):
        await store.load_keys([replace(KEY, id="k_7")], [])
    assert await store.access(SECRET) == Access(KEY)
    assert key_scope("k_7") not in await store.caps()


# The outbox


async def test_an_alert_is_claimed_once_and_again_until_it_is_finished(
    store: AccountStore, replica: Replica
) -> None:
    other = replica()
    alerts = [Alert("a", '{"a": 1}'), Alert("b", '{"b": 2}', expires=4e9)]
    await asyncio.gather(store.add_alerts(alerts), other.add_alerts(alerts))
    claimed = [*await store.claim_alerts(1), *await other.claim_alerts(5)]
    assert sorted(claimed) == [("a", '{"a": 1}', 1), ("b", '{"b": 2}', 1)]
    assert await store.claim_alerts(5) == []
    await store.finish_alert("a")
    await store.add_alerts(alerts)
    assert await other.claim_alerts(5) == []


async def test_an_expired_alert_that_was_delivered_is_forgotten(store: AccountStore) -> None:
    alert = Alert("a", "{}", expires=1.0)
    await store.add_alerts([alert])
    assert len(await store.claim_alerts(1)) == 1
    await store.add_alerts([alert])
    assert await store.claim_alerts(1) == [], "not delivered, so it is remembered"
    await store.finish_alert("a")
    await store.add_alerts([])
    await store.add_alerts([alert])
    await store.add_alerts([alert])
    assert await store.claim_alerts(1) == [("a", "{}", 1)]
