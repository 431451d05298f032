"""The cost of the gateway itself: CPU time per request, concurrent streams, memory.

    python -m benchmarks.gateway [--short] [--no-peers] [--json]

The tables of `benchmarks.affinity`, `benchmarks.reservations` and `benchmarks.rates` are part of
it; `benchmarks.fuzz` and `benchmarks.soak` are not, because they take hours.

The upstream, the load and each gateway are processes of their own on this machine. A figure is the
CPU time of a gateway's process by the number of its requests, the best of some rounds in which the
gateways take turns. The baseline is a bare relay (`gateway_relay.py`): the ratios hold on any
machine, the times on this one only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count

from benchmarks import affinity, environment, rates, report, reservations
from benchmarks import gateway_subjects as subjects
from benchmarks.gateway_bodies import Ask
from benchmarks.gateway_load import EVENTS, STALL, Order, Outcome, outcome_from
from benchmarks.gateway_processes import Server, StartError, is_measurable, resident_bytes
from benchmarks.gateway_subjects import BRIM, CHAT_MODELS, LITELLM, MESSAGES_MODELS, RELAY, TRACED
from benchmarks.report import Cell, Options, Table
from benchmarks.shell import load as how_busy


@dataclass(frozen=True)
class Size:
    """Numbers of requests and rounds."""

    rounds: int = 8
    requests: int = 1_000
    """Requests with small bodies per round; a quarter of it for streams."""
    histories: int = 10
    """Requests with the long history per round."""
    peer_rounds: int = 2
    peer_share: int = 10
    """The slower peer gets one in this many requests."""
    waves: int = 4
    """Streams that each connection reads in sequence."""
    step: int = 10_000
    """Requests between two measurements of memory."""


SHORT = Size(rounds=3, requests=400, histories=4, peer_rounds=1, waves=1, step=1_000)


@dataclass(frozen=True)
class Case:
    """A kind of request with a small body, and brim's target."""

    title: str
    ask: Ask
    concurrency: int = 32
    most: float | None = None
    """Maximum multiple of the relay's CPU time."""


SEEN, FRESH, LONG = Ask(), Ask(text="fresh"), Ask(model=CHAT_MODELS[1], text="long")
MESSAGES = Ask("messages", MESSAGES_MODELS[0])
SEEN_TARGET, FRESH_TARGET = 1.75, 2.25
CASES = (
    *(Case("chat, seen before", SEEN, number, SEEN_TARGET) for number in (1, 32, 256)),
    *(Case("chat, fresh", FRESH, number, FRESH_TARGET) for number in (1, 32, 256)),
    Case("messages, seen before", MESSAGES, most=SEEN_TARGET),
    Case("messages, fresh", replace(MESSAGES, text="fresh"), most=FRESH_TARGET),
    Case("chat, a stream at once", replace(SEEN, stream=True)),
    Case("chat, a stream paced", replace(SEEN, stream=True, pace=10)),
    Case("messages, a stream at once", replace(MESSAGES, stream=True)),
    Case("messages, a stream paced", replace(MESSAGES, stream=True, pace=10)),
)
PEER_TARGET = 20
CAPS_TARGET = 2.8
TRACES_TARGET = 0.15
HISTORIES = {
    "chat, all of it fits": Ask("chat", CHAT_MODELS[1], "history"),
    "chat, most is left out": Ask("chat", CHAT_MODELS[0], "history"),
    "messages, all of it fits": Ask("messages", MESSAGES_MODELS[1], "history"),
    "messages, most is left out": Ask("messages", MESSAGES_MODELS[0], "history"),
}
HISTORY_TARGET = 25
STREAMS = 256
PACES = (50, 10)
STEPS = 5
FILLING = 600
"""Long requests that are sent first, until all caches are full."""
FLAT = 0.05
"""Growth of memory after the first step that still counts as flat."""


class FailedAnswersError(Exception):
    """Some responses failed."""


