"""Helpers for the tests of the dashboard: tabs, a gateway and its keys."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeVar

import httpx
from playwright.sync_api import Locator, Page

from brim.config import Config
from brim.models.pricing import Price
from tests.support.gateway.accounts import bearer_headers
from tests.support.gateway.process import Running, config_of

T = TypeVar("T")

TURNS: Final = [f"turn {place}: " + "some words that take room " * 20 for place in range(81)]
"""More than fits into the window."""
_PRICE: Final = Price(Decimal(100), Decimal(10), Decimal(400))


@dataclass(frozen=True)
class Tab:
    """A tab, with its console messages and requests."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Console messages."""
    requests: list[str] = field(default_factory=list)
    """Requested URLs."""


OpenTab = Callable[..., Tab]
"""Opens a tab of a gateway at a fragment; other arguments configure the browser context."""


def config(url: str, **settings: Any) -> Config:
    """A gateway in front of a priced upstream."""
    return config_of(url, **{"window": 3_000, "reply": 200, "price": _PRICE, **settings})


def run_in_thread(work: Callable[..., T], *given: Any, **named: Any) -> T:
    """Run a function in a thread, because the browser's driver has an event loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work, *given, **named).result()


def sign_in(page: Page, secret: str) -> None:
    page.get_by_label("Operator key").fill(secret)
    page.keyboard.press("Enter")


def get_json(server: Running, path: str, secret: str | None = None) -> dict[str, Any]:
    """Return the JSON at a path."""
    headers = {} if secret is None else bearer_headers(secret)
    found: dict[str, Any] = httpx.get(server.url + path, headers=headers).raise_for_status().json()
    return found


def rows(page: Page) -> Locator:
    """The rows of the list."""
    return page.locator("#rows tr")
