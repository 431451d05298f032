"""Kill gateways under load, and check that caps hold and the ledger is complete.

    python -m benchmarks.soak --requests 200000                  # SQLite
    python -m benchmarks.soak --requests 200000 --store postgres # or valkey

Two gateways share an account store. Clients send each request once, to either of them, streamed or
not, while one of the gateways is killed (SIGKILL) every few seconds and started again. The key has
a dollar cap that the last requests exceed. Every request names an end user of its own, by which
the upstream notes what it receives, and the ledger what was charged.

It fails if more than the cap is spent; if a request that the upstream received has not exactly one
row in the ledger, charged with at least its cost; if any other request was charged more than its
maximum; if the counters of the cap differ from the ledger; or if a request gets no response, or an
amount or request is left over when the leases have expired.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.request import urlopen

import uvloop

from benchmarks.gateway_processes import free_port
from benchmarks.gateway_upstream import Connection
from brim.gateway.accounts import create_store
from brim.gateway.accounts.caps import Cap
from brim.gateway.accounts.keys import create_key, hash_secret
from brim.gateway.accounts.reservations import LedgerRow
from brim.gateway.accounts.store import AccountStore
from tests.support.accounts import postgres, valkey

GATEWAYS: Final = 2
CONNECTIONS: Final = 16
LEASE_SECONDS: Final = 5
TIMEOUT: Final = 60.0
REPLY_TOKENS: Final = 30
COST: Final = 4 * REPLY_TOKENS
"""Micro-dollars of a request: the prompt is free, so that its tokens do not matter."""
MAX_TOKENS: Final = 60
MAX_COST: Final = 4 * MAX_TOKENS
CAP_SHARE: Final = 0.97
"""The cap is this share of what all requests cost."""
CONFIG: Final = """\
[upstreams.soak]
endpoint = "http://127.0.0.1:{port}/v1"
format = ["openai", "anthropic"]
window = 4000
price = {{ input = 0, output = 4 }}
[gateway]
store = "{store}"
lease_seconds = {lease}
"""
PATHS: Final = {"gpt-4o": "/v1/chat/completions", "claude-sonnet-4-5": "/v1/messages"}


# The upstream


class SoakUpstream:
    """Replies to everything, some of it late, and notes which requests arrive."""

    USER: Final = re.compile(rb'"user(?:_id)?": ?"(s-\d+)"')

    def __init__(self, seed: int) -> None:
        self.received: Counter[str] = Counter()
        self._random = Random(seed)

    def connect(self) -> Connection:
        return SoakConnection(self)

    def note(self, body: bytes) -> float:
        """Note a request; return how many seconds to wait before its reply."""
        if found := self.USER.search(body):
            self.received[found[1].decode()] += 1
        return self._random.choice((0.0, 0.0, 0.005, 0.05))


class SoakConnection(Connection):
    def __init__(self, upstream: SoakUpstream) -> None:
        super().__init__()
        self._upstream = upstream

    def answer(self, head: bytes, body: bytes) -> None:
        delay = self._upstream.note(body)
        self._loop.call_later(delay, self._reply, head, body)

    def _reply(self, head: bytes, body: bytes) -> None:
        if not self.transport.is_closing():
            super().answer(head, body)


# The gateways


class Replica:
    """A gateway that is killed and started again at the same port."""

    def __init__(self, config: Path) -> None:
        self.port = free_port()
        self._log = config.parent / f"{self.port}.log"
        self._environment = {**os.environ, "BRIM_CONFIG": str(config), "BRIM_STATE": ""}
        self._environment["BRIM_STATE"] = str(config.parent / f"state-{self.port}")
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "brim.cli", "serve", "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=self._environment
            )
        await asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                return
            time.sleep(0.1)
        raise TimeoutError(self._log.read_text()[-2000:])

    async def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()

    def running(self) -> int:
        with urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
            return int(json.load(answer)["running"])


async def kill_repeatedly(
    replicas: list[Replica], random: Random, result: SoakResult, pause: float
) -> None:
    while True:
        await asyncio.sleep(pause * (0.5 + random.random()))
        replica = random.choice(replicas)
        await replica.stop()
        result.kills += 1
        await replica.start()


# The clients


@dataclass
class SoakResult:
    """What the clients saw, and what was found afterwards."""

    requests: int
    answers: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    failures: list[str] = field(default_factory=list)

    def check(self, holds: bool, failure: str) -> None:
        if not holds:
            self.failures.append(failure)


class SoakClient:
    """A client that sends its next request when the last one was answered or failed."""

    def __init__(
        self, replicas: list[Replica], secret: str, result: SoakResult, random: Random
    ) -> None:
        self._replicas, self._secret = replicas, secret
        self._result, self._random = result, random
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            status = await self._send(number)
            self._result.answers[status] += 1
            if status in ("cut", "timeout"):
                self._close()
                await asyncio.sleep(0.02)
        self._close()

    async def _send(self, number: int) -> str:
        try:
            async with asyncio.timeout(TIMEOUT):
                reader, writer = self._streams or await self._connect()
                writer.write(self._build(number))
                return await _read_response(reader)
        except TimeoutError:
            return "timeout"
        except (OSError, EOFError):
            return "cut"

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = self._random.choice(self._replicas).port
        self._streams = await asyncio.open_connection("127.0.0.1", port)
        return self._streams

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    def _build(self, number: int) -> bytes:
        model = self._random.choice([*PATHS])
        text = self._random.choice(("hi", "Say something. " * self._random.randint(1, 40)))
        name = f"s-{number}"
        user = {"metadata": {"user_id": name}} if "claude" in model else {"user": name}
        body: dict[str, Any] = {
            **user,
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": MAX_TOKENS,
            "stream": self._random.random() < 0.3,
        }
        raw = json.dumps(body).encode()
        lines = (
            f"POST {PATHS[model]} HTTP/1.1",
            f"host: 127.0.0.1\r\nauthorization: Bearer {self._secret}",
            f"content-type: application/json\r\ncontent-length: {len(raw)}",
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


async def _read_response(reader: asyncio.StreamReader) -> str:
    """Return the status of a response that is whole; its code if it is an error."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = head[9:12].decode()
    if b"\r\ntransfer-encoding: chunked" in head:
        while await reader.readuntil(b"\r\n") != b"0\r\n":
            pass
        await reader.readuntil(b"\r\n")
        return status
    _, _, after = head.partition(b"\r\ncontent-length:")
    body = await reader.readexactly(int(after.split(b"\r\n", 1)[0] or 0))
    code = re.search(rb'"code":\s*"(\w+)"', body)
    return f"{status} {code[1].decode()}" if code and status != "200" else status


