"""The dashboard: public files without data, and bounded lists."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import date
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from brim.gateway import dashboard
from brim.gateway.accounts.reservations import GroupBy
from brim.gateway.accounts.sqlite.store import SqliteAccountStore
from brim.gateway.spending_views import GROUPINGS, MAX_ROWS, SpendingCache
from brim.models.pricing import SpendingRow
from brim.testing import ScriptedServer
from brim.wire.formats import CHAT as CHAT_FORM
from tests.support.gateway.accounts import (
    COST,
    MODEL,
    PROMPT_TOKENS,
    bearer_headers,
    create_secret,
    gateway_with_upstream,
    run_in_store,
    say_hi,
    store_file,
)
from tests.support.gateway.accounts import set_caps as capped
from tests.support.gateway.process import Running, config_of, run_gateway
from tests.support.gateway.requests import CHAT, ask, wait_until


def get_data(server: Running, path: str, secret: str | None = None) -> dict[str, Any]:
    headers = {} if secret is None else bearer_headers(secret)
    found: dict[str, Any] = httpx.get(server.url + path, headers=headers).raise_for_status().json()
    return found


# Files


def test_dashboard_files_are_public_with_a_strict_content_policy() -> None:
    create_secret("boss", is_operator=True)
    with run_gateway(config_of("http://127.0.0.1:9")) as server:
        page = httpx.get(f"{server.url}/").raise_for_status()
        names = re.findall(r'(?:src|href)="(brim/dashboard/[^"]+)"', page.text)
        assert len(names) > 3
        for answer in (page, *(httpx.get(f"{server.url}/{name}") for name in names)):
            assert answer.status_code == 200
            policy = answer.headers["content-security-policy"].split("; ")
            assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'"} <= set(policy)
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_an_unchanged_file_is_not_sent_again() -> None:
    with run_gateway(config_of("http://127.0.0.1:9")) as server:
        address = f"{server.url}/brim/dashboard/main.js"
        first = httpx.get(address).raise_for_status()
        again = httpx.get(address, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name",
    [
        *("nothing.js", "..%2fshowing.py", "%2e%2e/showing.py", "../showing.py"),
        *("..%2f..%2fcli", "page.css%00", "/etc/passwd", "%2fetc%2fpasswd"),
    ],
)
def test_no_other_file_can_be_requested(name: str) -> None:
    with run_gateway(config_of("http://127.0.0.1:9")) as server:
        connection = HTTPConnection(server.url.removeprefix("http://"))
        connection.request("GET", f"/brim/dashboard/{name}")
        assert connection.getresponse().status == 404
        connection.close()


def test_dashboard_files_load_nothing_external_and_never_parse_html() -> None:
    for name, asset in dashboard.load_assets().items():
        addresses = set(re.findall(rb"https?://[^\s\"'`)]+", asset.raw))
        assert addresses <= {b"http://www.w3.org/2000/svg"}, name
        assert not re.search(rb"innerHTML|insertAdjacentHTML|document\.write|eval\(", asset.raw)
        assert not re.search(rb"<[^>]+\s(?:on\w+|style)=", asset.raw), name


# Spending


def test_spending_is_listed_by_group_and_with_caps() -> None:
    boss = create_secret("boss", is_operator=True)
    anna = create_secret("anna", "5/day", "1M tokens/month", project="web")
    capped("all", "90")
    with gateway_with_upstream() as (server, _):
        for _ in range(2):
            say_hi(server, anna)
        found: dict[str, Any] = {}
        wait_until(lambda: _is_recorded(server, boss, 2, found))
        for by, on in (("key", "anna"), ("model", MODEL), ("project", "web")):
            (row,) = found[f"by_{by}"]
            assert (row["name"], row["requests"], row["input"]) == (on, 2, 2 * PROMPT_TOKENS)
            assert row["cost"] == pytest.approx(2 * COST / 1e6)
        (day,) = found["by_day"]
        assert day["group"] >= found["since"]
        caps = {cap["cap"]: cap for cap in found["caps"]}
        assert caps.keys() == {"$5/day", "1,000,000 tokens/month", "$90"}
        assert caps["$5/day"]["spent"] == pytest.approx(2 * COST / 1e6)
        assert caps["1,000,000 tokens/month"]["spent"] == 2 * (PROMPT_TOKENS + 2)
        assert (caps["$90"]["kind"], caps["$90"]["resets"]) == ("all", None)
        assert all(cap["reserved"] == 0 for cap in caps.values())
        assert [(key["name"], key["operator"]) for key in found["keys"]] == [
            ("anna", False),
            ("boss", True),
        ]
        assert anna not in str(found)


def test_keys_with_the_same_name_are_distinguished() -> None:
    boss, first = create_secret("boss", is_operator=True), create_secret("anna")
    with gateway_with_upstream() as (server, _):
        say_hi(server, first)
        run_in_store(lambda store: store.revoke("anna"))
        say_hi(server, create_secret("anna"))
        found: dict[str, Any] = {}
        wait_until(lambda: _is_recorded(server, boss, 1, found, keys=2))
    called = {f"anna ({key['id']})" for key in found["keys"] if not key["operator"]}
    assert len(called) == 2
    assert {row["name"] for row in found["by_key"]} == called
    assert {key["name"] for key in found["keys"]} == {"boss", *called}


def _is_recorded(
    server: Running, boss: str, requests: int, found: dict[str, Any], keys: int = 1
) -> bool:
    """Wait until all queries, which are not atomic together, agree."""
    found.update(get_data(server, "/brim/spending", boss))
    is_in_all = sum(row["requests"] for row in found["by_day"]) == requests * keys
    is_free = all(cap["reserved"] == 0 for cap in found["caps"])
    by_key = [row["requests"] for row in found["by_key"]]
    return is_in_all and is_free and by_key == [requests] * keys


def test_without_keys_there_is_no_spending() -> None:
    with run_gateway(config_of("http://127.0.0.1:9")) as server:
        found = get_data(server, "/brim/spending")
        assert not found["has_accounts"]
        assert found["by_key"] == found["caps"] == []
    assert not store_file().exists()


@pytest.mark.parametrize("days", ["0", "367", "-1", "x", "", "٣", "1" * 5_000])
def test_an_invalid_number_of_days_is_rejected(days: str) -> None:
    with run_gateway(config_of("http://127.0.0.1:9")) as server:
        answer = httpx.get(f"{server.url}/brim/spending", params={"days": days})
        assert answer.status_code == 400
        assert "1 to 366" in answer.text


class _Slow(SqliteAccountStore):
    """A slow store that counts its queries."""

    read = 0

    async def totals(
        self, by: Sequence[GroupBy], since: date | None = None, until: date | None = None
    ) -> list[SpendingRow]:
        self.read += 1
        await asyncio.sleep(0.05)
        return await super().totals(by, since, until)


def test_a_slow_ledger_is_read_once_for_concurrent_dashboards() -> None:
    async def looked() -> int:
        store = _Slow(store_file())
        sums = SpendingCache(store)
        today = date(2026, 11, 15)
        found = await asyncio.gather(*(sums.since(today) for _ in range(20)))
        assert all(each == found[0] for each in found)
        await sums.since(date(2026, 11, 1))
        await store.close()
        return store.read

    assert asyncio.run(looked()) == 2 * len(GROUPINGS)


# Models


def test_a_model_is_listed_with_its_window_and_source() -> None:
    with (
        ScriptedServer("Hello.", window=2_000) as provider,
        run_gateway(config_of(provider.url, reply=100)) as server,
    ):
        assert get_data(server, "/brim/routes")["data"] == []
        ask(server, CHAT, "hi")
        (route,) = get_data(server, "/brim/routes")["data"]
        assert (route["upstream"], route["model"]) == ("upstream-1", "scripted")
        assert (route["window"], route["reply"], route["source"]) == (2_000, 100, "the server")
        assert route["limit"] == 2_000 - 100 - route["margin"]


def test_an_unknown_window_is_null() -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config_of(provider.url)) as server:
        ask(server, CHAT, "hi")
        (route,) = get_data(server, "/brim/routes")["data"]
        assert (route["window"], route["limit"], route["source"]) == (None, None, "a guess")


def test_the_most_recently_used_models_are_listed() -> None:
    with run_gateway(config_of("http://127.0.0.1:9")) as server:
        for number in range(MAX_ROWS + 3):
            server.gateway.services.routes.find(f"m-{number}", CHAT_FORM)
        found = get_data(server, "/brim/routes")
        assert (len(found["data"]), found["omitted"]) == (MAX_ROWS, 3)
        assert found["data"][0]["model"] == f"m-{MAX_ROWS + 2}"
