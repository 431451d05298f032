"""A stopped, killed or restarted gateway loses nothing and counts nothing twice."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from brim.gateway.accounts.sqlite.store import SqliteAccountStore
from brim.testing import ScriptedServer, TextReply
from tests.support.gateway.accounts import (
    COST,
    MAX_COST,
    MODEL,
    PROMPT_TOKENS,
    bearer_headers,
    create_secret,
    dollars,
    gateway_with_upstream,
    ledger,
    make_priced_config,
    only_row,
    read_cap_usage,
    say_hi,
    with_gateway,
)
from tests.support.gateway.process import run_gateway, run_serve
from tests.support.gateway.requests import CHAT, LONG, body_of, wait_until

WORDS = "one two three four five six seven eight nine ten"


@pytest.fixture
def anna() -> str:
    """The secret of a key with a high cap."""
    return create_secret("anna", "1000/day")


@contextmanager
def serve_with_keys(
    provider: ScriptedServer, place: Path, **settings: float
) -> Iterator[tuple[str, Any]]:
    """The address of `brim serve`, and its process."""
    file = place / "brim.toml"
    lines = [f"{name} = {value}" for name, value in settings.items()]
    file.write_text(
        f'[upstreams.upstream-1]\nendpoint = "{provider.url}"\nwindow = 4000\nreply = 100\n'
        "price = { input = 2, output = 10 }\n[gateway]\n" + "\n".join(lines)
    )
    with run_serve({"BRIM_CONFIG": str(file)}, logs=subprocess.STDOUT) as found:
        yield found


@contextmanager
def listening_to(address: str, secret: str) -> Iterator[None]:
    """A client in the middle of a stream."""
    body = body_of(CHAT, "hi", model=MODEL, stream=True)
    with httpx.stream(
        "POST", address + CHAT, json=body, headers=bearer_headers(secret), timeout=LONG
    ) as answer:
        pieces = answer.iter_bytes()
        next(pieces)
        yield


def test_a_killed_gateway_leaves_one_presumed_row(anna: str, tmp_path: Path) -> None:
    with ScriptedServer(TextReply(WORDS, hold=threading.Event())) as provider:
        with (
            serve_with_keys(provider, tmp_path, lease_seconds=2) as (address, process),
            listening_to(address, anna),
        ):
            assert read_cap_usage() == {"key dollars": (0, MAX_COST)}
            process.kill()
            process.wait()
        assert ledger() == []
        with run_gateway(with_gateway(make_priced_config(provider.url), lease_seconds=2)):
            wait_until(ledger)
    row = only_row()
    assert (row.state, row.charge.micro_dollars) == ("presumed", MAX_COST)
    assert read_cap_usage() == {"key dollars": (MAX_COST, 0)}


def test_the_lease_of_a_long_stream_is_renewed(anna: str, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, renew, swept = threading.Event(), SqliteAccountStore.renew, threading.Semaphore(0)

    async def renewed(store: SqliteAccountStore, ids: Sequence[str], lease: float) -> None:
        await renew(store, ids, lease)
        swept.release()

    monkeypatch.setattr(SqliteAccountStore, "renew", renewed)
    with ScriptedServer(TextReply(WORDS, hold=goes_on)) as provider:
        config = with_gateway(make_priced_config(provider.url), lease_seconds=2)
        with run_gateway(config) as gateway, listening_to(gateway.url, anna):
            for _ in range(4):  # at least a third of a lease apart
                assert swept.acquire(timeout=LONG)
            assert ledger() == []
            assert read_cap_usage() == {"key dollars": (0, MAX_COST)}
            goes_on.set()
    assert only_row().state == "settled"


def test_a_stopped_gateway_records_cancelled_requests(anna: str, tmp_path: Path) -> None:
    with (
        ScriptedServer(TextReply(WORDS, hold=threading.Event())) as provider,
        serve_with_keys(provider, tmp_path, stop_seconds=0.1) as (address, process),
        listening_to(address, anna),
    ):
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0
    row = only_row()
    assert (row.state, row.is_estimated) == ("settled", True)
    assert (row.charge.usage.input, row.charge.usage.output) == (PROMPT_TOKENS, 1)
    assert read_cap_usage() == {"key dollars": (2 * PROMPT_TOKENS + 10, 0)}


def test_a_restarted_gateway_continues_counting() -> None:
    secret = create_secret("anna", dollars(MAX_COST + COST, "month"))
    for status in (200, 200, 429):
        with gateway_with_upstream() as (gateway, _):
            assert say_hi(gateway, secret).status_code == status
    assert read_cap_usage() == {"key dollars": (2 * COST, 0)}
    assert len(ledger()) == 2
