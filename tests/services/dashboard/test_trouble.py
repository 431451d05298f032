"""The dashboard reports a failing gateway or account store, and keeps its data."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import expect

from brim.testing import ScriptedServer
from tests.support.accounts import valkey
from tests.support.gateway.accounts import bearer_headers, create_secret, with_gateway
from tests.support.gateway.process import run_gateway, run_serve
from tests.support.gateway.requests import CHAT, ask
from tests.support.services.browser import OpenTab, config, rows, run_in_thread, sign_in


@contextmanager
def serve_with_keys(
    provider: ScriptedServer, place: Path
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of `brim serve`, and its process."""
    own = {"XDG_CONFIG_HOME": str(place), "BRIM_UPSTREAMS__U__ENDPOINT": provider.url}
    with run_serve(own) as found:
        yield found


def test_a_stopped_gateway_is_reported_and_data_stays(visit: OpenTab) -> None:
    with ScriptedServer("Hello.") as provider:
        with run_gateway(config(provider.url)) as server:
            ask(server, CHAT, "hi")
            page = visit(server).page
            expect(rows(page)).to_have_count(1)
        alert = page.get_by_role("alert").filter(visible=True)
        expect(alert).to_contain_text("The gateway does not respond")
        expect(page.get_by_role("status")).to_have_text("No response")
        expect(rows(page)).to_have_count(1)


def test_a_silent_gateway_is_reported_before_the_timeout(visit: OpenTab, state: Path) -> None:
    with (
        ScriptedServer("Hello.") as provider,
        serve_with_keys(provider, state) as (address, process),
    ):
        page = visit(address).page
        pulse, alert = page.get_by_role("status"), page.get_by_role("alert").filter(visible=True)
        expect(pulse).to_have_text("Live")
        process.send_signal(signal.SIGSTOP)
        expect(pulse).to_have_text("No response")
        expect(alert).to_contain_text("The gateway does not respond")
        process.send_signal(signal.SIGCONT)
        expect(pulse).to_have_text("Live")
        expect(alert).to_be_hidden()


def test_an_unavailable_store_is_reported(visit: OpenTab) -> None:
    with valkey.start_server() as service, ScriptedServer("Hello.") as provider:
        boss = run_in_thread(create_secret, "boss", is_operator=True, at=service.url)
        alice = run_in_thread(create_secret, "alice", at=service.url)
        with run_gateway(with_gateway(config(provider.url), store=service.url)) as server:
            ask(server, CHAT, "hi", headers=bearer_headers(alice))
            page = visit(server).page
            sign_in(page, boss)
            expect(rows(page)).to_have_count(1)
            service.stop()
            alert = page.get_by_role("alert").filter(visible=True)
            expect(alert).to_contain_text("The account store is unavailable")
            expect(page.get_by_role("status")).to_have_text("Error")
            expect(rows(page)).to_have_count(1)
            expect(page.get_by_role("heading", name="Sign in")).to_be_hidden()
            service.start()
            expect(page.get_by_role("status")).to_have_text("Live")
            expect(alert).to_be_hidden()
