"""A gateway on a free port of this machine.

    with running(config_of(provider), {"KEY": "secret"}) as gateway:
        openai.OpenAI(base_url=f"{gateway.url}/v1")

Calibrations and the account store are in the folder BRIM_STATE: two gateways, one after the other,
are a restarted gateway.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import uvloop

from brim.config import Config, UpstreamConfig
from brim.gateway import logs
from brim.gateway.asgi import create_app
from brim.gateway.gateway import Gateway
from brim.gateway.server import HttpServer, open_listener
from brim.wire.formats import FormatName

FORMATS: Final[tuple[FormatName, ...]] = ("openai", "anthropic", "responses")
SECRET: Final = "sk-upstream-d41d8cd98f"
"""The key of an upstream."""


class Running(NamedTuple):
    """A running gateway."""

    url: str
    """Its address, without a path."""
    gateway: Gateway


def config_of(*endpoints: str, **settings: Any) -> Config:
    """A configuration with upstreams that support all formats, with the same settings."""
    given = {"format": FORMATS, **settings}
    return Config(
        upstreams={
            f"upstream-{place}": UpstreamConfig(endpoint=endpoint, **given)
            for place, endpoint in enumerate(endpoints, 1)
        }
    )


@contextmanager
def run_gateway(
    config: Config, environment: Mapping[str, str] | None = None, port: int = 0
) -> Iterator[Running]:
    """Run a gateway until the block ends; running responses may then end."""
    state = {name: value for name, value in os.environ.items() if name == "BRIM_STATE"}
    app = create_app(config, {**state, **(environment or {})})
    server, is_up = HttpServer(app, stop_seconds=5, accept_grace_seconds=0), threading.Event()

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(server.run(listener, is_up.set))
        finally:
            is_up.set()

    with open_listener("127.0.0.1", port) as listener:
        thread = threading.Thread(target=work)
        thread.start()
        is_up.wait()
        try:
            yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", app.gateway)
        finally:
            server.stop()
            thread.join()


@contextmanager
def run_serve(
    environment: Mapping[str, str], *, logs: int = subprocess.DEVNULL
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `brim serve` as a process: its address and process; it is killed afterwards."""
    command = [sys.executable, "-m", "brim.cli", "serve", "--port", "0", "--json"]
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=logs,
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"], process
        finally:
            process.kill()


@contextmanager
def restored_loggers() -> Iterator[None]:
    """Restore all loggers afterwards."""
    loggers = [logging.getLogger(name) for name in (*logs.LOGGERS, *logs.SILENCED_LOGGERS)]
    before = [(each.handlers, each.propagate, each.level) for each in loggers]
    try:
        yield
    finally:
        for each, (handlers, propagate, level) in zip(loggers, before, strict=True):
            each.handlers, each.propagate = handlers, propagate
            each.setLevel(level)
