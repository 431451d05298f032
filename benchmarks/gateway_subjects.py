"""The subjects of the gateway benchmark: a bare relay, brim, and LiteLLM's proxy.

Each is a process of its own with one worker, and gets its requests from a port of its own.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import environment
from benchmarks.gateway_processes import Server, free_port, start_server
from brim.gateway.accounts import create_store
from brim.gateway.accounts.caps import Cap
from brim.gateway.accounts.keys import create_key, hash_secret
from tests.support.accounts import postgres, valkey

RELAY, BRIM, LITELLM = "bare relay", "brim", "LiteLLM"
TRACED = "brim, traced"
SQLITE, POSTGRES, REDIS = "SQLite", "PostgreSQL", "Valkey"
CHAT_MODELS = ("gpt-4o", "gpt-4.1")
MESSAGES_MODELS = ("claude-sonnet-4-5", "claude-opus-4-6")
"""The first of each has a window too small for a history of 1 MB; the second does not."""
KEY = f"sk-{secrets.token_hex(32)}"
"""The key of the clients; LiteLLM does not start without a master key."""
HIGH_CAPS = ("1000000/day", "10000000 requests/minute", "1000000M tokens/minute")
"""Limits that the benchmark never reaches."""
OURS = {"PYTHONPATH": str(environment.ROOT)}


@contextmanager
def upstream() -> Iterator[str]:
    """Run the upstream of all gateways; yield its address."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.gateway_upstream", str(port)]
    with start_server("upstream", command, port, "/healthz", extra=OURS):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def relay(upstream: str) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.gateway_relay", upstream, str(port)]
    with start_server(RELAY, command, port, "/healthz", extra=OURS) as server:
        yield server


@contextmanager
def brim(
    upstream: str, name: str = BRIM, store: str = "", *, traces: bool = False
) -> Iterator[Server]:
    """Run `brim serve`; with a store, a key has caps that are never reached.

    With `traces`, every request is traced and sent to the upstream.
    """
    port = free_port()
    command = [sys.executable, "-m", "brim.cli", "serve", "--port", str(port)]
    lines = f'[upstreams.bench]\nendpoint = "{upstream}/v1"\nformat = ["openai", "anthropic"]\n'
    lines += f'[gateway]\nstore = "{store}"\n' if store else ""
    lines += f'[gateway]\notlp_endpoint = "{upstream}"\n' if traces else ""
    if store:
        asyncio.run(_add_key(store))
    with _file("brim.toml", lines) as path:
        own = {"BRIM_CONFIG": str(path), "BRIM_STATE": str(path.parent)}
        with start_server(name, command, port, "/readyz", extra=own) as server:
            yield server


@contextmanager
def brim_with_caps(upstream: str) -> Iterator[list[Server]]:
    """Run brim with each store; the key has a cap, and limits of requests and tokens per minute."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        stores = {
            SQLITE: str(Path(folder, "accounts.sqlite3")),
            POSTGRES: stack.enter_context(postgres.run_server()),
            REDIS: stack.enter_context(valkey.run_server()),
        }
        yield [
            stack.enter_context(brim(upstream, f"{BRIM}, {name}", store))
            for name, store in stores.items()
        ]


async def _add_key(store: str) -> None:
    account_store = create_store(store, Path())
    await account_store.open()
    key, _ = create_key("bench", "benchmarks")
    await account_store.add_key(key, hash_secret(KEY), list(map(Cap.parse, HIGH_CAPS)))
    await account_store.close()


@contextmanager
def litellm(upstream: str) -> Iterator[Server]:
    """Run LiteLLM's proxy without a database or callbacks; it starts slowly."""
    port = free_port()
    rows = [_deployment(name, "openai", f"{upstream}/v1") for name in CHAT_MODELS]
    rows += [_deployment(name, "anthropic", upstream) for name in MESSAGES_MODELS]
    lines = json.dumps({"model_list": rows, "litellm_settings": {"telemetry": False}})
    program = str(environment.program("litellm", environment.GATEWAY))
    settings = {
        "LITELLM_MASTER_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
    }
    with _file("litellm.yaml", lines) as path:
        command = [program, "--config", str(path), "--host", "127.0.0.1", "--port", str(port)]
        ready = "/health/liveliness"
        with start_server(LITELLM, command, port, ready, patience=180, extra=settings) as server:
            yield server


def _deployment(name: str, provider: str, address: str) -> dict[str, object]:
    how = {"model": f"{provider}/{name}", "api_base": address, "api_key": KEY}
    return {"model_name": name, "litellm_params": how}


@contextmanager
def _file(name: str, text: str) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(text)
        yield path