class Load:
    """The process that sends the requests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._seeds = count(1)

    def send(
        self, server: Server, ask: Ask, requests: int, concurrency: int, seed: int | None = None
    ) -> Outcome:
        """Send requests and wait; without a seed, fresh text is new in this run."""
        seed = next(self._seeds) if seed is None else seed
        order = Order(server.port, server.pid, ask, requests, concurrency, seed, subjects.KEY)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        outcome = outcome_from(self._process.stdout.readline())
        if outcome.failed:
            words = f"{server.name}: {outcome.failed} of {requests} failed: {outcome.reason[:500]}"
            if server.name != LITELLM:
                raise FailedAnswersError(words)
            print(words, file=sys.stderr)
        return outcome


@contextmanager
def start_load() -> Iterator[Load]:
    command = [sys.executable, "-m", "benchmarks.gateway_load"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, cwd=environment.ROOT
    ) as process:
        yield Load(process)


@dataclass(frozen=True)
class Bench:
    """The running processes and the size of the benchmark."""

    load: Load
    servers: Sequence[Server]
    size: Size
    notes: Sequence[str] = ()

    def best(self, case: Case) -> dict[str, float]:
        """Return the CPU seconds per request of each gateway; they take turns."""
        found: dict[str, list[float]] = {server.name: [] for server in self.servers}
        for number in range(self.size.rounds):
            for server in self.servers:
                if server.name != LITELLM or number < self.size.peer_rounds:
                    found[server.name].append(self._once(server, case))
        return {name: min(times) for name, times in found.items()}

    def _once(self, server: Server, case: Case) -> float:
        requests = self.size.requests // (4 if case.ask.stream else 1)
        if server.name == LITELLM:
            requests = max(requests // self.size.peer_share, case.concurrency)
        return self.load.send(server, case.ask, requests, case.concurrency).cpu_each

    def warm_up(self) -> None:
        """Send the repeated texts to every gateway, so that everything is loaded and cached."""
        for server in self.servers:
            for case in CASES:
                requests = 16 if server.name == LITELLM else 256
                self.load.send(server, case.ask, requests, 16)


def small(bench: Bench) -> Table:
    rows: list[dict[str, Cell]] = []
    for case in CASES:
        best = bench.best(case)
        row: dict[str, Cell] = {"small bodies": case.title, "at once": case.concurrency}
        row |= {f"{name} µs": 1e6 * seconds for name, seconds in best.items()}
        row |= {"brim ÷ relay": best[BRIM] / best[RELAY], "target ≤": case.most}
        if LITELLM in best:
            row["LiteLLM ÷ brim"] = best[LITELLM] / best[BRIM]
        rows.append(row)
    formats = dict.fromkeys([f"{server.name} µs" for server in bench.servers], ",.0f")
    target = f"target of LiteLLM ÷ brim where answers are whole: ≥ {PEER_TARGET}"
    return Table(
        "Gateway: CPU per request",
        rows,
        {**formats, "brim ÷ relay": ".2f", "LiteLLM ÷ brim": ",.0f"},
        [*bench.notes, target, how_busy()],
    )


def caps(bench: Bench) -> Table:
    """Measure a key with a cap and rate limits: a reservation and a ledger row per request."""
    relay, *capped = (server.name for server in bench.servers)
    rows: list[dict[str, Cell]] = []
    for number in (1, 32, 256):
        best = bench.best(Case("", FRESH, number))
        row: dict[str, Cell] = {"chat, fresh, cap and rate limits": "at once", "number": number}
        row |= {f"{name} µs": 1e6 * seconds for name, seconds in best.items()}
        row |= {f"{name} ÷ relay": best[name] / best[relay] for name in capped}
        rows.append(row)
    formats = dict.fromkeys([f"{server.name} µs" for server in bench.servers], ",.0f")
    ratios = dict.fromkeys([f"{name} ÷ relay" for name in capped], ".2f")
    target = (
        f"target of {capped[0]} ÷ relay: ≤ {CAPS_TARGET}; what stores take themselves is not in"
    )
    return Table("Gateway: CPU per request", rows, formats | ratios, [target, how_busy()])


def traces(bench: Bench) -> Table:
    """Measure what OpenTelemetry adds: a span and four measurements for each request."""
    rows: list[dict[str, Cell]] = []
    for number in (1, 32, 256):
        best = bench.best(Case("", FRESH, number))
        row: dict[str, Cell] = {"chat, fresh": "at once", "number": number}
        row |= {f"{name} µs": 1e6 * seconds for name, seconds in best.items()}
        rows.append({**row, "traces add": best[TRACED] / best[BRIM] - 1})
    formats = dict.fromkeys([f"{server.name} µs" for server in bench.servers], ",.0f")
    target = f"target of what traces add: ≤ {TRACES_TARGET:.0%}"
    return Table(
        "Gateway: CPU per request", rows, {**formats, "traces add": "+.0%"}, [target, how_busy()]
    )


def histories(bench: Bench) -> Table:
    rows: list[dict[str, Cell]] = []
    for title, ask in HISTORIES.items():
        row: dict[str, Cell] = {"1 MB": title}
        for server in bench.servers:
            first, best = _grow(bench, server, ask)
            row |= {f"{server.name} ms": best, f"{server.name}, first": first}
        rows.append(row)
    return Table(
        "Gateway: a history of 1 MB that grows by an exchange at each request, CPU ms per request",
        rows,
        dict.fromkeys([name for name in rows[0] if name != "1 MB"], ",.1f"),
        [*bench.notes, f"target of brim, but for the first request: < {HISTORY_TARGET}"],
    )


def _grow(bench: Bench, server: Server, ask: Ask) -> tuple[float, float]:
    """Return the CPU milliseconds of the first request, and of each later one."""
    peer = server.name == LITELLM
    requests, rounds = (2, 1) if peer else (bench.size.histories, bench.size.rounds)
    first = bench.load.send(server, ask, 1, 1, seed=0).cpu
    starts = range(1, 1 + requests * rounds, requests)
    grown = [bench.load.send(server, ask, requests, 1, seed=start).cpu_each for start in starts]
    return 1000 * first, 1000 * min(grown)


def streams(bench: Bench) -> Table:
    rows: list[dict[str, Cell]] = []
    for pace in PACES:
        ask = replace(SEEN, stream=True, pace=pace)
        for server in bench.servers:
            if server.name != LITELLM:
                found = bench.load.send(server, ask, STREAMS * bench.size.waves, STREAMS)
                rows.append(
                    {"an event every": f"{pace} ms", "through": server.name, **_waits(found)}
                )
    return Table(
        f"Gateway: {STREAMS} streams at once, {EVENTS} events each, ms",
        rows,
        dict.fromkeys(["gap median", "gap 99 %", "gap worst", "whole", "whole worst"], ",.0f"),
        [
            "a gap is a client's wait for the next piece of its answer, the first one included; "
            f"a stall is one of more than {STALL:.0f} s (target: none)",
            how_busy(),
        ],
    )


def _waits(found: Outcome) -> dict[str, Cell]:
    assert found.gaps is not None
    assert found.answers is not None
    return {
        "gap median": 1000 * found.gaps.median,
        "gap 99 %": 1000 * found.gaps.late,
        "gap worst": 1000 * found.gaps.worst,
        "stalls": found.stalls,
        "whole": 1000 * found.answers.median,
        "whole worst": 1000 * found.answers.worst,
        "CPU share": f"{found.cpu / found.seconds:.0%}",
    }


def memory(load: Load, upstream: str, size: Size) -> Table:
    kinds = {"JSON": [FRESH], "JSON and streams": [FRESH, replace(FRESH, stream=True)]}
    rows: list[dict[str, Cell]] = []
    for kind, asks in kinds.items():
        for subject in (subjects.relay, subjects.brim):
            with subject(upstream) as server:
                sizes = [resident_bytes(server.pid), *_measure_memory(load, server, asks, size)]
            row: dict[str, Cell] = {"answers": kind, "through": server.name}
            marks = ["start", "full", *(f"{size.step * (step + 1):,}" for step in range(STEPS))]
            row |= {mark: held / 2**20 for mark, held in zip(marks, sizes, strict=True)}
            rows.append({**row, "growth": sizes[-1] / sizes[2] - 1})
    columns = list(rows[0])[2:-1]
    return Table(
        "Gateway: memory after this many requests, fresh text, MB",
        rows,
        {**dict.fromkeys(columns, ",.1f"), "growth": "+.1%"},
        [
            f"full: after {FILLING:,} requests of 100 kB, which fill what is remembered for speed; "
            f"growth from {columns[2]} requests to {columns[-1]}, target of brim: ≤ {FLAT:.0%}"
        ],
    )


def _measure_memory(load: Load, server: Server, asks: Sequence[Ask], size: Size) -> Iterator[int]:
    load.send(server, LONG, FILLING, 4)
    yield resident_bytes(server.pid)
    for _ in range(STEPS):
        for ask in asks:
            load.send(server, ask, size.step // len(asks), 32)
        yield resident_bytes(server.pid)


def tables(options: Options) -> Iterator[Table]:
    if not is_measurable():
        yield Table("Gateway", [], notes=["not measured: only Linux shows what a process uses"])
        return
    size = SHORT if options.short else Size()
    with start_load() as load, subjects.upstream() as upstream:
        yield from _compare_servers(load, upstream, size, peers=options.peers)
        with subjects.relay(upstream) as relay, subjects.brim_with_caps(upstream) as stores:
            bench = Bench(load, [relay, *stores], size)
            bench.warm_up()
            yield caps(bench)
        with (
            subjects.brim(upstream) as plain,
            subjects.brim(upstream, TRACED, traces=True) as traced,
        ):
            bench = Bench(load, [plain, traced], size)
            bench.warm_up()
            yield traces(bench)
        yield from affinity.tables(options)
        yield from reservations.tables(options)
        yield from rates.tables(options)
        yield memory(load, upstream, size)


def _compare_servers(load: Load, upstream: str, size: Size, *, peers: bool) -> Iterator[Table]:
    with subjects.relay(upstream) as relay, subjects.brim(upstream) as brim, ExitStack() as stack:
        servers = [relay, brim]
        missing = environment.ready(environment.GATEWAY) if peers else "peers left out as asked"
        if not missing:
            try:
                servers.append(stack.enter_context(subjects.litellm(upstream)))
            except StartError as error:
                missing = f"LiteLLM left out: {error}"
        bench = Bench(load, servers, size, [missing] if missing else [])
        bench.warm_up()
        yield small(bench)
        yield histories(bench)
        yield streams(bench)


if __name__ == "__main__":
    report.run(__doc__, tables)
