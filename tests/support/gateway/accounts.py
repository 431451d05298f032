"""The account store of a test's gateways: create keys in it, and read the ledger.

    anna = secret_of("anna", "5/day")
    with running(config) as gateway:
        ...
    (row,) = ledger()

Without an address, it is the gateway's default file.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeVar

import anthropic
import httpx
import openai

from brim.config import Config, UpstreamConfig
from brim.gateway.accounts import DEFAULT_FILE, create_store
from brim.gateway.accounts.caps import Cap
from brim.gateway.accounts.keys import NO_RULES, KeyRules, create_key, hash_secret
from brim.gateway.accounts.reservations import LedgerRow
from brim.gateway.accounts.store import AccountStore
from brim.models.pricing import Price
from brim.testing import Script, ScriptedServer
from tests.support.gateway.process import FORMATS, Running, config_of, run_gateway
from tests.support.gateway.requests import CHAT, ask, body_of, connect, request_head

T = TypeVar("T")

WORDS: Final = "one two three four five six seven eight nine ten"
PRICE: Final = Price(input=Decimal(2), output=Decimal(10))
"""Dollars per million tokens, hence micro-dollars per token."""
FREE: Final = Price(input=Decimal(0), output=Decimal(0))
MODEL: Final = "gpt-4o"
"""A model with exact counts, hence without a margin."""
PROMPT_TOKENS: Final = 8
"""Tokens of the usual prompt."""
MAX_COST: Final = 2 * PROMPT_TOKENS + 10 * 100
"""Maximum cost of the usual request in micro-dollars, with 100 output tokens."""
COST: Final = 2 * PROMPT_TOKENS + 10 * 2
"""Its actual cost: "Hello." is two tokens."""


def store_file() -> Path:
    return Path(os.environ["BRIM_STATE"]) / DEFAULT_FILE


def run_in_store(work: Callable[[AccountStore], Awaitable[T]], at: str = "") -> T:
    """Run a function with the store, like a command next to the gateway."""

    async def worked() -> T:
        store = create_store(at, Path(os.environ["BRIM_STATE"]))
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(worked())


def create_secret(
    name: str,
    *caps: str,
    project: str = "",
    is_operator: bool = False,
    rules: KeyRules = NO_RULES,
    at: str = "",
) -> str:
    """Create a key; return its secret."""
    key, secret = create_key(name, project, is_operator=is_operator, rules=rules)
    limits = [Cap.parse(cap) for cap in caps]
    run_in_store(lambda store: store.add_key(key, hash_secret(secret), limits), at)
    return secret


def set_caps(scope: str, *caps: str, at: str = "") -> None:
    run_in_store(lambda store: store.set_caps(scope, [Cap.parse(cap) for cap in caps]), at)


def revoke(name: str, at: str = "") -> None:
    run_in_store(lambda store: store.revoke(name), at)


def ledger(at: str = "") -> list[LedgerRow]:
    async def rows(store: AccountStore) -> list[LedgerRow]:
        return [row async for row in store.rows()]

    return run_in_store(rows, at)


def only_row(at: str = "") -> LedgerRow:
    (row,) = ledger(at)
    return row


def read_cap_usage(at: str = "") -> dict[str, tuple[int, int]]:
    """Return spent and reserved amounts by kind and unit: `{"all dollars": (12, 0)}`."""
    found = run_in_store(lambda store: store.counters(), at)
    return {f"{one.scope.partition(':')[0]} {one.unit}": (one.spent, one.reserved) for one in found}


def dollars(micro: int, period: str = "total") -> str:
    """A cap of this many micro-dollars."""
    return f"{Decimal(micro) / 1_000_000:f}/{period}"


# Gateways


def with_gateway(config: Config, **settings: Any) -> Config:
    return replace(config, gateway=replace(config.gateway, **settings))


def make_priced_config(*endpoints: str, **settings: Any) -> Config:
    """A gateway with priced upstreams, a window of 4,000 tokens and replies of 100."""
    return config_of(*endpoints, **{"price": PRICE, "window": 4_000, "reply": 100, **settings})


@contextmanager
def gateway_with_upstream(
    script: Script = "Hello.", **settings: Any
) -> Iterator[tuple[Running, ScriptedServer]]:
    """A gateway in front of a scripted upstream."""
    with (
        ScriptedServer(script, window=4_000) as provider,
        run_gateway(make_priced_config(provider.url, **settings)) as gateway,
    ):
        yield gateway, provider


def fallback_config(first: str, second: str, **settings: Any) -> Config:
    """An upstream, and a fallback at twice its price."""
    given: Any = {"format": FORMATS, "window": 4_000, "reply": 100}
    dear = Price(input=Decimal(4), output=Decimal(20))
    other = "gpt-4o-mini"
    return Config(
        upstreams={
            "first": UpstreamConfig(
                first, models=(MODEL,), fallback=(other,), price=PRICE, **given, **settings
            ),
            "second": UpstreamConfig(second, models=(other,), price=dear, **given),
        }
    )


# Clients


def openai_with(gateway: Running, secret: str, retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret, max_retries=retries)


def anthropic_with(gateway: Running, secret: str, retries: int = 0) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=gateway.url, api_key=secret, max_retries=retries)


def bearer_headers(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def say_hi(gateway: Running, secret: str, path: str = CHAT, **more: Any) -> httpx.Response:
    given = {"model": MODEL, **more}
    return ask(gateway, path, "hi", headers=bearer_headers(secret), **given)


@contextmanager
def open_request(
    gateway: Running, secret: str, path: str = CHAT, **more: Any
) -> Iterator[socket.socket]:
    """A client that has sent a request and disconnects when the block ends."""
    raw = json.dumps(body_of(path, "hi", model=MODEL, **more)).encode()
    headers = (f"Content-Length: {len(raw)}", f"Authorization: Bearer {secret}")
    with connect(gateway) as client:
        client.sendall(request_head(path, *headers) + raw)
        yield client


def settled_cost(row: LedgerRow) -> int:
    """Return the cost of a settled row; check that nothing is reserved."""
    assert row.state == "settled"
    assert read_cap_usage() == {"key dollars": (row.charge.micro_dollars, 0)}
    return row.charge.micro_dollars
