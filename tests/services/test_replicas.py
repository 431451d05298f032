"""Two gateways with one store behind a real load balancer; one of them fails under load.

The model server keeps the true bill.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from brim.gateway.accounts import create_store
from brim.gateway.accounts.caps import Cap, key_scope
from brim.gateway.accounts.keys import create_key, hash_secret
from brim.gateway.accounts.reservations import LedgerRow
from brim.gateway.accounts.store import AccountStore
from tests.support.fixtures import EmptyStore
from tests.support.services import upstream
from tests.support.services.load import Load
from tests.support.services.machines import PATIENCE, Replica, balancer, model_server, replicas

pytestmark = pytest.mark.anyio

LEASE: Final = 2
CAPS: Final = {"tight": Cap(20_000), "roomy": Cap(10_000_000)}
"""Caps of the keys in micro-dollars: one that is reached during the test, and one that is not."""


@dataclass(frozen=True, slots=True)
class Team:
    """All processes of a team, and their records."""

    address: str
    """Address of the load balancer."""
    models: str
    """Address of the server with the true bill."""
    gateways: Sequence[Replica]
    secrets: Mapping[str, str]
    """Secrets of the keys, by name."""
    account_store: AccountStore
    scopes: Mapping[str, str]

    async def bill(self) -> list[tuple[str, int]]:
        """Return the requests that the model server got, and their cost."""
        return [(name, cost) for name, cost in await self._asked("bill")]

    async def until_busy(self, gateway: Replica) -> None:
        """Wait until it has running responses, streamed and not."""
        wanted = {(gateway.name, True), (gateway.name, False)}
        async with asyncio.timeout(PATIENCE):
            while not wanted <= {
                (name, is_streamed) for name, is_streamed in await self._asked("begun")
            }:
                await asyncio.sleep(0.01)

    async def _asked(self, path: str) -> list[list[Any]]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.models}/{path}") as got:
            found: list[list[Any]] = await got.json()
            return found

    async def rows_at_rest(self) -> list[LedgerRow]:
        """Return the ledger once nothing is reserved, which the gateways bring about themselves."""
        async with asyncio.timeout(PATIENCE):
            while any(counter.reserved for counter in await self.account_store.counters()):
                await asyncio.sleep(0.1)
        return [row async for row in self.account_store.rows() if row.state != "refunded"]

    async def spent(self) -> dict[str, int]:
        """Return the spent amounts of the keys."""
        spent = {counter.scope: counter.spent for counter in await self.account_store.counters()}
        return {name: spent[scope] for name, scope in self.scopes.items()}


@pytest.fixture
def store(request: pytest.FixtureRequest, empty_store: EmptyStore) -> str:
    """The address of an empty store of the requested kind."""
    return empty_store(request.param)


@pytest.fixture
async def team(
    request: pytest.FixtureRequest, store: str, before: str, tmp_path: Path
) -> AsyncIterator[Team]:
    account_store = create_store(store, tmp_path)
    await account_store.open()
    made = {name: create_key(name) for name in CAPS}
    for name, (key, secret) in made.items():
        await account_store.add_key(key, hash_secret(secret), [CAPS[name]])
    with ExitStack() as stack:
        models = stack.enter_context(model_server())
        gateways = stack.enter_context(replicas(tmp_path, _settings(store, models)))
        program = request.getfixturevalue(before)
        yield Team(
            stack.enter_context(balancer(program, tmp_path, gateways)),
            models,
            gateways,
            {name: secret for name, (_, secret) in made.items()},
            account_store,
            {name: key_scope(key.id) for name, (key, _) in made.items()},
        )
    await account_store.close()


def _settings(store: str, models: str) -> dict[str, str]:
    """The configuration as environment variables."""
    price = ", ".join(f"{kind} = {dollars}" for kind, dollars in upstream.PRICE.items())
    return {
        "BRIM_GATEWAY__STORE": store,
        "BRIM_GATEWAY__LEASE_SECONDS": str(LEASE),
        "BRIM_GATEWAY__DRAIN_SECONDS": "2",
        "BRIM_UPSTREAMS__MODELS__ENDPOINT": models,
        "BRIM_UPSTREAMS__MODELS__WINDOW": "32000",
        "BRIM_UPSTREAMS__MODELS__PRICE": f"{{ {price} }}",
    }


@pytest.mark.parametrize(
    ("store", "before"),
    [
        ("postgres", "haproxy"),
        ("redis", "haproxy"),
        ("sqlite", "haproxy"),
        ("postgres", "nginx"),
    ],
    indirect=["store"],
)
async def test_killing_a_gateway_affects_neither_other_clients_nor_caps(team: Team) -> None:
    one, two = team.gateways
    async with Load(team.address, team.gateways, team.secrets) as load:
        await load.until(lambda: len(load.ended("complete")) >= 10)
        await team.until_busy(one)
        caught = {each.name for each in load.ended("running")}
        one.kill()
        before = len(load.requests)
        await load.until(lambda: len(load.requests) >= before + 20)
        await started_again(one, load)
    broken = load.ended("broken")
    assert {each.is_streamed for each in broken} == {True, False}
    assert {each.name for each in broken} <= caught
    assert {each.replica for each in broken} == {one.name}
    assert load.ended("complete", two.name)
    assert load.ended("rejected")
    assert {each.key for each in load.ended("rejected")} == {"tight"}

    bill, rows = await team.bill(), await team.rows_at_rest()
    assert largest(Counter(name for name, _ in bill)) == 1, "sent twice"
    assert largest(Counter(row.model for row in rows)) == 1, "written down twice"
    true, recorded = dict(bill), {row.model: row for row in rows}
    complete = {each.name for each in load.ended("complete")}
    assert true.keys() <= recorded.keys()
    for name, row in recorded.items():
        if row.state == "settled":
            assert (name in complete, row.charge.micro_dollars) == (True, true[name])
        elif name in true:  # the gateway may be killed between the end of a reply and its row
            assert (row.state, name in caught) == ("presumed", True)
            assert row.charge.micro_dollars >= true[name]
    spent = await team.spent()
    for key, cap in CAPS.items():
        assert sum(cost for name, cost in bill if name.startswith(key)) <= cap.limit
        assert sum(row.charge.micro_dollars for row in rows if row.key_name == key) == spent[key]
        assert spent[key] <= cap.limit


@pytest.mark.parametrize(("store", "before"), [("sqlite", "haproxy")], indirect=["store"])
async def test_stopping_a_gateway_loses_no_request(team: Team) -> None:
    secrets = {"roomy": team.secrets["roomy"]}
    async with Load(team.address, team.gateways, secrets, clients=8) as load:
        for each in team.gateways:
            await stop_replica(each, team)
            await started_again(each, load)
    assert {each.end for each in load.requests} == {"complete"}
    bill, rows = await team.bill(), await team.rows_at_rest()
    assert sorted(bill) == sorted((row.model, row.charge.micro_dollars) for row in rows)
    assert sorted(name for name, _ in bill) == sorted(each.name for each in load.requests)
    assert {row.state for row in rows} == {"settled"}


async def stop_replica(gateway: Replica, team: Team) -> None:
    """Stop it while requests run, like an upgrade."""
    await team.until_busy(gateway)
    assert await asyncio.to_thread(gateway.stop) == 0


async def started_again(gateway: Replica, load: Load) -> None:
    """Start it, and wait until the load balancer uses it."""
    gateway.start()
    await asyncio.to_thread(gateway.wait_until_ready)
    before = len(load.ended("complete", gateway.name))
    await load.until(lambda: len(load.ended("complete", gateway.name)) > before)


def largest(counts: Counter[str]) -> int:
    return max(counts.values())
