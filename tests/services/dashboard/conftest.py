from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, sync_playwright

from tests.support.gateway.accounts import create_secret
from tests.support.gateway.process import Running
from tests.support.services.browser import OpenTab, Tab, run_in_thread

NUMBERS = tuple(
    f"/brim/{name}"
    for name in ("requests", "spending", "routes", "history", "series", "keys", "caps", "audit")
)
"""The data paths of the dashboard."""


@pytest.fixture(scope="module")  # its event loop would conflict with those of other modules
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIM_STATE", str(tmp_path))
    return tmp_path


@pytest.fixture
def visit(browser: Browser) -> Iterator[OpenTab]:
    """Opens tabs; fails if one logged an error, or contacted another host."""
    visits: list[Tab] = []
    hosts: set[str] = set()

    def opened(server: Running | str, place: str = "", **settings: Any) -> Tab:
        address = server if isinstance(server, str) else server.url
        page = browser.new_context(**settings).new_page()
        visit = Tab(page)
        visits.append(visit)
        hosts.add(urlsplit(address).netloc)
        page.on("console", lambda message: visit.complaints.append(_complaint(message)))
        page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        page.on("request", lambda request: visit.requests.append(request.url))
        page.goto(f"{address}/{place}")
        return visit

    yield opened
    for visit in visits:
        visit.page.context.close()
        assert list(filter(None, visit.complaints)) == []
        assert {urlsplit(url).netloc for url in visit.requests} <= hosts


def _complaint(message: ConsoleMessage) -> str:
    """Return a console message, unless a data path failed as expected, or the gateway has ended."""
    is_answer = urlsplit(message.location["url"]).path.startswith(NUMBERS)
    is_expected = is_answer or "ERR_CONNECTION_REFUSED" in message.text
    is_failure = message.text.startswith("Failed to load resource")
    return "" if is_failure and is_expected else message.text


@pytest.fixture
def secrets(state: Path) -> dict[str, str]:  # noqa: ARG001 - they are made there
    """Secrets by name: an operator, and two clients with caps, one of them nearly zero."""
    return {
        "boss": run_in_thread(create_secret, "boss", is_operator=True),
        "alice": run_in_thread(create_secret, "alice", "5/day", "9M tokens/month", project="web"),
        "poor": run_in_thread(create_secret, "poor", "0.000001/day"),
    }
