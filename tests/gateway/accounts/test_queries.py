"""Queries, in every store."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta

import pytest

from brim.gateway.accounts.caps import current_periods, to_dollars, to_micro_dollars
from brim.gateway.accounts.keys import ApiKey, hash_secret
from brim.gateway.accounts.reservations import Charge, Settlement
from brim.gateway.accounts.store import AccountStore
from brim.models.pricing import SpendingRow, SpendingTotal, Usage
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
    assert row.day == current_periods(row.time)["day"]


async def test_totals_can_be_grouped_by_every_column(store: AccountStore) -> None:
    other = ApiKey("k_2", "ben", "red", created=KEY.created + 1)
    await store.add_key(other, hash_secret("other"))
    requests = [
        ("a", KEY, "gpt", 3),
        ("b", KEY, "gpt", 4),
        ("c", KEY, "o1", 5),
        ("d", other, "o1", 6),
    ]
    for id, whose, model, cost in requests:
        await store.reserve(make_reservation(id, cost, key=whose, model=model), LONG)
        await store.settle([make_settlement(id, cost, 10)])
    by_model = await store.totals(["model"])
    assert by_model == [
        SpendingRow(("gpt",), _sum(7, 2)),
        SpendingRow(("o1",), _sum(11, 2)),
    ]
    both = await store.totals(["project", "model"])
    assert [(row.keys, to_micro_dollars(row.total.cost)) for row in both] == [
        *((("blue", "gpt"), 7), (("blue", "o1"), 5), (("red", "o1"), 6)),
    ]
    assert [(row.keys, row.total.calls) for row in await store.totals(["key"])] == [
        *((("k_1",), 3), (("k_2",), 1)),
    ]
    assert [(row.keys, row.total.calls) for row in await store.totals([])] == [((), 4)]
    assert [row.keys for row in await store.totals(["upstream", "state"])] == [("main", "settled")]


def _sum(micro_dollars: int, requests: int) -> SpendingTotal:
    one = make_charge(0, 10).usage
    usage = Usage(one.input * requests, 0, one.output * requests)
    return SpendingTotal(requests, usage, to_dollars(micro_dollars))


async def test_totals_mark_unpriced_and_presumed_requests(store: AccountStore) -> None:
    for id in ("priced", "unpriced", "presumed", "refunded"):
        await store.reserve(make_reservation(id, 5), OVER if id == "refunded" else LONG)
        await store.mark_sent(id, OVER if id == "presumed" else LONG)
    await store.settle(
        [make_settlement("priced", 2), Settlement("unpriced", Charge(is_unpriced=True))]
    )
    await store.sweep()
    (day,) = await store.totals(["day"])
    assert day.total == SpendingTotal(4, Usage(), to_dollars(7), unknown=True)
    assert day.presumed == 1
    by_state = {row.keys[0]: row.total for row in await store.totals(["state"])}
    assert {state: total.calls for state, total in by_state.items()} == {
        "presumed": 1,
        "refunded": 1,
        "settled": 2,
    }
    assert [by_state[state].unknown for state in ("presumed", "settled")] == [
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
    assert sum(row.total.calls for row in await store.totals(["day"])) == 1_200


async def test_results_can_be_serialized_as_json(store: AccountStore) -> None:
    await store.reserve(make_reservation("r", 5, TEN), LONG)
    await store.settle([make_settlement("r", 5)])
    rows = (await read_rows(store)).values()
    read = [*map(asdict, await store.keys()), *map(asdict, await store.counters())]
    read += [*map(asdict, await store.totals(["day"])), *map(asdict, rows)]
    written = json.dumps(read, default=float)  # dollars are decimals
    assert json.loads(written)[0]["name"] == "anna"
