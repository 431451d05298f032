"""Send fuzzed requests to a gateway with capped keys, and check that nothing breaks or leaks.

    python -m benchmarks.fuzz --requests 100000
    python -m benchmarks.fuzz --requests 1000000 --seed 7

It starts an upstream and a gateway of its own on loopback addresses. It fails if a response is a
500, is not HTTP, or does not arrive; if the gateway ends; or if afterwards, at rest, the gateway
has more file descriptors than after warming up and the connections to its upstream, a request still
runs, an amount is still reserved, or its memory did not stay flat. Memory is flat if it grows by at
most 5 % in the last 40 % of the requests; long requests, which are not counted, fill all caches
before. Failing requests are printed
with their seed and number.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.request import Request, urlopen

import uvloop

from benchmarks.fuzz_requests import FuzzedRequest, create_request
from benchmarks.gateway_processes import (
    Server,
    cpu_seconds,
    free_port,
    resident_bytes,
    start_server,
)
from brim.gateway.accounts import create_store
from brim.gateway.accounts.caps import Cap, project_scope
from brim.gateway.accounts.keys import create_key, hash_secret
from brim.gateway.accounts.store import AccountStore

CONNECTIONS: Final = 16
FILLING: Final = 500
"""Requests that fill the cache of counts: as short as others, a million would not."""
FILLING_TEXTS: Final = 350
"""Their texts, of 300 characters each."""
PARTS: Final = 10
"""Memory is read after each tenth of the requests."""
SETTLED_PART: Final = 6
"""The part after which all caches should be full."""
MAX_GROWTH: Final = 1.05
MAX_SHOWN: Final = 20
TIMEOUT: Final = 30.0
REST_SECONDS: Final = 10.0
"""How long the gateway may take to come to rest."""
CONFIG: Final = """\
[upstreams.fuzz]
endpoint = "http://127.0.0.1:{port}/v1"
format = ["openai", "anthropic", "responses", "gemini"]
window = 4000
reply = 200
price = {{ input = 1, output = 4 }}
[gateway]
body_seconds = 5
user_header = "x-end-user"
"""


@dataclass
class FuzzResult:
    """What the clients saw."""

    seed: int
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    sent: int = 0

    def add_failure(self, index: int, request: FuzzedRequest, reason: str) -> None:
        self.failures.append(
            f"seed {self.seed} number {index}: {request.method} {request.path} "
            f"{request.headers}: {reason[:300]}\n  {request.body[:600]!r}"
        )
        print(self.failures[-1], flush=True)


@dataclass(frozen=True)
class GatewayState:
    """What a gateway holds at rest."""

    descriptors: int
    memory: int
    running: int
    reserved: float


@dataclass(frozen=True)
class Target:
    """The gateway, and the keys to use."""

    server: Server
    client: str
    operator: str

    def read_state(self) -> GatewayState:
        raw = self._get("/brim/caps")
        reserved = sum(cap["reserved"] for cap in raw["data"])
        return GatewayState(
            len(list(Path(f"/proc/{self.server.pid}/fd").iterdir())),
            resident_bytes(self.server.pid),
            self._get("/readyz")["running"],
            reserved,
        )

    def wait_for_rest(self, descriptors: int | None = None) -> GatewayState:
        """Return the state when nothing runs, or after some seconds as it is then."""
        end = time.monotonic() + REST_SECONDS
        while True:
            state = self.read_state()
            is_small = descriptors is None or state.descriptors <= descriptors + CONNECTIONS
            if (not state.running and not state.reserved and is_small) or time.monotonic() > end:
                return state
            time.sleep(0.25)

    def _get(self, path: str) -> Any:
        url = f"http://127.0.0.1:{self.server.port}{path}"
        head = {"authorization": f"Bearer {self.operator}"}
        with urlopen(Request(url, headers=head), timeout=TIMEOUT) as answer:
            return json.load(answer)


@contextmanager
def start_target() -> Iterator[Target]:
    """Run an upstream, and `brim serve` in front of it with capped keys in SQLite."""
    with TemporaryDirectory() as folder:
        above, port = free_port(), free_port()
        config = Path(folder, "brim.toml")
        config.write_text(CONFIG.format(port=above), encoding="utf-8")
        client, operator = asyncio.run(_create_keys(Path(folder)))
        upstream = [sys.executable, "-m", "benchmarks.fuzz_upstream", str(above)]
        gateway = [sys.executable, "-m", "brim.cli", "serve", "--port", str(port), "--log", "json"]
        own = {"BRIM_CONFIG": str(config), "BRIM_STATE": folder}
        here = {"PYTHONPATH": str(Path(__file__).parents[1])}
        with (
            start_server("upstream", upstream, above, "/healthz", extra=here),
            start_server("brim", gateway, port, "/readyz", extra=own) as server,
        ):
            yield Target(server, client, operator)


async def _create_keys(folder: Path) -> tuple[str, str]:
    store = create_store("", folder)
    await store.open()
    try:
        client = await _create_key(store, "client", project="fuzz")
        await _create_key(store, "fuzzed", project="fuzz")
        operator = await _create_key(store, "operator", is_operator=True)
        caps = [*map(Cap.parse, ("1000000/day", "900G tokens/day", "9M requests/minute"))]
        await store.set_caps(project_scope("fuzz"), caps)
        return client, operator
    finally:
        await store.close()


async def _create_key(store: AccountStore, name: str, **facts: Any) -> str:
    key, secret = create_key(name, **facts)
    await store.add_key(key, hash_secret(secret))
    return secret


# Sending


class FuzzClient:
    """One connection after another, each used until it closes."""

    def __init__(self, target: Target, result: FuzzResult) -> None:
        self._target = target
        self._result = result
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, index: int, request: FuzzedRequest) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                status, body = await self._exchange(request)
        except (TimeoutError, OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            self.close()
            if not (request.is_broken and isinstance(error, EOFError)):
                self._result.add_failure(index, request, repr(error))
                return
            status, body = "cut", b""
        self._result.sent += 1
        self._result.statuses[status] += 1
        if status.startswith("500") or not (status == "cut" or status[:1] in "2345"):
            self._result.add_failure(index, request, f"{status} {body[:200]!r}")

    async def _exchange(self, request: FuzzedRequest) -> tuple[str, bytes]:
        """Return the status and the body of the response."""
        if self._streams is None:
            port = self._target.server.port
            self._streams = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        reader, writer = self._streams
        writer.write(self._encode(request))
        if request.is_cut:
            await writer.drain()
            self.close()
            return "cut", b""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.startswith(b"http/1.1 100"):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await _read_body(reader, head)
        if b"connection: close" in head:
            self.close()
        return head[9:12].decode(), body

    def _encode(self, request: FuzzedRequest) -> bytes:
        secret = self._target.operator if request.path.startswith("/brim/") else self._target.client
        lines = (
            f"{request.method} {request.path} HTTP/1.1",
            "host: 127.0.0.1",
            f"authorization: Bearer {secret}",
            f"content-length: {len(request.body)}",
            *request.headers,
        )
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + request.body

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if b"\r\ntransfer-encoding: chunked" not in head:
        _, _, after = head.partition(b"\r\ncontent-length:")
        return await reader.readexactly(int(after.split(b"\r\n", 1)[0] or 0))
    pieces = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
    await reader.readuntil(b"\r\n")
    return b"".join(pieces)


async def fill_caches(target: Target, result: FuzzResult) -> None:
    """Send long requests whose texts are all different."""
    filling = FuzzResult(result.seed, failures=result.failures)
    client = FuzzClient(target, filling)
    for number in range(FILLING):
        texts = [f"{number} {place} {'words ' * 48}" for place in range(FILLING_TEXTS)]
        body = json.dumps({"model": "text-embedding-3-small", "input": texts}).encode()
        await client.send(-1 - number, FuzzedRequest("POST", "/v1/embeddings", body))
    client.close()


async def send_requests(target: Target, result: FuzzResult, first: int, end: int) -> None:
    """Send the requests with these numbers over several connections."""
    numbers = iter(range(first, end))

    async def work() -> None:
        client = FuzzClient(target, result)
        for index in numbers:
            if len(result.failures) >= MAX_SHOWN:
                break
            await client.send(index, create_request(Random(f"{result.seed}/{index}")))
        client.close()

    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))


# Checks


def find_leaks(before: GatewayState, after: GatewayState) -> list[str]:
    """Return what the gateway still holds."""
    found = []
    if after.descriptors > before.descriptors + CONNECTIONS:  # to the upstream, kept for a while
        found.append(f"file descriptors: {before.descriptors} before, {after.descriptors} after")
    if after.running:
        found.append(f"{after.running} requests still run")
    if after.reserved:
        found.append(f"{after.reserved} is still reserved")
    return found


def is_flat(sizes: Sequence[int]) -> bool:
    """Return whether memory stayed the same once the caches were full."""
    return sizes[-1] <= MAX_GROWTH * sizes[SETTLED_PART - 1]


def fuzz(requests: int, seed: int) -> bool:
    """Run the fuzzer; return whether nothing broke."""
    result = FuzzResult(seed)
    started = time.monotonic()
    with start_target() as target:
        before, sizes = None, []
        uvloop.run(fill_caches(target, result))
        for part in range(PARTS):
            ends = (requests * part // PARTS, requests * (part + 1) // PARTS)
            uvloop.run(send_requests(target, result, *ends))
            if (end := target.server.describe_end()) is not None:
                print(end)
                return False
            after = target.wait_for_rest(before.descriptors if before else None)
            before = before or after
            sizes.append(after.memory)
            failed = len(result.failures)
            print(
                f"{ends[1]:,} requests, {failed} failures, {after.memory / 1e6:.0f} MB", flush=True
            )
        cpu = cpu_seconds(target.server.pid)
    assert before is not None
    leaks = find_leaks(before, after)
    if not is_flat(sizes):
        leaks.append("memory: it grew when the caches were full")
    took = time.monotonic() - started
    print(f"{result.sent:,} requests of seed {seed} in {took:,.0f} s")
    print(f"CPU time of the gateway: {cpu:,.0f} s")
    print("responses:", ", ".join(f"{s}: {n:,}" for s, n in sorted(result.statuses.items())))
    print(f"before: {before}\nafter:  {after}")
    for leak in leaks:
        print("leak:", leak)
    print("failed" if result.failures or leaks else "nothing broke, nothing leaked")
    return not (result.failures or leaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    given = parser.parse_args()
    sys.exit(0 if fuzz(given.requests, given.seed) else 1)


if __name__ == "__main__":
    main()
