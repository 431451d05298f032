"""A fuzzer for the gateway: `python -m tests.support.gateway.fuzz`.

It runs until it is stopped, or for a number of requests, with new ones each time, and prints each
that caused an internal error. The tests send a few fixed ones.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import httpx
from hypothesis import HealthCheck, given, settings

from brim.testing import ScriptedServer
from tests.support.gateway.process import config_of, run_gateway
from tests.support.gateway.strategies import requests

WINDOW: Final = 2_000


def ask(client: httpx.Client, path: str, raw: bytes, headers: Mapping[str, str]) -> None:
    """Send a request; check that it causes no internal error."""
    answer = client.post(path, content=raw, headers=dict(headers))
    assert answer.status_code in (200, 400), f"{answer.status_code} {answer.text}"
    assert answer.status_code == 200 or "error" in answer.json()


@contextmanager
def client_of_a_gateway() -> Iterator[httpx.Client]:
    """A client of a gateway whose upstream answers everything; long bodies do not fit."""
    with (
        ScriptedServer("Hello.", window=WINDOW, tokenizer_model="gpt-4o") as upstream,
        run_gateway(config_of(upstream.url, reply=50)) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        yield client


def fuzz(number: int) -> None:
    with tempfile.TemporaryDirectory() as state:
        os.environ["BRIM_STATE"] = state
        with client_of_a_gateway() as client:

            @settings(max_examples=number, derandomize=False, deadline=None, database=None,
                      suppress_health_check=[*HealthCheck])  # fmt: skip
            @given(requests())
            def send(request: tuple[str, bytes, dict[str, str]]) -> None:
                ask(client, *request)

            send()


if __name__ == "__main__":
    fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else sys.maxsize)