async def send_requests(replicas: list[Replica], secret: str, result: SoakResult) -> None:
    numbers = iter(range(result.requests))
    clients = [SoakClient(replicas, secret, result, Random(seed)) for seed in range(CONNECTIONS)]
    await asyncio.gather(*(client.work(numbers) for client in clients))


# The checks


async def check_accounts(
    store: AccountStore, cap: Cap, received: Counter[str], result: SoakResult
) -> None:
    """Compare the ledger and the counters with what the upstream received."""
    rows: dict[str, list[LedgerRow]] = {}
    async for row in store.rows():
        rows.setdefault(row.user, []).append(row)
    spent = sum(row.charge.micro_dollars for found in rows.values() for row in found)
    (counter,) = await store.counters()
    result.check(spent <= cap.limit, f"spent {spent} of {cap.limit}")
    result.check(counter.spent == spent, f"the counter is {counter.spent}, the ledger {spent}")
    result.check(counter.reserved == 0, f"{counter.reserved} is still reserved")
    for user, found in rows.items():
        result.check(len(found) == 1, f"{user}: {len(found)} rows")
        charge = found[0].charge.micro_dollars
        least = COST if received[user] else 0
        result.check(least <= charge <= MAX_COST, f"{user}: {charge} charged, {found[0].state}")
    missing = [user for user in received if user not in rows]
    result.check(not missing, f"{len(missing)} received requests without a row: {missing[:5]}")
    states = Counter(row.state for found in rows.values() for row in found)
    listed = ", ".join(f"{state} {number:,}" for state, number in sorted(states.items()))
    charged = {user for user, (row, *_) in rows.items() if row.charge.micro_dollars}
    print(f"{len(received):,} requests reached the upstream; rows of the ledger: {listed}")
    unsent = sum(1 for user in charged if not received[user])
    print(f"charged, but killed before the upstream received them: {unsent:,}")
    print(f"spent {spent:,} of {cap.limit:,} micro-dollars ({spent / cap.limit:.2%})")


