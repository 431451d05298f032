"""Queries, in every store."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta

import pytest

from brim.gateway.accounts.caps import period_name
from brim.gateway.accounts.keys import ApiKey, hash_secret
from brim.gateway.accounts.reservations import Charge, Settlement
from brim.gateway.accounts.store import AccountStore
from brim.models.pricing import Usage
from tests.support.accounts.reservations import (
    KEY,
    LONG,
    OVER,
    TEN,
    make_charge,
    make_reservation,
    make_settlement,
    read_rows,
)

pytestmark = pytest.mark.anyio


async def test_a_ledger_row_has_key_model_and_charge(store: AccountStore) -> None:
    before = datetime.now(UTC)
    await store.reserve(
        make_reservation("r", 9, TEN, model="gpt", upstream="west", tokens=50), LONG
    )
    after = datetime.now(UTC)
    await store.mark_sent("r", LONG)
    came_to = Charge(Usage(input=40, cached=30, output=5, written=6), 0, is_unpriced=True)
    await store.settle([Settlement("r", came_to, is_estimated=True)])
    row = (await read_rows(store))["r"]
    assert (row.key, row.key_name, row.project) == (KEY.id, "anna", "blue")
    assert (row.model, row.upstream) == ("gpt", "west")
    assert (row.charge, row.state, row.is_estimated) == (came_to, "settled", True)
    # The clocks of two machines may differ a little.
    assert before.timestamp() - 1 <= row.time <= after.timestamp() + 1
    assert row.day == period_name("day", row.time)


async def test_totals_can_be_grouped_by_every_column(store: AccountStore) -> None:
    other = ApiKey("k_2", "ben", "red", created=KEY.created + 1)
    await store.add_key(other, hash_secret("other"))
    asked = [("a", KEY, "gpt", 3), ("b", KEY, "gpt", 4), ("c", KEY, "o1", 5), ("d", other, "o1", 6)]
    for id, whose, model, cost in asked:
        await store.reserve(make_reservation(id, cost, key=whose, model=model), LONG)
        await store.settle([make_settlement(id, cost, 10)])
    by_model = await store.totals(["model"])
    assert [(one.group, one.requests, one.charge) for one in by_model] == [
        (("gpt",), 2, _sum(7, 2)),
        (("o1",), 2, _sum(11, 2)),
    ]
    both = await store.totals(["project", "model"])
    assert [(one.group, one.charge.micro_dollars) for one in both] == [
        *((("blue", "gpt"), 7), (("blue", "o1"), 5), (("red", "o1"), 6)),
    ]
    assert [(one.group, one.requests) for one in await store.totals(["key"])] == [
        *((("k_1",), 3), (("k_2",), 1)),
    ]
    assert [(one.group, one.requests) for one in await store.totals([])] == [((), 4)]
    assert [one.group for one in await store.totals(["upstream", "state"])] == [("main", "settled")]


def _sum(cost: int, requests: int) -> Charge:
    one = make_charge(0, 10).usage
    return Charge(Usage(one.input * requests, 0, one.output * requests), cost)


async def test_totals_mark_unpriced_and_presumed_requests(store: AccountStore) -> None:
    for id in ("priced", "unpriced", "presumed", "refunded"):
        await store.reserve(make_reservation(id, 5), OVER if id == "refunded" else LONG)
        await store.mark_sent(id, OVER if id == "presumed" else LONG)
    await store.settle(
        [make_settlement("priced", 2), Settlement("unpriced", Charge(is_unpriced=True))]
    )
    await store.sweep()
    (total,) = await store.totals(["day"])
    assert (total.requests, total.charge, total.presumed) == (4, Charge(Usage(), 7, True), 1)
    by_state = {one.group[0]: one for one in await store.totals(["state"])}
    assert {state: one.requests for state, one in by_state.items()} == {
        "presumed": 1,
        "refunded": 1,
        "settled": 2,
    }
    assert [by_state[state].charge.is_unpriced for state in ("presumed", "settled")] == [
        False,
        True,
    ]


async def test_an_empty_store_has_no_rows(blank: AccountStore) -> None:
    assert await blank.keys() == []
    assert await blank.caps() == {}
    assert await blank.counters() == []
    assert await blank.totals(["day"]) == await blank.totals([]) == []
    assert await read_rows(blank) == {}
    assert await blank.sweep() == 0


async def test_first_and_last_day_are_included(store: AccountStore) -> None:
    await store.reserve(make_reservation("r", 5), LONG)
    await store.settle([make_settlement("r", 5)])
    (day,) = {date.fromisoformat(row.day) for row in (await read_rows(store)).values()}
    before, after = day - timedelta(days=1), day + timedelta(days=1)
    spans = [(day, day), (before, None), (None, day), (after, None), (None, before), (None, None)]
    seen = [len(await store.totals(["day"], since, until)) for since, until in spans]
    assert seen == [1, 1, 1, 0, 0, 1]
    rows = [len([row async for row in store.rows(since, until)]) for since, until in spans]
    assert rows == seen


async def test_a_long_ledger_is_read_in_pages(store: AccountStore) -> None:
    names = [f"r{number}" for number in range(1_200)]
    for part in range(0, len(names), 200):
        some = names[part : part + 200]
        await asyncio.gather(*(store.reserve(make_reservation(name, 1), LONG) for name in some))
        await store.settle([make_settlement(name, 1) for name in some])
    rows = await read_rows(store)
    assert sorted(rows) == sorted(names)
    assert sum(one.requests for one in await store.totals(["day"])) == 1_200


async def test_results_can_be_serialized_as_json(store: AccountStore) -> None:
    await store.reserve(make_reservation("r", 5, TEN), LONG)
    await store.settle([make_settlement("r", 5)])
    rows = (await read_rows(store)).values()
    read = [*map(asdict, await store.keys()), *map(asdict, await store.counters())]
    read += [*map(asdict, await store.totals(["day"])), *map(asdict, rows)]
    assert json.loads(json.dumps(read))[0]["name"] == "anna"
