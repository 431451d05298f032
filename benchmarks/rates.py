"""Rate limits under load: many client processes, two gateways, one account store.

    python -m benchmarks.rates [--short] [--json]                        # SQLite
    python -m benchmarks.rates --short --only sqlite,postgres,valkey

Each client sends its next request as soon as it may. The upstream notes when requests arrive. The
figures are the most that arrived in any 60 seconds, and the mean of the 60 seconds from every whole
second, relative to the limit. The gateways count a minute as 62 seconds, so 97 % of a limit can be
used.
"""

from __future__ import annotations

import asyncio
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import uvloop

from benchmarks import environment, report
from benchmarks.gateway_processes import free_port, start_server
from benchmarks.gateway_upstream import DELTAS, Connection, estimate_tokens
from benchmarks.report import Cell, Options, Table
from benchmarks.soak import start_store
from brim.gateway.accounts import create_store
from brim.gateway.accounts.caps import Cap
from brim.gateway.accounts.keys import create_key, hash_secret
from brim.gateway.accounts.rates import WINDOW_SECONDS

CLIENTS, GATEWAYS = 16, 2
LIMITS: Final = {"requests": "600 requests/minute", "tokens": "60k tokens/minute"}
"""The unit and the limit of each key, which is named for its unit."""
ROUNDS: Final = 3
"""Windows of the gateways' own length that are measured."""
MINUTE: Final = 60.0
TARGET: Final = 0.95


class Arrival(NamedTuple):
    """A request at the upstream."""

    time: float
    tokens: int


class NotingConnection(Connection):
    """A connection whose requests are noted."""

    def __init__(self, arrivals: Mapping[str, list[Arrival]]) -> None:
        super().__init__()
        self._arrivals = arrivals

    def answer(self, head: bytes, body: bytes) -> None:
        for name in LIMITS:
            if b'"user": "%b"' % name.encode() in body:
                tokens = int(estimate_tokens(body)) + DELTAS
                self._arrivals[name].append(Arrival(time.monotonic(), tokens))
        super().answer(head, body)


def tables(options: Options) -> Iterator[Table]:
    for store in options.only or ("sqlite",):
        yield _measure_store(store, 2 if options.short else ROUNDS)


def _measure_store(store: str, rounds: int) -> Table:
    with TemporaryDirectory() as folder, start_store(store, Path(folder)) as url:
        arrivals = uvloop.run(_measure(rounds * WINDOW_SECONDS, Path(folder), url))
    rows: list[dict[str, Cell]] = []
    for name, text in LIMITS.items():
        amounts = [1 if name == "requests" else each.tokens for each in arrivals[name]]
        times = [each.time - arrivals[name][0].time for each in arrivals[name]]
        limit = Cap.parse(text).limit
        most = max(sum_minutes(times, amounts, times))
        usual = mean(sum_minutes(times, amounts, range(int(times[-1] - MINUTE))))
        rows.append({"limit": text, "most in any 60 s": most, "mean, of the limit": usual / limit})
    return Table(
        f"Gateway: rate limits, {CLIENTS} client processes on {GATEWAYS} gateways, {store}, "
        f"{rounds * WINDOW_SECONDS} s",
        rows,
        {"mean, of the limit": ".1%"},
        [f"target: never more than the limit in any 60 s, and a mean of at least {TARGET:.0%}"],
    )


def sum_minutes(
    times: Sequence[float], amounts: Sequence[int], starts: Iterable[float]
) -> Iterator[int]:
    """Return what arrived in the 60 seconds from each start."""
    sums = [0, *accumulate(amounts)]
    for start in starts:
        yield sums[bisect_left(times, start + MINUTE)] - sums[bisect_left(times, start)]


async def _measure(seconds: float, folder: Path, store: str) -> Mapping[str, list[Arrival]]:
    """Return the requests that arrive by key."""
    arrivals: defaultdict[str, list[Arrival]] = defaultdict(list)
    port = free_port()
    server = await asyncio.get_running_loop().create_server(
        lambda: NotingConnection(arrivals), "127.0.0.1", port
    )
    with ExitStack() as stack:
        keys = await _create_keys(folder, store)
        ports = [
            await asyncio.to_thread(_start_gateway, stack, folder, store, port)
            for _ in range(GATEWAYS)
        ]
        clients = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.rate_client"),
                *(str(ports[number % GATEWAYS]), str(seconds + 5), *keys),
                cwd=environment.ROOT,
            )
            for number in range(CLIENTS)
        ]
        codes = await asyncio.gather(*(client.wait() for client in clients))
        if any(codes):
            raise RuntimeError(f"clients failed: {codes}")
    server.close()
    return arrivals


def _start_gateway(stack: ExitStack, folder: Path, store: str, upstream: int) -> int:
    """Start a gateway on the shared store; return its port."""
    config, port = folder / "brim.toml", free_port()
    config.write_text(
        f'[upstreams.bench]\nendpoint = "http://127.0.0.1:{upstream}/v1"\n'
        f'[gateway]\nstore = "{store}"\n'
    )
    command = [sys.executable, "-m", "brim.cli", "serve", "--port", str(port)]
    extra = {"BRIM_CONFIG": str(config)}
    stack.enter_context(start_server("brim", command, port, "/readyz", extra=extra))
    return port


async def _create_keys(folder: Path, url: str) -> list[str]:
    """Create a key for each limit; return them as `name=secret`."""
    store = create_store(url, folder)
    await store.open()
    keys = []
    for name, limit in LIMITS.items():
        key, secret = create_key(name)
        await store.add_key(key, hash_secret(secret), [Cap.parse(limit)])
        keys.append(f"{name}={secret}")
    await store.close()
    return keys


if __name__ == "__main__":
    report.run(__doc__, tables)
