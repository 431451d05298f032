"""Starts the MCP server of the tests."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brim.config import McpConfig

SCRIPT = Path(__file__).with_name("mcp_server.py")
SECRET = "hush-hush"


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def over_http() -> Iterator[tuple[subprocess.Popen[bytes], McpConfig]]:
    """Run an MCP server over HTTP; yield its process and its configuration."""
    port = free_port()
    with subprocess.Popen([sys.executable, SCRIPT, str(port)], stderr=subprocess.DEVNULL) as child:
        until(lambda: is_listening(port) or child.poll() is not None)
        yield child, McpConfig(url=f"http://127.0.0.1:{port}/mcp", headers={"X-Key": SECRET})
        child.kill()
