"""Session affinity: the share of prompt tokens that the caches of several upstreams serve.

    python -m benchmarks.affinity [--short] [--json]

Conversations grow through one gateway in front of some upstreams, each with a prompt cache of its
own (`brim.testing`). Once the gateway keeps each conversation at its upstream, once it spreads the
requests. The figures are counts of tokens: but for the random spreading they hold on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx

from benchmarks import report
from benchmarks.report import Cell, Options, Table
from brim.config import Config, GatewayConfig, UpstreamConfig
from brim.testing import ScriptedServer
from tests.support.gateway.process import run_gateway

UPSTREAMS = 3
CONVERSATIONS, TURNS = 24, 8
FORMATS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
REPLY = "The result is in the log. " * 20


def tables(options: Options) -> Iterator[Table]:
    conversations = CONVERSATIONS // (4 if options.short else 1)
    rows: list[dict[str, Cell]] = []
    for name, path in FORMATS.items():
        shares = {keeps: _measure(path, conversations, keeps=keeps) for keeps in (True, False)}
        rows.append({"format": name, "with affinity": shares[True], "without": shares[False]})
    yield Table(
        f"Gateway: cached share of prompt tokens, {conversations} conversations of {TURNS} turns, "
        f"{UPSTREAMS} upstreams",
        rows,
        {"with affinity": ".1%", "without": ".1%"},
    )


def _measure(path: str, conversations: int, *, keeps: bool) -> float:
    """Return the cached share of all prompt tokens."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ScriptedServer(REPLY, caches_prompts=True))
            for _ in range(UPSTREAMS)
        ]
        upstreams = {
            f"upstream-{number}": UpstreamConfig(
                server.url, ("openai", "anthropic"), cache_marks=True, window=100_000
            )
            for number, server in enumerate(servers)
        }
        config = Config(upstreams=upstreams, gateway=GatewayConfig(affinity=keeps))
        gateway = stack.enter_context(run_gateway(config))
        client = stack.enter_context(httpx.Client(base_url=gateway.url, timeout=60))
        usages = [
            usage
            for number in range(conversations)
            for usage in _converse(client, path, f"Task {number}: find the error. " * 20)
        ]
    return sum(cached for cached, _ in usages) / sum(prompt for _, prompt in usages)


def _converse(client: httpx.Client, path: str, task: str) -> Iterator[tuple[int, int]]:
    """Send a conversation turn by turn; yield the cached and all prompt tokens of each request."""
    messages = [{"role": "user", "content": task}]
    for turn in range(TURNS):
        body = {"model": "gpt-4o", "messages": messages, "max_tokens": 300}
        yield _read_usage(client.post(path, json=body).raise_for_status().json()["usage"])
        messages += [
            {"role": "assistant", "content": REPLY},
            {"role": "user", "content": f"Continue with step {turn}."},
        ]


def _read_usage(usage: dict[str, int]) -> tuple[int, int]:
    if "prompt_tokens" in usage:
        details: dict[str, int] = usage["prompt_tokens_details"]  # type: ignore[assignment]
        return details["cached_tokens"], usage["prompt_tokens"]
    read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
    return read, usage["input_tokens"] + read + written


if __name__ == "__main__":
    report.run(__doc__, tables)
