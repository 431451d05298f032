"""The clients of the gateway benchmark, in one process that is not measured.

    python -m benchmarks.gateway_load

It reads orders from its input, a line of JSON each, and prints what came of each. Connections are
kept; each sends its next request when the answer to the last one is whole. An answer counts as
failed where it is none of status 200, or a stream without all of its events. CPU time is that of
the process behind the port and of its children, read just before the first request and just after
the last answer.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import Any, cast

import uvloop

from benchmarks.gateway_bodies import PATHS, Ask, bodies
from benchmarks.gateway_processes import cpu_seconds

EVENTS = 33
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
ACCEPTED = b"HTTP/1.1 200 "
STREAM_END = b"\r\n0\r\n\r\n"
WRITTEN_AHEAD = 4_000
"""Number of bodies built before timing starts; later ones are built between responses."""
STALL = 1.0
"""Maximum seconds between two parts of a response."""
SETTLING = 0.05
"""Seconds after the last response, so that work such as logging is measured too."""


@dataclass(frozen=True)
class Order:
    """The requests to send, and the address."""

    port: int
    pid: int
    ask: Ask
    requests: int
    concurrency: int
    seed: int = 0
    key: str = ""
    limit: float = 60.0
    """Seconds after which the run stops with the results so far."""


@dataclass(frozen=True)
class Spread:
    """Percentiles of durations in seconds."""

    median: float
    late: float
    """99th percentile."""
    worst: float


@dataclass(frozen=True)
class Outcome:
    """The result of an order."""

    done: int
    failed: int
    cpu: float
    seconds: float
    reason: str = ""
    """The reason of the first failure."""
    stalls: int = 0
    """Gaps longer than a second."""
    gaps: Spread | None = None
    """Times between the parts of a response, including the time to the first one."""
    answers: Spread | None = None
    """Times from a request to the end of its response."""

    @property
    def cpu_each(self) -> float:
        """CPU seconds per request; infinite if there was no response."""
        return self.cpu / self.done if self.done else math.inf


@dataclass
class Tally:
    """Measurements of all connections."""

    done: int = 0
    failures: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)


class Client(asyncio.Protocol):
    """One connection that sends requests until there are no more."""

    transport: asyncio.Transport

    def __init__(self, requests: Iterator[bytes], tally: Tally, *, streamed: bool) -> None:
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._tally = tally
        self._streamed = streamed
        self._pieces: list[bytes] = []
        self._waits = False
        self._began = self._last = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        request = next(self._requests, None)
        self._waits = request is not None
        if request is None:
            self.transport.close()
            return
        self._pieces = []
        self._began = self._last = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._tally.gaps.append(now - self._last)
        self._last = now
        self._pieces.append(data)
        if self._is_whole():
            self._tally.answers.append(now - self._began)
            self._judge(b"".join(self._pieces))
            self._ask()

    def _is_whole(self) -> bool:
        if self._streamed and self._pieces[0].startswith(ACCEPTED):
            return b"".join(self._pieces[-2:]).endswith(STREAM_END)
        answer = b"".join(self._pieces)
        end = answer.find(b"\r\n\r\n") + 4
        length = LENGTH.search(answer, 0, end)
        return end >= 4 and len(answer) >= end + int(length[1] if length else 0)

    def _judge(self, answer: bytes) -> None:
        events = answer.count(b"data: ")
        if not answer.startswith(ACCEPTED) or (self._streamed and events < EVENTS):
            self._tally.failures.append(answer[:2000].decode(errors="replace"))
        else:
            self._tally.done += 1

    def connection_lost(self, error: Exception | None) -> None:
        if self._waits:
            self._tally.failures.append(f"the connection was lost: {error}")
        if not self.finished.done():
            self.finished.set_result(None)


def requests(order: Order) -> Iterator[bytes]:
    head = (
        f"POST {PATHS[order.ask.format]} HTTP/1.1\r\nhost: 127.0.0.1:{order.port}\r\n"
        f"content-type: application/json\r\nauthorization: Bearer {order.key}\r\n"
        f"x-api-key: {order.key}\r\nanthropic-version: 2023-06-01\r\naccept: */*\r\n"
    )
    chosen = islice(bodies(order.ask, order.seed), order.requests)
    for body in chosen:
        yield f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def _ahead(made: Iterator[bytes]) -> Iterator[bytes]:
    """Return the same requests, many of them built in advance."""
    return chain(list(islice(made, WRITTEN_AHEAD)), made)


async def run(order: Order) -> Outcome:
    made, tally = _ahead(requests(order)), Tally()
    before, began = cpu_seconds(order.pid), time.perf_counter()
    with suppress(TimeoutError):
        async with asyncio.timeout(order.limit):
            await asyncio.gather(
                *(_run_connection(order, made, tally) for _ in range(order.concurrency))
            )
    seconds = time.perf_counter() - began
    await asyncio.sleep(SETTLING)
    return Outcome(
        done=tally.done,
        failed=len(tally.failures),
        cpu=cpu_seconds(order.pid) - before,
        seconds=seconds,
        reason=tally.failures[0] if tally.failures else "",
        stalls=sum(gap > STALL for gap in tally.gaps),
        gaps=_spread(tally.gaps),
        answers=_spread(tally.answers),
    )


async def _run_connection(order: Order, made: Iterator[bytes], tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_connection(
        lambda: Client(made, tally, streamed=order.ask.stream), "127.0.0.1", order.port
    )
    try:
        await client.finished
    finally:
        transport.close()


def _spread(times: Sequence[float]) -> Spread | None:
    if len(times) < 2:
        return None
    hundredths = statistics.quantiles(times, n=100, method="inclusive")
    return Spread(statistics.median(times), hundredths[98], max(times))


def order_from(line: str) -> Order:
    fields: dict[str, Any] = json.loads(line)
    return Order(**fields | {"ask": Ask(**fields["ask"])})


def outcome_from(line: str) -> Outcome:
    fields: dict[str, Any] = json.loads(line)
    spreads = {name: Spread(**fields[name]) for name in ("gaps", "answers") if fields[name]}
    return Outcome(**fields | spreads)


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(asdict(uvloop.run(run(order_from(line))))), flush=True)


if __name__ == "__main__":
    main()
