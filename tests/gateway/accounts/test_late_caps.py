"""A cap counts everything spent in its period, whenever it was set, in every store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from brim.errors import InputError
from brim.gateway.accounts.caps import (
    ALL,
    MAX_AMOUNT,
    PERIODS,
    Cap,
    Period,
    key_scope,
    project_scope,
)
from brim.gateway.accounts.keys import ApiKey, hash_secret
from brim.gateway.accounts.reservations import (
    MAX_NAME_LENGTH,
    OVER_ANY_CAP,
    CapReached,
    Charge,
    Settlement,
)
from brim.gateway.accounts.sqlite.store import SqliteAccountStore
from brim.gateway.accounts.store import AccountStore
from brim.models.pricing import Usage
from tests.gateway.accounts.conftest import Replica
from tests.support.accounts.reservations import (
    KEY,
    LONG,
    OVER,
    OWN,
    SECRET,
    TEN,
    check_counters,
    make_reservation,
    make_settlement,
    read_counter,
    read_rows,
)

pytestmark = pytest.mark.anyio

BLUE: Final = project_scope(KEY.project)
DAY: Final = 86_400
OTHER: Final = ApiKey("k_2", "ben", "red")


async def spend(
    store: AccountStore, id: str, cost: int, tokens: int = 0, key: ApiKey = KEY
) -> None:
    """Record a request without caps."""
    assert await store.reserve(make_reservation(id, cost + 1, tokens=tokens, key=key), LONG) is None
    assert await store.mark_sent(id, LONG)
    await store.settle([make_settlement(id, cost, tokens)])


# Earlier spending


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize(("scope", "spent"), [(OWN, 4), (BLUE, 7), (ALL, 12)])
async def test_a_new_cap_counts_earlier_spending(
    store: AccountStore, scope: str, spent: int, period: Period
) -> None:
    mate = replace(KEY, id="k_3", name="carl")
    for key in (mate, OTHER):
        await store.add_key(key, hash_secret(key.id))
    for key, cost in ((KEY, 4), (mate, 3), (OTHER, 5)):
        await spend(store, key.id, cost, key=key)
    cap = Cap(20, "dollars", period)
    full = await store.reserve(make_reservation("r", 21 - spent, (scope, cap)), LONG)
    assert isinstance(full, CapReached)
    assert (full.scope, full.spent, full.reserved) == (scope, spent, 0)
    assert await store.reserve(make_reservation("r", 20 - spent, (scope, cap)), LONG) is None
    assert await read_counter(store, scope) == (spent, 20 - spent)


async def test_a_new_token_cap_counts_earlier_tokens(store: AccountStore) -> None:
    await spend(store, "before", 4, 30)
    cap = (OWN, Cap(100, "tokens"))
    assert await store.reserve(make_reservation("r", 0, cap, tokens=71), LONG) == CapReached(
        *cap, 30, 0, None
    )
    assert await store.reserve(make_reservation("r", 0, cap, tokens=70), LONG) is None
    assert await read_counter(store, unit="tokens") == (30, 70)


async def test_a_key_with_the_same_prefix_is_counted_separately(store: AccountStore) -> None:
    longer = ApiKey(f"{KEY.id}0", "longer", f"{KEY.project}s")
    await store.add_key(longer, hash_secret(longer.id))
    await spend(store, "before", 4, key=longer)
    assert await store.reserve(make_reservation("r", 1, TEN, (BLUE, Cap(10))), LONG) is None
    assert [await read_counter(store, scope) for scope in (OWN, BLUE)] == [(0, 1), (0, 1)]


async def test_a_new_cap_counts_running_requests(
    store: AccountStore,
) -> None:
    await store.reserve(make_reservation("runs", 6), LONG)
    await store.mark_sent("runs", LONG)
    await store.reserve(make_reservation("waits", 1), LONG)
    assert await store.reserve(make_reservation("r", 4, TEN), LONG) == CapReached(
        OWN, Cap(10), 0, 7, None
    )
    assert await store.reserve(make_reservation("r", 3, TEN), LONG) is None
    await store.settle([make_settlement("runs", 2), make_settlement("waits", 1)])
    assert await read_counter(store) == (3, 3)


async def test_running_requests_can_settle_after_a_cap_is_set(store: AccountStore) -> None:
    for id in ("sent", "unsent"):
        await store.reserve(make_reservation(id, 3), LONG)
    await store.reserve(make_reservation("r", 1, TEN), LONG)
    assert await read_counter(store) == (0, 7)
    await store.mark_sent("sent", OVER)
    await store.reserve(make_reservation("unsent", 3), OVER)
    await store.sweep()
    assert await read_counter(store) == (3, 1)


async def test_a_presumed_row_is_corrected_after_a_cap_is_set(store: AccountStore) -> None:
    await store.reserve(make_reservation("late", 9), LONG)
    await store.mark_sent("late", OVER)
    await store.sweep()
    assert await store.reserve(make_reservation("r", 2, TEN), LONG) == CapReached(
        OWN, Cap(10), 9, 0, None
    )
    await store.settle([make_settlement("late", 3)])
    assert await store.reserve(make_reservation("r", 7, TEN), LONG) is None
    assert await read_counter(store) == (3, 7)


async def test_expired_leases_end_before_a_new_cap_rejects(
    store: AccountStore,
) -> None:
    await store.reserve(make_reservation("gone", 9), OVER)
    assert await store.reserve(make_reservation("r", 10, TEN), LONG) is None
    assert await read_counter(store) == (0, 10)


async def test_a_cap_counts_only_its_period(tmp_path: Path) -> None:
    now = datetime(2026, 11, 30, 23, 59, tzinfo=UTC).timestamp()
    store = SqliteAccountStore(tmp_path / "accounts.sqlite3", lambda: now)
    await store.add_key(KEY, SECRET)
    await store.reserve(make_reservation("over midnight", 100), 9 * DAY)
    for day in range(3):  # the last day of a month, and the first two of the next
        await spend(store, f"before {day}", 10**day)
        now += DAY
    now -= DAY
    await store.settle([make_settlement("over midnight", 50)])
    caps = [(OWN, Cap(1_000, "dollars", period)) for period in PERIODS]
    assert await store.reserve(make_reservation("r", 1, *caps), LONG) is None
    found = [(one.period, one.spent) for one in await store.counters()]
    assert found == [
        ("2026-12-02", 100),
        ("2026-12", 110),
        ("W2026-11-30", 161),  # a Monday
        ("total", 161),
    ]
    await check_counters(store)
    await store.close()


# Changing caps


async def test_spending_without_a_cap_counts_when_the_cap_is_set_again(
    store: AccountStore,
) -> None:
    await store.reserve(make_reservation("under it", 4, TEN), LONG)
    await store.settle([make_settlement("under it", 4)])
    await spend(store, "without", 5)
    assert await store.reserve(make_reservation("r", 2, TEN), LONG) == CapReached(
        OWN, Cap(10), 9, 0, None
    )
    assert await read_counter(store) == (9, 0)


async def test_caps_of_the_same_period_share_a_counter(store: AccountStore) -> None:
    await store.reserve(make_reservation("r", 4, TEN), LONG)
    await store.settle([make_settlement("r", 4)])
    both = (TEN, (OWN, Cap(5)))
    assert await store.reserve(make_reservation("s", 2, *both), LONG) == CapReached(
        OWN, Cap(5), 4, 0, None
    )
    assert await store.reserve(make_reservation("s", 1, *both), LONG) is None
    assert await read_counter(store) == (4, 1)


async def test_a_second_period_of_a_scope_gets_its_own_counter(
    store: AccountStore,
) -> None:
    await store.reserve(make_reservation("before", 4, TEN), LONG)
    await store.settle([make_settlement("before", 4)])
    await store.reserve(make_reservation("runs", 2, TEN), LONG)
    daily, monthly = ((OWN, Cap(9, "dollars", period)) for period in ("day", "month"))
    assert await store.reserve(make_reservation("r", 3, TEN, daily, monthly), LONG) is None
    found = {(one.period, one.spent, one.reserved) for one in await store.counters()}
    assert len(found) == 3
    assert {(spent, reserved) for _, spent, reserved in found} == {(4, 5)}


async def test_a_rejected_reservation_creates_correct_counters(store: AccountStore) -> None:
    await spend(store, "before", 4)
    assert await store.reserve(make_reservation("r", 7, TEN, (ALL, Cap(3))), LONG) is not None
    await spend(store, "after", 2)
    await check_counters(store)
    assert await store.reserve(make_reservation("r", 5, TEN), LONG) == CapReached(
        OWN, Cap(10), 6, 0, None
    )


async def test_a_reservation_with_a_cap_of_another_key_is_rejected(store: AccountStore) -> None:
    for scope in (key_scope(OTHER.id), project_scope(OTHER.project), "model:gpt"):
        with pytest.raises(InputError, match=f"cannot count against {scope}"):
            await store.reserve(make_reservation("r", 1, (scope, Cap(10))), LONG)


async def test_a_cap_set_during_concurrent_spending_counts_everything(replica: Replica) -> None:
    both = [replica(), replica()]
    await both[0].add_key(KEY, SECRET)
    many = Cap(10**9)
    caps = [(OWN, many), (BLUE, many), (ALL, many), (OWN, Cap(10**9, "tokens", "day"))]

    async def one_after_the_other(number: int) -> None:
        store = both[number % 2]
        for turn in range(12):
            id = f"{number}-{turn}"
            # Each process reads the caps at its own time.
            known = caps[: max(0, turn - number)]
            assert await store.reserve(make_reservation(id, 10, *known, tokens=40), LONG) is None
            assert await store.mark_sent(id, OVER if turn % 3 == 0 else LONG)
            await asyncio.gather(store.settle([make_settlement(id, turn, 20)]), store.sweep())

    await asyncio.gather(*(one_after_the_other(number) for number in range(8)))
    for store in both:
        await check_counters(store)
        assert [await read_counter(store, scope) for scope, _ in caps[:3]] == [(8 * 66, 0)] * 3
        assert await read_counter(store, unit="tokens") == (8 * 12 * 20, 0)


# Unstorable text and implausible numbers


@pytest.mark.parametrize(
    ("odd", "kept"),
    [
        ("gpt\0-5", "gpt\ufffd-5"),
        ("\ud83d", "\ufffd"),
        ("a\udfffb\ud800", "a\ufffdb\ufffd"),
        ("x" * 10_000, "x" * MAX_NAME_LENGTH),
        ("é" * 10_000, "é" * MAX_NAME_LENGTH),
    ],
    ids=["zero byte", "half a pair", "halves", "long", "long and wide"],
)
async def test_unstorable_text_is_replaced(store: AccountStore, odd: str, kept: str) -> None:
    reservation = make_reservation("r", 6, TEN, model=odd, upstream=odd)._replace(key_name=odd)
    assert await store.reserve(reservation, LONG) is None
    assert await store.mark_sent("r", LONG)
    await store.settle([make_settlement("r", 5)])
    row = (await read_rows(store))["r"]
    assert {row.model, row.upstream, row.key_name} == {kept}
    assert [row.keys for row in await store.totals(["model", "upstream"])] == [(kept, kept)]


@pytest.mark.parametrize("odd", ["\0", "r\ud800"])
async def test_unstorable_text_is_accepted_in_every_field(store: AccountStore, odd: str) -> None:
    stranger = replace(KEY, project=odd)
    cap = (project_scope(odd), Cap(10))
    assert await store.reserve(make_reservation(odd, 6, cap, key=stranger), LONG) is None
    assert await store.mark_sent(odd, LONG)
    await store.renew([odd], LONG)
    await store.settle([make_settlement(odd, 5)])
    [row] = (await read_rows(store)).values()
    assert row.id == row.project == odd[:-1] + "\ufffd"
    assert await read_counter(store, project_scope(row.project)) == (5, 0)


async def test_a_reservation_over_any_cap_is_rejected(store: AccountStore) -> None:
    for unit in ("dollars", "tokens"):
        cap = (OWN, Cap(MAX_AMOUNT, unit))
        for number in (MAX_AMOUNT + 1, 2**53 + 1, 2**63, 10**40):
            worst = Charge(Usage(output=number), number)
            reservation = make_reservation("r", 0, cap)._replace(max_charge=worst)
            assert await store.reserve(reservation, LONG) == CapReached(*cap, 0, 0, None)


async def test_implausible_numbers_are_clamped(store: AccountStore) -> None:
    for id, number in (("negative", -5), ("large", 10**40)):
        await store.reserve(make_reservation(id, 6, TEN), LONG)
        settlement = Settlement(id, Charge(Usage(number, number, number, number), number))
        await store.settle([settlement])
    rows = await read_rows(store)
    assert rows["large"].charge == Charge(
        Usage(OVER_ANY_CAP, OVER_ANY_CAP, OVER_ANY_CAP, OVER_ANY_CAP), OVER_ANY_CAP
    )
    assert rows["negative"].charge == Charge()
    assert await read_counter(store) == (OVER_ANY_CAP, 0)
