"""Rate limits and caps of end users, in every store."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from brim.errors import InputError
from brim.gateway.accounts.caps import (
    ALL,
    Cap,
    each_user_scope,
    key_scope,
    project_scope,
    user_scope,
)
from brim.gateway.accounts.keys import Access, create_key, hash_secret
from brim.gateway.accounts.rates import (
    WINDOW_SECONDS,
    Admission,
    RateCounts,
    RateReached,
    RateUse,
    seconds_until_room,
)
from brim.gateway.accounts.reservations import CapReached
from brim.gateway.accounts.sqlite.store import SqliteAccountStore
from brim.gateway.accounts.store import AccountStore, CapUsage, read_cap_usage
from tests.gateway.accounts.conftest import Replica
from tests.support.accounts import postgres, valkey
from tests.support.accounts.reservations import (
    KEY,
    LONG,
    OVER,
    OWN,
    SECRET,
    make_reservation,
    make_settlement,
    read_rows,
)

pytestmark = pytest.mark.anyio

THREE = (OWN, Cap.parse("3 requests/minute"))
HUNDRED = (OWN, Cap.parse("100 tokens/minute"))
TWO = (OWN, Cap.parse("2 concurrent"))

CountEarlier = Callable[[str, int, int, int], None]


@pytest.fixture
def count_earlier(address: str) -> CountEarlier:
    """Counts requests and tokens of a scope as if they had been reserved some seconds ago."""

    def count(scope: str, ago: int, requests: int, tokens: int) -> None:
        second = int(time.time()) - ago
        row = f"('{scope}', {second}, {requests}, {tokens})"
        if address.startswith("postgres"):
            postgres.tell(address, f"INSERT INTO brim.rates VALUES {row}")
        elif address.startswith("redis"):
            fields = (f"requests/{second}", str(requests), f"tokens/{second}", str(tokens))
            valkey.tell(address, "HSET", f"rates:{scope}", *fields)
        else:
            with closing(sqlite3.connect(address)) as base, base:
                base.execute(f"INSERT INTO rates VALUES {row}")

    return count


# Parsing


@pytest.mark.parametrize(
    ("words", "cap", "shown"),
    [
        ("60 requests/minute", Cap(60, "requests", "minute"), "60 requests/minute"),
        ("60rpm", Cap(60, "requests", "minute"), "60 requests/minute"),
        ("100k tokens/minute", Cap(100_000, "tokens", "minute"), "100,000 tokens/minute"),
        ("2.5M TPM", Cap(2_500_000, "tokens", "minute"), "2,500,000 tokens/minute"),
        ("8 concurrent", Cap(8, "requests", "now"), "8 concurrent requests"),
        ("8 concurrent requests", Cap(8, "requests", "now"), "8 concurrent requests"),
    ],
)
def test_a_rate_limit_is_parsed(words: str, cap: Cap, shown: str) -> None:
    assert Cap.parse(words) == cap
    assert (cap.is_rate, str(cap)) == (True, shown)
    assert Cap.parse(str(cap)) == cap


@pytest.mark.parametrize("words", ["5/minute", "10 requests/day", "10 requests", "5 dollars/now"])
def test_other_combinations_are_rejected(words: str) -> None:
    with pytest.raises(InputError, match="Requests are limited per minute or concurrently"):
        Cap.parse(words)


# Requests per minute


async def test_a_request_limit_is_used_exactly(store: AccountStore) -> None:
    for number in (1, 2, 3):
        admitted = await store.reserve(make_reservation(f"r{number}", 1, THREE), LONG)
        assert admitted == Admission((RateUse(*THREE, number),))
    await store.settle([make_settlement("r1", 1)])
    rejected = await store.reserve(make_reservation("r4", 1, THREE), LONG)
    assert isinstance(rejected, RateReached)
    assert (rejected.scope, rejected.cap, rejected.used) == (*THREE, 3)
    assert rejected.wait is not None
    assert WINDOW_SECONDS - 5 < rejected.wait <= WINDOW_SECONDS
    assert (await store.rate_counts(OWN)).requests == 3


async def test_a_limit_counts_sixty_two_seconds(
    store: AccountStore, count_earlier: CountEarlier
) -> None:
    count_earlier(OWN, WINDOW_SECONDS + 1, 3, 0)
    count_earlier(OWN, WINDOW_SECONDS - 5, 2, 0)
    assert await store.reserve(make_reservation("a", 1, THREE), LONG) == Admission(
        (RateUse(*THREE, 3),)
    )
    rejected = await store.reserve(make_reservation("b", 1, THREE), LONG)
    assert isinstance(rejected, RateReached)
    assert rejected.wait is not None
    assert 0 < rejected.wait <= 5


async def test_a_rejected_request_counts_nowhere(store: AccountStore) -> None:
    small, none = (OWN, Cap(10)), (ALL, Cap(0, "requests", "minute"))
    assert isinstance(
        await store.reserve(make_reservation("a", 11, THREE, small), LONG), CapReached
    )
    assert isinstance(
        await store.reserve(make_reservation("b", 1, THREE, small, none), LONG), RateReached
    )
    assert (await store.rate_counts(OWN)).requests == 0
    assert await store.reserve(make_reservation("c", 10, THREE, small), LONG) is not None
    assert (await store.rate_counts(OWN)).requests == 1


async def test_a_limit_is_shared_by_replicas_and_concurrent_requests(
    store: AccountStore, replica: Replica
) -> None:
    cap, shared = (ALL, Cap(20, "requests", "minute")), [store, replica(), replica()]
    found = await asyncio.gather(
        *(
            shared[number % 3].reserve(make_reservation(f"r{number}", 1, cap), LONG)
            for number in range(50)
        )
    )
    assert sum(isinstance(one, Admission) for one in found) == 20


# Tokens per minute


async def test_actual_tokens_replace_the_maximum(store: AccountStore) -> None:
    admitted = await store.reserve(make_reservation("a", 1, HUNDRED, tokens=80), LONG)
    assert admitted == Admission((RateUse(*HUNDRED, 80),))
    rejected = await store.reserve(make_reservation("b", 1, HUNDRED, tokens=40), LONG)
    assert isinstance(rejected, RateReached)
    await store.settle([make_settlement("a", 1, 50)])
    assert await store.reserve(make_reservation("b", 1, HUNDRED, tokens=40), LONG) == Admission(
        (RateUse(*HUNDRED, 90),)
    )
    assert (await store.rate_counts(OWN))[:2] == (2, 90)


async def test_a_request_above_the_limit_never_has_room(store: AccountStore) -> None:
    rejected = await store.reserve(make_reservation("a", 1, HUNDRED, tokens=101), LONG)
    assert rejected == RateReached(*HUNDRED, 0, None)


async def test_tokens_of_an_unsent_reservation_are_released(store: AccountStore) -> None:
    await store.reserve(make_reservation("a", 1, HUNDRED, tokens=80), OVER)
    assert await store.reserve(make_reservation("b", 1, HUNDRED, tokens=90), LONG) == Admission(
        (RateUse(*HUNDRED, 90),)
    )


async def test_a_second_reservation_counts_once(store: AccountStore) -> None:
    caps = THREE, HUNDRED, TWO
    await store.reserve(make_reservation("a", 1, *caps, tokens=80), LONG)
    again = await store.reserve(make_reservation("a", 1, *caps, tokens=90), LONG)
    assert again == Admission((RateUse(*THREE, 1), RateUse(*HUNDRED, 90), RateUse(*TWO, 1)))
    assert await store.rate_counts(OWN) == RateCounts(1, 90, 1)


# Concurrent requests


async def test_concurrent_requests_are_limited_until_they_end(store: AccountStore) -> None:
    assert await store.reserve(make_reservation("a", 1, TWO), LONG) is not None
    assert await store.reserve(make_reservation("b", 1, TWO), LONG) == Admission(
        (RateUse(*TWO, 2),)
    )
    rejected = await store.reserve(make_reservation("c", 1, TWO), LONG)
    assert rejected == RateReached(*TWO, 2, 0.0)
    await store.settle([make_settlement("a", 1)])
    assert isinstance(await store.reserve(make_reservation("c", 1, TWO), LONG), Admission)


async def test_requests_of_a_crashed_gateway_free_their_places(store: AccountStore) -> None:
    await store.reserve(make_reservation("a", 1, TWO), LONG)
    await store.mark_sent("a", OVER)
    await store.reserve(make_reservation("b", 1, TWO), OVER)
    assert isinstance(await store.reserve(make_reservation("c", 1, TWO), LONG), Admission)
    assert await store.rate_counts(OWN) == RateCounts(0, 0, 1)


async def test_a_project_and_all_keys_have_limits(store: AccountStore) -> None:
    for scope in (project_scope("blue"), ALL):
        cap = (scope, Cap(1, "requests", "now"))
        first, second = f"{scope} 1", f"{scope} 2"
        assert isinstance(await store.reserve(make_reservation(first, 1, cap), LONG), Admission)
        assert isinstance(await store.reserve(make_reservation(second, 1, cap), LONG), RateReached)
        await store.settle([make_settlement(first, 1)])


async def test_the_use_of_rate_limits_is_listed(store: AccountStore) -> None:
    limits = [cap for _, cap in (THREE, HUNDRED, TWO)]
    await store.set_caps(OWN, limits)
    await store.reserve(make_reservation("a", 1, THREE, HUNDRED, TWO, tokens=7), LONG)
    assert await read_cap_usage(store) == [
        CapUsage(OWN, cap, used) for cap, used in zip(limits, (1, 7, 1), strict=True)
    ]


# End users


async def test_each_end_user_has_caps_of_their_own(store: AccountStore) -> None:
    await store.set_caps(each_user_scope(KEY.id), [Cap(10), Cap(5, "requests", "minute")])
    access = await store.access(SECRET)
    assert access == Access(KEY, (), (Cap(10), Cap(5, "requests", "minute")))
    for user in ("max", "mia/1:2", "größer", ""):
        caps = access.caps_for(user)
        assert {scope for scope, _ in caps} == {user_scope(KEY.id, user)}
        first = make_reservation(f"1{user}", 7, *caps, user=user)
        assert isinstance(await store.reserve(first, LONG), Admission)
        await store.settle([make_settlement(first.id, 6)])
        rejected = await store.reserve(make_reservation("2", 5, *caps, user=user), LONG)
        assert rejected == CapReached(user_scope(KEY.id, user), Cap(10), 6, 0, None)


async def test_a_new_cap_counts_what_its_end_user_spent_before(store: AccountStore) -> None:
    for number, user in enumerate(("max", "max", "mia", "")):
        await store.reserve(make_reservation(f"r{number}", 5, user=user), LONG)
        await store.settle([make_settlement(f"r{number}", 4)])
    await store.reserve(make_reservation("open", 1, user="max"), LONG)
    for user, spent, reserved in (("max", 8, 1), ("mia", 4, 0), ("", 4, 0)):
        cap = (user_scope(KEY.id, user), Cap(3, "dollars", "month"))
        rejected = await store.reserve(make_reservation("new", 3, cap, user=user), LONG)
        assert isinstance(rejected, CapReached)
        assert (rejected.spent, rejected.reserved) == (spent, reserved)


async def test_spending_is_listed_by_end_user(store: AccountStore) -> None:
    for number, user in enumerate(("max", "mia", "max", "")):
        await store.reserve(make_reservation(f"r{number}", 5, user=user), LONG)
        await store.settle([make_settlement(f"r{number}", number, number * 10)])
    rows = await store.totals(["key", "user"])
    assert [(row.keys, row.total.calls, row.total.tokens) for row in rows] == [
        *((("k_1", ""), 1, 30), (("k_1", "max"), 2, 20), (("k_1", "mia"), 1, 10)),
    ]
    assert {row.user for row in (await read_rows(store)).values()} == {"max", "mia", ""}


async def test_a_reservation_cannot_count_against_another_end_user(store: AccountStore) -> None:
    cap = (user_scope(KEY.id, "mia"), Cap(1))
    with pytest.raises(InputError, match="cannot count against"):
        await store.reserve(make_reservation("r", 1, cap, user="max"), LONG)


# The window


class Clock:
    """The clock of a store that a test sets."""

    now = 1_000_000.25

    def __call__(self) -> float:
        return self.now


async def _admit(
    store: SqliteAccountStore, clock: Clock, steps: Sequence[tuple[float, int]], limit: int
) -> list[tuple[float, int]]:
    """Make requests after pauses, and again after their wait; return when each was admitted."""
    key, _ = create_key(f"key-{clock.now}")
    await store.add_key(key, hash_secret(key.id))
    cap = (key_scope(key.id), Cap(limit, "tokens", "minute"))
    admitted = []
    for number, (pause, tokens) in enumerate(steps):
        clock.now += pause
        request = make_reservation(f"{key.id}-{number}", 1, cap, tokens=tokens, key=key)
        found = await store.reserve(request, LONG)
        if isinstance(found, RateReached):
            assert found.wait is not None
            clock.now += found.wait
            found = await store.reserve(request, LONG)
        assert isinstance(found, Admission)
        admitted.append((clock.now, tokens))
    return admitted


def test_no_minute_exceeds_the_limit(tmp_path: Path) -> None:
    """Nor do 61 seconds, and there is room when the store says so."""
    clock = Clock()
    store = SqliteAccountStore(tmp_path / "accounts.sqlite3", clock=clock)

    @given(
        some.lists(some.tuples(some.floats(0, 20), some.integers(1, 6)), max_size=30),
        some.integers(6, 15),
    )
    def check(steps: list[tuple[float, int]], limit: int) -> None:
        clock.now += 1_000
        admitted = runner.run(_admit(store, clock, steps, limit))
        for start, _ in admitted:
            inside = [tokens for at, tokens in admitted if start <= at <= start + 61]
            assert sum(inside) <= limit

    with asyncio.Runner() as runner:
        check()
        runner.run(store.close())


def test_the_wait_ends_when_enough_seconds_have_left_the_window() -> None:
    counted = [(100, 4), (110, 4), (120, 4)]
    assert seconds_until_room(counted, 1, 13, 130.5) == 0
    assert seconds_until_room(counted, 2, 13, 130.5) == 100 + WINDOW_SECONDS - 130.5
    assert seconds_until_room(counted, 9, 13, 130.5) == 110 + WINDOW_SECONDS - 130.5
    assert seconds_until_room(counted, 13, 13, 130.5) == 120 + WINDOW_SECONDS - 130.5
    assert seconds_until_room(counted, 14, 13, 130.5) is None
