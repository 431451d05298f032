"""A stopping gateway tells its load balancer before it closes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from brim.testing import ScriptedServer

PATIENCE = 30.0


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`brim serve` with an hour to drain: its address and process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BRIM_")}
    with (
        ScriptedServer("Hello.") as provider,
        subprocess.Popen(
            [sys.executable, "-m", "brim.cli", "serve", "--port", "0", "--json"],
            env={
                **clean,
                "XDG_CONFIG_HOME": str(tmp_path),
                "BRIM_STATE": str(tmp_path),
                "BRIM_UPSTREAMS__U__ENDPOINT": provider.url,
                "BRIM_GATEWAY__DRAIN_SECONDS": "3600",
            },
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"], process
        finally:
            process.kill()


def wait_until_stopping(address: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while httpx.get(f"{address}/readyz").status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_draining_gateway_is_not_ready_but_still_answers(
    gateway: tuple[str, subprocess.Popen[str]],
) -> None:
    address, process = gateway
    process.send_signal(signal.SIGTERM)
    wait_until_stopping(address)
    assert httpx.get(f"{address}/readyz").json()["status"] == "stopping"
    body = {"model": "any", "messages": [{"role": "user", "content": "Hello?"}]}
    assert httpx.post(f"{address}/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_draining(
    gateway: tuple[str, subprocess.Popen[str]], second: signal.Signals
) -> None:
    address, process = gateway
    process.send_signal(signal.SIGTERM)
    wait_until_stopping(address)
    process.send_signal(second)
    assert process.wait(PATIENCE) == 0


def test_ctrl_c_stops_without_draining(gateway: tuple[str, subprocess.Popen[str]]) -> None:
    _, process = gateway
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0
