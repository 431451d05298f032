"""Every cap has its usage, also before the first reservation."""

from __future__ import annotations

import pytest

from brim.gateway.accounts.caps import ALL, Cap, project_scope, user_scope
from brim.gateway.accounts.reservations import Charge, Settlement
from brim.gateway.accounts.store import AccountStore, CapUsage, read_cap_usage
from brim.models.pricing import Usage
from tests.support.accounts.reservations import KEY, LONG, OWN, make_reservation

pytestmark = pytest.mark.anyio

DAY = Cap(10, "dollars", "day")
MONTH = Cap(1_000, "tokens", "month")
GOOD = Cap(20, "dollars", "total")


async def test_cap_usage_has_spent_and_reserved_amounts(store: AccountStore) -> None:
    await store.set_caps(OWN, [DAY])
    assert await store.reserve(make_reservation("first", 4, (OWN, DAY)), LONG) is None
    assert await store.reserve(make_reservation("second", 5, (OWN, DAY)), LONG) is None
    await store.settle([Settlement("first", Charge(Usage(1, 0, 1), 3))])
    assert await read_cap_usage(store) == [CapUsage(OWN, DAY, 3, 5)]


async def test_counters_of_end_users_are_listed_from_an_amount(store: AccountStore) -> None:
    for user, cost in (("u1", 3), ("u2", 4)):
        cap = user_scope(KEY.id, user), DAY
        assert await store.reserve(make_reservation(user, 5, cap, user=user), LONG) is None
        await store.settle([Settlement(user, Charge(Usage(1, 0, 1), cost))])
    assert await store.counters() == []
    assert [each.scope for each in await store.counters(users_from=4)] == [cap[0]]
    assert [each.spent for each in await store.counters(users_from=0)] == [3, 4]


async def test_a_cap_without_a_counter_is_summed_from_the_ledger(
    store: AccountStore,
) -> None:
    assert await store.reserve(make_reservation("first", 4), LONG) is None
    await store.settle([Settlement("first", Charge(Usage(7, 0, 2), 3))])
    blue = project_scope(KEY.project)
    await store.set_caps(OWN, [DAY])
    await store.set_caps(blue, [MONTH])
    await store.set_caps(ALL, [GOOD])
    await store.set_caps(project_scope("idle"), [GOOD])
    found = {standing.scope: standing for standing in await read_cap_usage(store)}
    assert found == {
        OWN: CapUsage(OWN, DAY, 3),
        blue: CapUsage(blue, MONTH, 9),
        ALL: CapUsage(ALL, GOOD, 3),
        project_scope("idle"): CapUsage(project_scope("idle"), GOOD),
    }
