"""Reservations, leases and settlements, in every store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from brim.errors import InputError
from brim.gateway.accounts.caps import (
    ALL,
    MAX_AMOUNT,
    PERIODS,
    Cap,
    current_periods,
    key_scope,
    project_scope,
    reset_time,
)
from brim.gateway.accounts.keys import ApiKey, hash_secret
from brim.gateway.accounts.reservations import (
    MAX_NAME_LENGTH,
    CapCounter,
    CapReached,
    Charge,
    ReservationInvalid,
)
from brim.gateway.accounts.store import AccountStore
from tests.gateway.accounts.conftest import Replica
from tests.support.accounts.reservations import (
    KEY,
    LONG,
    OVER,
    OWN,
    SECRET,
    TEN,
    make_charge,
    make_reservation,
    make_settlement,
    read_counter,
    read_rows,
)

pytestmark = pytest.mark.anyio


# Reservations


async def test_a_reservation_holds_its_amount_until_it_is_settled(store: AccountStore) -> None:
    assert await store.reserve(make_reservation("r", 6, TEN), LONG) is None
    assert await read_counter(store) == (0, 6)
    assert await store.mark_sent("r", LONG)
    assert await read_counter(store) == (0, 6)
    await store.settle([make_settlement("r", 4)])
    assert await read_counter(store) == (4, 0)


async def test_a_cap_can_be_used_exactly(store: AccountStore) -> None:
    await store.reserve(make_reservation("a", 4, TEN), LONG)
    await store.settle([make_settlement("a", 3)])
    await store.reserve(make_reservation("b", 5, TEN), LONG)
    assert await store.reserve(make_reservation("c", 3, TEN), LONG) == CapReached(
        OWN, Cap(10), 3, 5, None
    )
    assert await store.reserve(make_reservation("d", 2, TEN), LONG) is None
    assert await read_counter(store) == (3, 7)
    assert await store.mark_sent("c", LONG) is False


async def test_a_reservation_larger_than_the_cap_is_rejected(store: AccountStore) -> None:
    assert await store.reserve(make_reservation("r", 11, TEN), LONG) == CapReached(
        OWN, Cap(10), 0, 0, None
    )
    assert await read_counter(store) == (0, 0)
    await store.settle([make_settlement("r", 11)])
    assert await read_rows(store) == {}


async def test_a_cap_of_zero_allows_only_free_requests(store: AccountStore) -> None:
    nothing = (OWN, Cap(0))
    assert await store.reserve(make_reservation("r", 1, nothing), LONG) == CapReached(
        OWN, Cap(0), 0, 0, None
    )
    assert await store.reserve(make_reservation("r", 0, nothing), LONG) is None


@pytest.mark.parametrize("period", ["day", "week", "month"])
async def test_a_reached_cap_has_its_reset_time(store: AccountStore, period: str) -> None:
    cap = Cap.parse(f"5/{period}")
    before = datetime.now(UTC).timestamp()
    full = await store.reserve(make_reservation("r", cap.limit + 1, (OWN, cap)), LONG)
    after = datetime.now(UTC).timestamp()
    assert isinstance(full, CapReached)
    assert full.resets_at in {reset_time(cap.period, before), reset_time(cap.period, after)}


async def test_counters_are_named_by_period(store: AccountStore) -> None:
    before = datetime.now(UTC).timestamp()
    caps = [(OWN, Cap(90, "dollars", period)) for period in PERIODS]
    assert await store.reserve(make_reservation("r", 7, *caps), LONG) is None
    names = list(current_periods(before).values())
    found = await store.counters()
    assert found == [
        CapCounter(OWN, "dollars", name, 0, 7)
        for name in sorted(names, key=lambda name: name + "/")
    ]


async def test_tokens_and_dollars_are_counted_separately(store: AccountStore) -> None:
    caps = (OWN, Cap(100)), (OWN, Cap(1_000, "tokens"))
    await store.reserve(make_reservation("a", 60, *caps, tokens=400), LONG)
    assert (await read_counter(store), await read_counter(store, unit="tokens")) == (
        (0, 60),
        (0, 400),
    )
    await store.settle([make_settlement("a", 50, 300)])
    assert (await read_counter(store), await read_counter(store, unit="tokens")) == (
        (50, 0),
        (300, 0),
    )
    rejected = await store.reserve(make_reservation("b", 1, *caps, tokens=701), LONG)
    assert rejected == CapReached(OWN, Cap(1_000, "tokens"), 300, 0, None)


@pytest.mark.parametrize("turned", [False, True])
async def test_a_reservation_needs_room_in_all_caps(store: AccountStore, turned: bool) -> None:
    caps = [(OWN, Cap(100)), (project_scope("blue"), Cap(5)), (ALL, Cap(100))]
    caps = caps[::-1] if turned else caps
    rejected = await store.reserve(make_reservation("r", 6, *caps), LONG)
    assert rejected == CapReached(project_scope("blue"), Cap(5), 0, 0, None)
    assert [await read_counter(store, scope) for scope, _ in caps] == [(0, 0)] * 3
    assert await store.reserve(make_reservation("r", 5, *caps), LONG) is None
    assert [await read_counter(store, scope) for scope, _ in caps] == [(0, 5)] * 3


async def test_two_caps_of_the_same_period_count_a_request_once(store: AccountStore) -> None:
    caps = (OWN, Cap(100)), (OWN, Cap(8))
    assert await store.reserve(make_reservation("a", 6, *caps), LONG) is None
    assert await read_counter(store) == (0, 6)
    assert await store.reserve(make_reservation("b", 3, *caps), LONG) == CapReached(
        OWN, Cap(8), 0, 6, None
    )
    await store.settle([make_settlement("a", 6)])
    assert await read_counter(store) == (6, 0)


async def test_a_reservation_without_caps_is_recorded(store: AccountStore) -> None:
    assert await store.reserve(make_reservation("r", 6), LONG) is None
    assert await store.mark_sent("r", LONG)
    await store.settle([make_settlement("r", 5)])
    assert (await read_rows(store))["r"].charge == make_charge(5)
    assert await store.counters() == []


async def test_an_unknown_key_cannot_reserve(store: AccountStore) -> None:
    stranger = replace(KEY, id="k_none")
    assert (
        await store.reserve(make_reservation("r", 1, (ALL, Cap(10)), key=stranger), LONG)
        == ReservationInvalid()
    )
    assert await store.counters() == []
    assert await store.mark_sent("r", LONG) is False


@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_reservation_can_be_marked_as_sent_from_the_beginning(
    store: AccountStore, is_sent: bool
) -> None:
    await store.reserve(make_reservation("r", 6, TEN, is_sent=is_sent), OVER)
    await store.sweep()
    assert (await read_rows(store))["r"].state == ("presumed" if is_sent else "refunded")
    assert await read_counter(store) == (6 * is_sent, 0)


@pytest.mark.parametrize("first", [False, True])
async def test_a_replaced_reservation_stays_sent(store: AccountStore, first: bool) -> None:
    for is_sent in (first, not first):
        reservation = make_reservation("r", 6, TEN, is_sent=is_sent)
        assert await store.reserve(reservation, LONG if is_sent is first else OVER) is None
    await store.sweep()
    assert (await read_rows(store))["r"].state == "presumed"


async def test_a_revoked_key_can_still_settle(store: AccountStore) -> None:
    await store.reserve(make_reservation("r", 6, TEN), LONG)
    await store.revoke(KEY.name)
    assert await store.mark_sent("r", LONG)
    await store.settle([make_settlement("r", 2)])
    assert await read_counter(store) == (2, 0)
    assert list(await read_rows(store)) == ["r"]


async def test_the_largest_amounts_are_counted_exactly(store: AccountStore) -> None:
    cap = (OWN, Cap(MAX_AMOUNT)), (OWN, Cap(MAX_AMOUNT, "tokens"))
    assert (
        await store.reserve(
            make_reservation("a", MAX_AMOUNT - 1, *cap, tokens=MAX_AMOUNT - 3), LONG
        )
        is None
    )
    await store.settle([make_settlement("a", MAX_AMOUNT - 2, MAX_AMOUNT - 4)])
    assert await read_counter(store) == (MAX_AMOUNT - 2, 0)
    assert await read_counter(store, unit="tokens") == (MAX_AMOUNT - 4, 0)
    assert (await read_rows(store))["a"].charge == make_charge(MAX_AMOUNT - 2, MAX_AMOUNT - 4)
    assert isinstance(await store.reserve(make_reservation("b", 3, *cap), LONG), CapReached)
    assert await store.reserve(make_reservation("c", 2, *cap), LONG) is None


# A second reservation, for a fallback


@pytest.mark.parametrize("other", [2, 8, 10])
async def test_a_second_reservation_replaces_the_first(store: AccountStore, other: int) -> None:
    await store.reserve(make_reservation("r", 6, TEN, model="a"), LONG)
    await store.mark_sent("r", LONG)
    assert await store.reserve(make_reservation("r", other, TEN, model="b"), LONG) is None
    assert await read_counter(store) == (0, other)
    assert await store.mark_sent("r", LONG)
    await store.settle([make_settlement("r", 1)])
    assert await read_counter(store) == (1, 0)
    assert (await read_rows(store))["r"].model == "b"


async def test_a_rejected_second_reservation_keeps_the_first(store: AccountStore) -> None:
    await store.reserve(make_reservation("other", 3, TEN), LONG)
    await store.reserve(make_reservation("r", 6, TEN, model="a"), LONG)
    await store.mark_sent("r", LONG)
    assert await store.reserve(make_reservation("r", 8, TEN, model="b"), LONG) == CapReached(
        OWN, Cap(10), 0, 3, None
    )
    assert await read_counter(store) == (0, 9)
    await store.settle([make_settlement("r", 5)])
    assert await read_counter(store) == (5, 3)
    assert (await read_rows(store))["r"].model == "a"


async def test_a_second_reservation_may_have_other_caps(store: AccountStore) -> None:
    project = project_scope(KEY.project)
    await store.reserve(make_reservation("r", 6, TEN, (ALL, Cap(50))), LONG)
    assert (
        await store.reserve(make_reservation("r", 7, (ALL, Cap(50)), (project, Cap(50))), LONG)
        is None
    )
    assert [await read_counter(store, scope) for scope in (OWN, ALL, project)] == [(0, 7)] * 3


async def test_a_second_reservation_may_have_another_key(store: AccountStore) -> None:
    other = ApiKey("k_2", "ben", "red")
    await store.add_key(other, hash_secret("other"))
    await store.reserve(make_reservation("r", 6, TEN, (ALL, Cap(50))), LONG)
    second = make_reservation("r", 7, (key_scope(other.id), Cap(7)), (ALL, Cap(7)), key=other)
    assert await store.reserve(second, LONG) is None
    scopes = (OWN, key_scope(other.id), ALL)
    assert [await read_counter(store, scope) for scope in scopes] == [(0, 0), (0, 7), (0, 7)]


async def test_a_second_reservation_of_a_sent_request_is_never_released(
    store: AccountStore,
) -> None:
    await store.reserve(make_reservation("r", 6, TEN), LONG)
    await store.mark_sent("r", LONG)
    await store.reserve(make_reservation("r", 5, TEN, model="b"), LONG)
    await store.reserve(make_reservation("r", 4, TEN, model="c"), OVER)
    await store.sweep()
    row = (await read_rows(store))["r"]
    assert (row.state, row.charge, row.model) == ("presumed", make_charge(4), "c")
    assert await read_counter(store) == (4, 0)
    await store.settle([make_settlement("r", 3)])
    assert await read_counter(store) == (3, 0)


async def test_a_second_reservation_is_released_if_nothing_was_sent(store: AccountStore) -> None:
    await store.reserve(make_reservation("r", 6, TEN), LONG)
    await store.reserve(make_reservation("r", 6, TEN), OVER)
    await store.sweep()
    assert (await read_rows(store))["r"].state == "refunded"


async def test_a_repeated_reservation_counts_once(store: AccountStore) -> None:
    for _ in range(3):
        assert await store.reserve(make_reservation("r", 6, TEN), LONG) is None
    assert await read_counter(store) == (0, 6)


async def test_an_ended_request_cannot_be_reserved_again(store: AccountStore) -> None:
    await store.reserve(make_reservation("settled", 1, TEN), LONG)
    await store.settle([make_settlement("settled", 1)])
    await store.reserve(make_reservation("refunded", 1, TEN), OVER)
    await store.sweep()
    await store.reserve(make_reservation("over", 1, TEN), OVER)
    for id in ("settled", "refunded", "over"):
        assert await store.reserve(make_reservation(id, 1, TEN), LONG) == ReservationInvalid()
    await store.sweep()
    assert await read_counter(store) == (1, 0)
    assert len(await read_rows(store)) == 3


# Leases


async def test_a_request_can_be_marked_as_sent_twice_but_not_after_its_lease(
    store: AccountStore,
) -> None:
    await store.reserve(make_reservation("runs", 1, TEN), LONG)
    assert [await store.mark_sent("runs", LONG) for _ in range(2)] == [True, True]
    await store.reserve(make_reservation("over", 1, TEN), OVER)
    assert await store.mark_sent("over", LONG) is False
    assert await store.mark_sent("never", LONG) is False
    await store.settle([make_settlement("runs", 1)])
    assert await store.mark_sent("runs", LONG) is False


async def test_an_unsent_reservation_is_released(store: AccountStore) -> None:
    await store.reserve(make_reservation("r", 6, TEN, tokens=40), OVER)
    await store.sweep()
    assert await read_counter(store) == (0, 0)
    row = (await read_rows(store))["r"]
    assert (row.state, row.charge, row.is_estimated) == ("refunded", Charge(), False)


async def test_a_sent_reservation_is_charged_in_full(store: AccountStore) -> None:
    tokens = (OWN, Cap(1_000, "tokens"))
    await store.reserve(make_reservation("r", 6, TEN, tokens, tokens=400), LONG)
    await store.mark_sent("r", OVER)
    await store.sweep()
    assert (await read_counter(store), await read_counter(store, unit="tokens")) == (
        (6, 0),
        (400, 0),
    )
    row = (await read_rows(store))["r"]
    assert (row.state, row.charge, row.is_estimated) == ("presumed", make_charge(6, 400), False)


async def test_a_sweep_does_not_affect_running_requests(store: AccountStore) -> None:
    for number in range(6):
        lease = OVER if number % 2 else LONG
        await store.reserve(make_reservation(f"r{number}", 1, TEN), LONG)
        await store.mark_sent(f"r{number}", lease)
    # Other operations may have ended some of them already.
    assert 1 <= await store.sweep() <= 3
    assert await store.sweep() == 0
    assert await read_counter(store) == (3, 3)


async def test_a_sweep_ends_many_leases(store: AccountStore) -> None:
    cap = (OWN, Cap(10_000))
    claims = [make_reservation(f"r{number}", 2, cap) for number in range(700)]
    for part in range(0, 700, 100):
        await asyncio.gather(*(store.reserve(one, OVER) for one in claims[part : part + 100]))
    while await store.sweep():
        pass
    assert await read_counter(store) == (0, 0)
    assert len(await read_rows(store)) == 700


async def test_expired_leases_are_ended_before_a_reservation_is_rejected(
    store: AccountStore,
) -> None:
    await store.reserve(make_reservation("gone", 6, TEN), OVER)
    await store.reserve(make_reservation("sent", 3, TEN), LONG)
    await store.mark_sent("sent", OVER)
    assert await store.reserve(make_reservation("r", 8, TEN), LONG) == CapReached(
        OWN, Cap(10), 3, 0, None
    )
    assert await store.reserve(make_reservation("r", 7, TEN), LONG) is None
    assert await read_counter(store) == (3, 7)


async def test_only_running_leases_are_renewed(
    store: AccountStore,
) -> None:
    await store.reserve(make_reservation("runs", 1, TEN), LONG)
    await store.reserve(make_reservation("over", 1, TEN), OVER)
    await store.mark_sent("runs", 2.0)
    await store.renew(["runs", "over", "never"], LONG)
    await store.renew([], LONG)
    await asyncio.sleep(2.1)  # the first lease of "runs" expires
    await store.sweep()
    assert {id: row.state for id, row in (await read_rows(store)).items()} == {"over": "refunded"}
    assert await read_counter(store) == (0, 1)


# Settlements


async def test_a_repeated_settlement_counts_once(store: AccountStore) -> None:
    await store.reserve(make_reservation("r", 6, TEN), LONG)
    await store.mark_sent("r", LONG)
    await store.settle([make_settlement("r", 4), make_settlement("r", 5)])
    await store.settle([make_settlement("r", 6)])
    assert await read_counter(store) == (4, 0)
    assert (await read_rows(store))["r"].charge == make_charge(4)


async def test_settlements_can_be_batched_in_any_order(store: AccountStore) -> None:
    cap = (OWN, Cap(1_000))
    names = [f"r{number}" for number in range(20)]
    for name in names:
        await store.reserve(make_reservation(name, 10, cap), LONG)
        await store.mark_sent(name, LONG)
    mixed = [*names[::-1], "never", *names[::3]]
    await store.settle(
        [make_settlement(name, int(name[1:] or 0) if name != "never" else 9) for name in mixed]
    )
    assert await read_counter(store) == (sum(range(20)), 0)
    assert sorted(await read_rows(store)) == sorted(names)


async def test_a_settlement_without_a_reservation_is_ignored(store: AccountStore) -> None:
    await store.settle([make_settlement("never", 4)])
    await store.settle([])
    assert await read_rows(store) == {}
    assert await store.reserve(make_reservation("never", 1, TEN), LONG) is None


async def test_a_late_settlement_corrects_a_presumed_row_once(store: AccountStore) -> None:
    tokens = (OWN, Cap(1_000, "tokens"))
    await store.reserve(make_reservation("r", 6, TEN, tokens, tokens=400), LONG)
    await store.mark_sent("r", OVER)
    await store.sweep()
    await store.settle([make_settlement("r", 2, 300)])
    await store.settle([make_settlement("r", 3, 100)])
    assert (await read_counter(store), await read_counter(store, unit="tokens")) == (
        (2, 0),
        (300, 0),
    )
    row = (await read_rows(store))["r"]
    assert (row.state, row.charge) == ("settled", make_charge(2, 300))


async def test_a_late_settlement_before_the_sweep_counts(
    store: AccountStore,
) -> None:
    await store.reserve(make_reservation("r", 6, TEN), LONG)
    await store.mark_sent("r", OVER)
    await store.settle([make_settlement("r", 2)])
    assert await store.sweep() == 0
    assert await read_counter(store) == (2, 0)
    assert (await read_rows(store))["r"].state == "settled"


async def test_a_released_reservation_stays_released(store: AccountStore) -> None:
    await store.reserve(make_reservation("r", 6, TEN), OVER)
    await store.sweep()
    await store.settle([make_settlement("r", 2)])
    assert await read_counter(store) == (0, 0)
    assert (await read_rows(store))["r"].state == "refunded"


async def test_an_actual_cost_above_the_maximum_is_recorded(
    store: AccountStore,
) -> None:
    await store.reserve(make_reservation("r", 6, TEN), LONG)
    await store.settle([make_settlement("r", 14)])
    assert await read_counter(store) == (14, 0)
    assert await store.reserve(make_reservation("s", 0, TEN), LONG) == CapReached(
        OWN, Cap(10), 14, 0, None
    )


# Names and replicas


@pytest.mark.parametrize(
    "name", ["Zoë-東京-🦊", "a b/c:d{e}", "x" * MAX_NAME_LENGTH, "o'hara; --", '"\\\n\t'], ids=ascii
)
async def test_names_are_stored_unchanged(blank: AccountStore, name: str) -> None:
    key = ApiKey(f"k_{name}", name, name, created=KEY.created)
    caps = [Cap(50)]
    await blank.add_key(key, SECRET, caps)
    await blank.set_caps(project_scope(name), caps)
    access = await blank.access(SECRET)
    assert access is not None
    assert access.key == key
    assert access.caps == ((f"key:k_{name}", Cap(50)), (project_scope(name), Cap(50)))
    reservation = make_reservation(f"r {name}", 6, *access.caps, key=key, model=name, upstream=name)
    assert await blank.reserve(reservation, LONG) is None
    assert {one.scope for one in await blank.counters()} == {scope for scope, _ in access.caps}
    assert await blank.mark_sent(reservation.id, OVER)
    await blank.sweep()
    await blank.settle([make_settlement(reservation.id, 5)])
    assert await read_counter(blank, project_scope(name)) == (5, 0)
    row = (await read_rows(blank))[reservation.id]
    assert {row.key_name, row.project, row.model, row.upstream} == {name}
    assert [row.keys for row in await blank.totals(["model", "project"])] == [(name, name)]
    assert (await blank.revoke(name)).id == key.id


async def test_replicas_share_all_data(replica: Replica) -> None:
    here, there = replica(), replica()
    await asyncio.gather(here.open(), there.open())
    await here.add_key(KEY, SECRET, [Cap(10)])
    access = await there.access(SECRET)
    assert access is not None
    assert await here.reserve(make_reservation("r", 6, *access.caps), LONG) is None
    assert await there.reserve(make_reservation("s", 6, *access.caps), LONG) == CapReached(
        OWN, Cap(10), 0, 6, None
    )
    assert await there.mark_sent("r", LONG)
    await there.settle([make_settlement("r", 2)])
    assert await here.reserve(make_reservation("s", 8, *access.caps), LONG) is None
    await here.revoke(KEY.name)
    assert await there.access(SECRET) is None


async def test_a_store_opens_itself_and_can_be_reopened(replica: Replica) -> None:
    store = replica()
    await store.add_key(KEY, SECRET)
    await store.close()
    await store.close()
    assert await store.keys() == [KEY]
    await store.open()
    await store.open()
    assert await store.keys() == [KEY]


async def test_concurrent_reservations_never_exceed_a_cap(
    replica: Replica,
) -> None:
    both = [replica(), replica()]
    await both[0].add_key(KEY, SECRET)
    claims = [make_reservation(f"r{number}", 3, TEN) for number in range(40)]
    found = await asyncio.gather(
        *(both[number % 2].reserve(one, LONG) for number, one in enumerate(claims))
    )
    assert sum(one is None for one in found) == 3
    assert all(one == CapReached(OWN, Cap(10), 0, 9, None) for one in found if one is not None)


async def test_an_invalid_operation_does_not_affect_others(store: AccountStore) -> None:
    reservations = [
        store.reserve(make_reservation("a", 1, TEN), LONG),
        store.add_key(replace(KEY, id="k_2"), hash_secret("other")),
        store.revoke("unknown"),
        store.reserve(make_reservation("b", 1, TEN), LONG),
    ]
    found = await asyncio.gather(*reservations, return_exceptions=True)
    assert [type(one) for one in found] == [type(None), InputError, InputError, type(None)]
    assert await read_counter(store) == (0, 2)