async def wait_for_rest(store: AccountStore) -> None:
    """Wait until the leases of killed gateways have expired."""
    end = time.monotonic() + TIMEOUT
    while await store.running() and time.monotonic() < end:
        await asyncio.sleep(0.5)


async def soak(url: str, requests: int, seed: int, pause: float, folder: Path) -> SoakResult:
    upstream, result, random = SoakUpstream(seed), SoakResult(requests), Random(seed)
    loop, port = asyncio.get_running_loop(), free_port()
    server = await loop.create_server(upstream.connect, "127.0.0.1", port, backlog=1_000)
    config = folder / "brim.toml"
    config.write_text(CONFIG.format(port=port, store=url, lease=LEASE_SECONDS), encoding="utf-8")
    store = create_store(url, folder)
    await store.open()
    cap = Cap(int(CAP_SHARE * requests * COST))
    key, secret = create_key("soak")
    await store.add_key(key, hash_secret(secret), [cap])
    replicas = [Replica(config) for _ in range(GATEWAYS)]
    await asyncio.gather(*(replica.start() for replica in replicas))
    killing = asyncio.create_task(kill_repeatedly(replicas, random, result, pause))
    try:
        sending = asyncio.create_task(send_requests(replicas, secret, result))
        await asyncio.wait({sending, killing}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            killing.result()  # a gateway did not start again
        killing.cancel()
        await asyncio.gather(*(replica.stop() for replica in replicas))
        await asyncio.gather(*(replica.start() for replica in replicas))
        await wait_for_rest(store)
        left = sum(replica.running() for replica in replicas)
        result.check(not left, f"{left} requests still run")
        await check_accounts(store, cap, upstream.received, result)
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))
        await store.close()
        server.close()
    result.check(not result.answers["timeout"], "some requests got no response")
    return result


@contextmanager
def start_store(name: str, folder: Path) -> Iterator[str]:
    """Start an account store; yield its address."""
    with ExitStack() as stack:
        if name == "sqlite":
            yield str(folder / "accounts.sqlite3")
        elif name == "postgres":
            yield stack.enter_context(postgres.run_server())
        else:
            yield stack.enter_context(valkey.run_server())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--store", choices=("sqlite", "postgres", "valkey"), default="sqlite")
    parser.add_argument("--requests", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument(
        "--pause", type=float, default=5.0, metavar="S", help="seconds between two kills"
    )
    given = parser.parse_args()
    started = time.monotonic()
    with TemporaryDirectory() as name, start_store(given.store, Path(name)) as url:
        result = uvloop.run(soak(url, given.requests, given.seed, given.pause, Path(name)))
    took = time.monotonic() - started
    print(f"{given.requests:,} requests on {given.store}, {result.kills} kills in {took:,.0f} s")
    print("responses:", ", ".join(f"{s}: {n:,}" for s, n in sorted(result.answers.items())))
    for failure in result.failures[:20]:
        print("failure:", failure)
    print(f"{len(result.failures)} failures" if result.failures else "everything holds")
    sys.exit(1 if result.failures else 0)


if __name__ == "__main__":
    main()
