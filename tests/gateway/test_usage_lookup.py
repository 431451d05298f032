"""A response whose end did not arrive is charged by the provider's own record, if it has one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from brim.gateway import usage_lookup
from tests.support.gateway.accounts import (
    MAX_COST,
    create_secret,
    ledger,
    make_priced_config,
    only_row,
    open_request,
    read_cap_usage,
    settled_cost,
)
from tests.support.gateway.process import SECRET, Running, run_gateway
from tests.support.gateway.requests import RESPONSES, wait_until

CHAT_OPENING = b'data: {"id": "gen-1", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}'
RESPONSE_OPENING = b'data: {"type": "response.created", "response": {"id": "resp_1", "output": []}}'
GENERATION = {
    "data": {
        "id": "gen-1",
        "total_cost": 0.000321,
        "native_tokens_prompt": 11,
        "native_tokens_completion": 7,
        "native_tokens_cached": 0,
    }
}
RESPONSE = {"id": "resp_1", "usage": {"input_tokens": 11, "output_tokens": 7}}


class Provider:
    """A server whose streams stop after their opening, and that keeps their usage by id."""

    def __init__(self) -> None:
        self.opening = CHAT_OPENING
        self.records: dict[str, Any] = {}
        """What it returns by path."""
        self.requests: list[tuple[str, str]] = []
        """Path and key of each lookup."""
        self.has_begun, self.held = threading.Event(), threading.Event()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                self.wfile.write(provider.opening + b"\n\n")
                self.wfile.flush()
                provider.has_begun.set()
                provider.held.wait(20)

            def do_GET(self) -> None:
                if "id=" in self.path or "/responses/" in self.path:
                    provider.requests.append((self.path, self.headers.get("authorization", "")))
                found = provider.records.get(self.path)
                raw = json.dumps(found).encode()
                self.send_response(404 if found is None else 200)
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setattr(usage_lookup, "DELAYS", (0.05, 0.05, 0.1))
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield provider
    provider.held.set()
    provider.server.shutdown()
    provider.server.server_close()


@pytest.fixture
def anna() -> str:
    return create_secret("anna", "1000/day")


def run_with(provider: Provider, usage_path: str, **settings: Any) -> Any:
    config = make_priced_config(
        provider.url, usage_path=usage_path, key_env="KEY", stream_usage=False, **settings
    )
    return run_gateway(config, {"KEY": SECRET})


def disconnect_early(gateway: Running, provider: Provider, secret: str, path: str) -> None:
    with open_request(gateway, secret, path, stream=True, **_reply_limit(path)):
        assert provider.has_begun.wait(10)
        for _ in range(3):  # the gateway reads what has arrived before it answers
            httpx.get(f"{gateway.url}/healthz")
    wait_until(lambda: not gateway.gateway.running)


def _reply_limit(path: str) -> dict[str, Any]:
    return {"max_output_tokens": 100} if path == RESPONSES else {"max_tokens": 100}


def test_a_generation_is_charged_as_the_provider_recorded_it(provider: Provider, anna: str) -> None:
    with run_with(provider, "/generation?id={id}") as gateway:
        disconnect_early(gateway, provider, anna, "/v1/chat/completions")
        wait_until(lambda: len(provider.requests) == 1)  # it is not there yet
        assert ledger() == []
        assert read_cap_usage()["key dollars"][1] > 0
        provider.records["/v1/generation?id=gen-1"] = GENERATION
        wait_until(lambda: len(ledger()) == 1)
    row = only_row()
    assert not row.is_estimated
    assert (row.charge.usage.input, row.charge.usage.output) == (11, 7)
    assert settled_cost(row) == 321
    assert set(provider.requests) == {("/v1/generation?id=gen-1", f"Bearer {SECRET}")}


def test_a_stored_response_is_charged_by_its_usage(provider: Provider, anna: str) -> None:
    provider.opening = RESPONSE_OPENING
    provider.records["/v1/responses/resp_1"] = RESPONSE
    with run_with(provider, "/responses/{id}") as gateway:
        disconnect_early(gateway, provider, anna, RESPONSES)
        wait_until(lambda: len(ledger()) == 1)
    row = only_row()
    assert not row.is_estimated
    assert settled_cost(row) == 2 * 11 + 10 * 7


@pytest.mark.parametrize(
    "record",
    [None, {"data": {}}, {"usage": None}, {"data": {"native_tokens_prompt": -1}}, ["x"]],
)
def test_without_a_usable_record_the_reservation_is_charged(
    provider: Provider, anna: str, record: Any
) -> None:
    provider.records["/v1/generation?id=gen-1"] = record
    with run_with(provider, "/generation?id={id}") as gateway:
        disconnect_early(gateway, provider, anna, "/v1/chat/completions")
        wait_until(lambda: len(ledger()) == 1)
    row = only_row()
    assert row.is_estimated
    assert settled_cost(row) == MAX_COST


def test_a_gateway_that_stops_does_not_wait_for_a_record(
    provider: Provider, anna: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_lookup, "DELAYS", (60.0,))
    with run_with(provider, "/generation?id={id}") as gateway:
        disconnect_early(gateway, provider, anna, "/v1/chat/completions")
    assert settled_cost(only_row()) == MAX_COST


def test_an_id_cannot_change_the_path(provider: Provider, anna: str) -> None:
    provider.opening = CHAT_OPENING.replace(b"gen-1", b"../keys?x=1")
    with run_with(provider, "/generation?id={id}") as gateway:
        disconnect_early(gateway, provider, anna, "/v1/chat/completions")
        wait_until(lambda: len(ledger()) == 1)
    assert provider.requests == []
