"""Spending never exceeds a cap and every request has one row, under any concurrency.

Real stores and real processes; the result is compared with what the processes logged.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as some
from hypothesis.stateful import (
    RuleBasedStateMachine,
    rule,
    run_state_machine_as_test,
)

from brim.errors import AccountStoreUnavailableError
from brim.gateway.accounts import create_store
from brim.gateway.accounts.caps import (
    Cap,
    counter_name,
    current_periods,
    key_scope,
    project_scope,
    reset_time,
)
from brim.gateway.accounts.keys import ApiKey, hash_secret
from brim.gateway.accounts.reservations import CapReached, Reservation, ReservationInvalid
from brim.gateway.accounts.sqlite.store import SqliteAccountStore
from brim.gateway.accounts.store import AccountStore
from tests.gateway.accounts.conftest import Replica, Service
from tests.support.accounts.histories import overlap, record_histories
from tests.support.accounts.linearizability import ObservedOperation, find_order
from tests.support.accounts.load import LoadSettings, LoggedOperation, run_load
from tests.support.accounts.model import Model
from tests.support.accounts.reservations import (
    KEY,
    LONG,
    OVER,
    OWN,
    SECRET,
    make_charge,
    make_reservation,
    make_settlement,
    read_counter,
    read_rows,
)

pytestmark = pytest.mark.anyio

PROCESSES = 16
CAP = 6_000


def total(done: Sequence[LoggedOperation], step: str) -> int:
    return sum(one.amount for one in done if one.step == step)


def names(done: Sequence[LoggedOperation], step: str) -> set[str]:
    return {one.id for one in done if one.step == step}


async def ledger_total(store: AccountStore) -> int:
    return sum(row.charge.micro_dollars for row in (await read_rows(store)).values())


# Many processes


async def test_many_processes_never_exceed_a_cap(
    blank: AccountStore, address: str, tmp_path: Path
) -> None:
    await blank.add_key(KEY, SECRET, [Cap(CAP), Cap(CAP * 2, "dollars", "month")])
    orders = LoadSettings(address, str(tmp_path), PROCESSES, requests=10, at_once=2)
    done = await asyncio.to_thread(run_load, orders)
    rows = await read_rows(blank)
    spent = total(done, "sent")
    assert CAP - 100 < spent <= CAP, "the cap was not used up, or it was passed"
    assert names(done, "full"), "no request was ever rejected"
    assert total(done, "settled") == await ledger_total(blank) == spent
    assert {(one.spent, one.reserved) for one in await blank.counters()} == {(spent, 0)}
    assert set(rows) == names(done, "reserved")
    assert {row.state for row in rows.values()} == {"settled"}


async def test_leases_of_killed_processes_expire(
    blank: AccountStore, address: str, tmp_path: Path
) -> None:
    lease = 1.0
    cap = 10**9  # far more than can be done
    await blank.add_key(KEY, SECRET, [Cap(cap)])
    orders = LoadSettings(
        *(address, str(tmp_path), PROCESSES), requests=9_999, at_once=3, lease=lease, lives=0.8
    )
    done = await asyncio.to_thread(run_load, orders)
    assert names(done, "reserved") - names(done, "settled"), "no request was killed"
    await until_nothing_is_reserved(blank, lease)
    rows = await read_rows(blank)
    assert await read_counter(blank) == (await ledger_total(blank), 0)
    assert names(done, "reserved") <= set(rows)
    states = {id: row.state for id, row in rows.items()}
    assert {states[id] for id in names(done, "settled")} == {"settled"}
    assert {states[id] for id in names(done, "sent")} <= {"settled", "presumed"}
    came_to = {one.id: one.amount for one in done if one.step == "sent"}
    assert all(rows[id].charge.micro_dollars >= amount for id, amount in came_to.items())
    await the_whole_rest_can_be_spent(blank, cap)


async def until_nothing_is_reserved(store: AccountStore, lease: float) -> None:
    async with asyncio.timeout(lease + 10):
        while (await read_counter(store))[1]:
            await asyncio.sleep(0.05)
            await store.sweep()


async def the_whole_rest_can_be_spent(store: AccountStore, cap: int) -> None:
    spent, _ = await read_counter(store)
    assert spent < cap, "there is no rest to look for"
    rest = cap - spent
    assert isinstance(
        await store.reserve(make_reservation("more", rest + 1, (OWN, Cap(cap))), LONG), CapReached
    )
    assert await store.reserve(make_reservation("rest", rest, (OWN, Cap(cap))), LONG) is None


async def test_repeated_and_reordered_settlements_count_once(replica: Replica) -> None:
    both = [replica(), replica()]
    await both[0].add_key(KEY, SECRET)
    chance = random.Random(5)
    ids = [f"r{number}" for number in range(60)]
    for number, id in enumerate(ids):
        assert await both[0].reserve(make_reservation(id, 100, (OWN, Cap(CAP))), LONG) is None
        # A third of the settlements are late: these are already charged in full.
        assert await both[0].mark_sent(id, LONG if number % 3 else OVER)
    await both[1].sweep()
    came_to = {id: chance.randint(1, 100) for id in ids}
    settlements = [make_settlement(id, amount) for id, amount in came_to.items()] * 3
    chance.shuffle(settlements)
    parts = [settlements[begin : begin + 9] for begin in range(0, len(settlements), 9)]
    await asyncio.gather(*(both[index % 2].settle(part) for index, part in enumerate(parts)))
    assert await read_counter(both[0]) == (sum(came_to.values()), 0)
    rows = await read_rows(both[0])
    assert {id: row.charge for id, row in rows.items()} == {
        id: make_charge(amount) for id, amount in came_to.items()
    }


# Outages


async def test_an_outage_of_the_server_loses_nothing(service: Service, tmp_path: Path) -> None:
    store = create_store(service.url, tmp_path)
    cap = 5 * CAP  # so that work remains after each outage
    await store.add_key(KEY, SECRET, [Cap(cap)])
    orders = LoadSettings(service.url, str(tmp_path), 4, requests=180, at_once=2, waits=True)
    hammering = asyncio.create_task(asyncio.to_thread(run_load, orders))
    for _ in range(2):
        await until_more_is_spent(store)
        await asyncio.to_thread(service.stop)
        with pytest.raises(AccountStoreUnavailableError):
            await store.reserve(make_reservation("away", 1, (OWN, Cap(cap))), LONG)
        await asyncio.to_thread(service.start)
    done = await hammering
    spent = total(done, "sent")
    assert cap - 100 < spent <= cap
    assert await read_counter(store) == (spent, 0)
    assert await ledger_total(store) == spent == total(done, "settled")
    assert set(await read_rows(store)) == names(done, "reserved")
    await store.close()


async def until_more_is_spent(store: AccountStore) -> None:
    before = None
    async with asyncio.timeout(20):
        while before is None or await read_counter(store) <= before:
            before = before or await read_counter(store)
            await asyncio.sleep(0.01)


async def test_a_store_is_unavailable_until_its_server_starts(
    service: Service, tmp_path: Path
) -> None:
    await asyncio.to_thread(service.stop)
    store = create_store(service.url, tmp_path)
    for _ in range(2):
        with pytest.raises(AccountStoreUnavailableError):
            await store.open()
        with pytest.raises(AccountStoreUnavailableError):
            await store.reserve(make_reservation("r", 1, (OWN, Cap(CAP))), LONG)
    await asyncio.to_thread(service.start)
    await store.add_key(KEY, SECRET)
    assert await store.reserve(make_reservation("r", 1, (OWN, Cap(CAP))), LONG) is None
    assert await read_counter(store) == (0, 1)
    await store.close()


# Comparison with a reference model


# Shrinking would take minutes on a real store.
STEPS = settings(stateful_step_count=40, phases=[Phase.generate])


class Steps(RuleBasedStateMachine):
    """Random operations on two connections to a store, compared with a reference model.

    A lease never expires or expires immediately, so that the clock does not matter.
    """

    both: tuple[AccountStore, AccountStore]
    runner: asyncio.Runner
    numbers = count()

    ids = some.sampled_from("abcdef")
    views = some.sampled_from([0, 1])
    amounts = some.integers(0, 20)
    rarely = some.sampled_from([False, False, False, True])

    def __init__(self) -> None:
        super().__init__()
        self.number = next(self.numbers)
        self.model = Model()
        self.scopes: set[str] = set()
        self.key = self.new_key()

    def new_key(self) -> ApiKey:
        key = ApiKey(f"k_{next(self.numbers)}", f"name-{self.number}", f"project-{self.number}")
        self.runner.run(self.both[0].add_key(key, hash_secret(key.id)))
        self.model.keys.add(key.id)
        own, shared = key_scope(key.id), project_scope(key.project)
        self.caps = [
            (own, Cap(30)),
            (own, Cap(200, "tokens")),
            (shared, Cap(24)),
            (shared, Cap(22)),
        ]
        self.scopes |= {own, shared}
        return key

    def name(self, id: str) -> str:
        return f"{self.number}-{id}"

    @rule(
        id=ids,
        view=views,
        cost=amounts,
        which=some.sets(some.integers(0, 3)),
        is_over=rarely,
        is_sent=rarely,
    )
    def reserve(
        self, id: str, view: int, cost: int, which: set[int], is_over: bool, is_sent: bool
    ) -> None:
        caps = [self.caps[index] for index in sorted(which)]
        name, tokens = self.name(id), cost * 9
        reservation = make_reservation(
            name, cost, *caps, tokens=tokens, key=self.key, is_sent=is_sent
        )
        found = self.runner.run(self.both[view].reserve(reservation, OVER if is_over else LONG))
        assert found == self.model.reserve(reservation, is_over=is_over)

    @rule(id=ids, view=views, is_over=some.booleans())
    def forward(self, id: str, view: int, is_over: bool) -> None:
        name = self.name(id)
        found = self.runner.run(self.both[view].mark_sent(name, OVER if is_over else LONG))
        assert found == self.model.mark_sent(name, is_over=is_over)

    @rule(ids=some.lists(ids, max_size=3), view=views)
    def renew(self, ids: list[str], view: int) -> None:
        self.runner.run(self.both[view].renew([self.name(id) for id in ids], LONG))

    @rule(came_to=some.lists(some.tuples(ids, amounts), max_size=4), view=views)
    def settle(self, came_to: list[tuple[str, int]], view: int) -> None:
        settlements = [make_settlement(self.name(id), cost, cost * 8) for id, cost in came_to]
        self.runner.run(self.both[view].settle(settlements))
        for settlement in settlements:
            self.model.settle(settlement)

    @rule(id=ids, view=views)
    def renew_the_key(self, id: str, view: int) -> None:
        """The old key can no longer reserve; its running requests continue."""
        store, old = self.both[view], self.key
        self.runner.run(store.revoke(old.name))
        self.model.keys.remove(old.id)
        reservation = make_reservation(self.name(id), key=old)
        assert (
            self.runner.run(store.reserve(reservation, LONG))
            == self.model.reserve(reservation)
            == ReservationInvalid()
        )
        self.key = self.new_key()

    @rule(view=views)
    def look(self, view: int) -> None:
        """Not after every operation: other operations must end expired leases too."""
        self.runner.run(self.compare(self.both[view]))

    def teardown(self) -> None:
        self.runner.run(self.compare(self.both[0]))

    async def compare(self, store: AccountStore) -> None:
        await store.sweep()
        found = [one for one in await store.counters() if one.scope in self.scopes]
        for one in found:
            expected = (
                self.model.spent(one.scope, one.unit),
                self.model.reserved(one.scope, one.unit),
            )
            assert (one.spent, one.reserved) == expected, one
        assert {counter_name(one.scope, one.unit, one.period) for one in found} >= self.model.named
        mine = f"{self.number}-"
        rows = {id: row for id, row in (await read_rows(store)).items() if id.startswith(mine)}
        assert {id: (row.state, row.charge) for id, row in rows.items()} == self.model.ledger


def test_every_sequence_of_operations_matches_the_reference_model(
    address: str, tmp_path: Path
) -> None:
    with asyncio.Runner() as started:

        class OnThisStore(Steps):
            both = create_store(address, tmp_path), create_store(address, tmp_path)
            runner = started

        run_state_machine_as_test(OnThisStore, settings=STEPS)
        for store in OnThisStore.both:
            started.run(store.close())


# Linearizability


async def test_concurrent_operations_are_linearizable(
    store: AccountStore, address: str, tmp_path: Path
) -> None:
    assert await store.keys() == [KEY]
    histories = await asyncio.to_thread(record_histories, address, tmp_path, rounds=25)
    for steps in histories:
        assert find_order(steps, Model({KEY.id})) is not None, "\n".join(map(str, steps))
    assert any(overlap(steps) for steps in histories), "nothing happened at the same time"


def test_a_history_that_is_not_linearizable_is_detected() -> None:
    cap = (OWN, Cap(10))
    first, second = make_reservation("a", 6, cap), make_reservation("b", 6, cap)

    def seen(
        reservation: Reservation, begun: float, ended: float, answer: object
    ) -> ObservedOperation:
        return ObservedOperation(
            reservation.id, begun, ended, answer, lambda model: model.reserve(reservation)
        )

    def possible(*steps: ObservedOperation) -> bool:
        return find_order(steps, Model({KEY.id})) is not None

    rejected = CapReached(*cap, 0, 6, None)
    assert possible(seen(first, 0, 2, rejected), seen(second, 1, 3, None))
    assert possible(seen(first, 0, 1, None), seen(second, 2, 3, rejected))
    assert not possible(seen(first, 0, 1, rejected), seen(second, 2, 3, None))
    assert not possible(seen(first, 0, 2, None), seen(second, 1, 3, None))
    assert not possible(seen(first, 0, 2, ReservationInvalid()))


# The end of a period


NEW_YEAR = 1_798_761_600.0
"""The start of 2027."""


async def test_the_store_clock_decides_the_period(tmp_path: Path) -> None:
    now = NEW_YEAR - 0.5
    store = SqliteAccountStore(tmp_path / "accounts.sqlite3", lambda: now)
    await store.add_key(KEY, SECRET)
    caps = [(OWN, Cap(10, "dollars", period)) for period in ("day", "month")]
    assert await store.reserve(make_reservation("old", 9, *caps), LONG) is None
    rejected = await store.reserve(make_reservation("new", 9, *caps), LONG)
    assert rejected == CapReached(OWN, caps[0][1], 0, 9, NEW_YEAR)
    now = NEW_YEAR
    assert await store.reserve(make_reservation("new", 9, *caps), LONG) is None
    await store.mark_sent("old", LONG)
    await store.settle([make_settlement("old", 8)])
    assert [(one.period, one.spent, one.reserved) for one in await store.counters()] == [
        *(("2027-01-01", 0, 9), ("2027-01", 0, 9)),
    ]
    assert (await read_rows(store))["old"].day == "2026-12-31"
    now = NEW_YEAR - 0.5
    assert {(one.spent, one.reserved) for one in await store.counters()} == {(8, 0)}
    await store.close()


async def test_a_gateway_with_a_wrong_clock_counts_in_the_same_period(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = replica(), replica()
    await right.add_key(KEY, SECRET)
    cap = (OWN, Cap(10, "dollars", "day"))
    began = time.time()
    assert await right.reserve(make_reservation("a", 6, cap), LONG) is None
    with monkeypatch.context() as skewed:
        skewed.setattr(time, "time", lambda: began + 40 * 86_400)
        rejected = await wrong.reserve(make_reservation("b", 6, cap), LONG)
        assert await wrong.reserve(make_reservation("c", 4, cap), LONG) is None
        await wrong.sweep()
    assert isinstance(rejected, CapReached)
    assert rejected.resets_at in {reset_time("day", began), reset_time("day", time.time())}
    (counter,) = await right.counters()
    assert counter.period in {current_periods(at)["day"] for at in (began, time.time())}
    assert (counter.spent, counter.reserved) == (0, 10)
