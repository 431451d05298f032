"""Access to the dashboard, spending and models."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from brim.testing import ScriptedServer
from tests.support.gateway.accounts import bearer_headers, create_secret, revoke
from tests.support.gateway.process import Running, run_gateway
from tests.support.gateway.requests import CHAT, ask, wait_until
from tests.support.services.browser import (
    TURNS,
    OpenTab,
    config,
    get_json,
    rows,
    run_in_thread,
    sign_in,
)

# Access


def test_only_an_operator_key_opens_the_dashboard(visit: OpenTab, secrets: dict[str, str]) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        ask(server, CHAT, "hi", headers=bearer_headers(secrets["alice"]))
        page = visit(server).page
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        expect(page.get_by_label("Operator key")).to_be_focused()
        wrong = page.get_by_role("alert").filter(visible=True)
        for secret, reason in (
            ("brim-wrong", "unknown or revoked"),
            (secrets["alice"], "operator"),
        ):
            sign_in(page, secret)
            expect(wrong).to_contain_text(reason)
            expect(rows(page)).to_have_count(0)
        sign_in(page, secrets["boss"])
        expect(rows(page)).to_have_count(1)
        expect(rows(page).first).to_contain_text("alice")
        expect(page.get_by_role("heading", name="Sign in")).to_be_hidden()


def test_the_key_is_kept_in_the_tab_until_sign_out(visit: OpenTab, secrets: dict[str, str]) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        ask(server, CHAT, "hi", headers=bearer_headers(secrets["alice"]))
        seen = visit(server)
        page = seen.page
        sign_in(page, secrets["boss"])
        expect(rows(page)).to_have_count(1)
        page.reload()
        expect(rows(page)).to_have_count(1)
        kept = page.evaluate("JSON.stringify([{ ...localStorage }, document.cookie])")
        assert secrets["boss"] not in kept
        assert not any(secrets["boss"] in url for url in seen.requests)
        assert secrets["boss"] not in page.content()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Operator key")).to_be_focused()
        expect(rows(page)).to_have_count(0)
        page.reload()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0


def test_without_keys_no_sign_in_is_needed(visit: OpenTab) -> None:
    with run_gateway(config("http://127.0.0.1:9")) as server:
        page = visit(server).page
        expect(page.get_by_role("status")).to_have_text("Live")
        expect(page.get_by_role("heading", name="Sign in")).to_be_hidden()
        expect(page.get_by_role("button", name="Sign out")).to_be_hidden()
        page.get_by_role("link", name="Spending").click()
        expect(page.get_by_text("This gateway has no keys.")).to_be_visible()


# Spending and models


def test_spending_is_shown_with_caps(visit: OpenTab, secrets: dict[str, str]) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        alice = bearer_headers(secrets["alice"])
        for _ in range(3):
            ask(server, CHAT, *TURNS, headers=alice)
        spending = eventually_spent(server, secrets["boss"])
        page = visit(server, "#spending").page
        sign_in(page, secrets["boss"])
        caps = page.get_by_role("table", name=re.compile("Caps"))
        expect(caps.get_by_role("row").filter(has_text="$5/day")).to_contain_text("alice")
        expect(caps.get_by_role("row").filter(has_text="9,000,000 tokens/month")).to_be_visible()
        expect(caps).to_contain_text(re.compile(r"in \d+ (d|h|min)"))
        for by, name in (("key", "alice"), ("model", "scripted"), ("project", "web")):
            sums = page.get_by_role("table", name=f"Spending by {by}")
            row = sums.get_by_role("row", name=name)
            expect(row.get_by_role("cell", name="3", exact=True)).to_be_visible()
        (day,) = spending["by_day"]
        requests = get_json(server, "/brim/requests", secrets["boss"])["data"]
        cost = sum(request["cost"] for request in requests)
        assert day["cost"] == pytest.approx(cost, abs=len(requests) * 1e-6)
        page.get_by_text("Show as a table").click()
        expect(page.get_by_role("table", name="Spending by day")).to_contain_text(
            f"${day['cost']:.2f}"
        )


def test_small_amounts_are_not_rounded_to_zero_or_full(
    visit: OpenTab, secrets: dict[str, str]
) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        ask(server, CHAT, "hi", headers=bearer_headers(secrets["alice"]))
        spending = eventually_spent(server, secrets["boss"], requests=1)
        page = visit(server, "#spending").page
        sign_in(page, secrets["boss"])
        caps = page.get_by_role("table", name=re.compile("Caps")).get_by_role("row")
        spent = {cap["cap"]: cap["spent"] for cap in spending["caps"] if cap["name"] == "alice"}
        assert 0 < spent["$5/day"] < 0.005
        dollars = caps.filter(has_text="$5/day")
        for words in (f"${spent['$5/day']:.4f}", f"${5 - spent['$5/day']:.4f}", "< 1 %"):
            expect(dollars).to_contain_text(words)
        tokens = caps.filter(has_text="9,000,000 tokens/month")
        expect(tokens).to_contain_text(f"{9_000_000 - spent['9,000,000 tokens/month']:,}")


def test_keys_with_the_same_name_have_different_labels(
    visit: OpenTab, secrets: dict[str, str]
) -> None:
    for _ in range(2):
        run_in_thread(create_secret, "left")
        run_in_thread(revoke, "left")
    with run_gateway(config("http://127.0.0.1:9")) as server:
        listed = get_json(server, "/brim/spending", secrets["boss"])["keys"]
        page = visit(server, "#spending").page
        sign_in(page, secrets["boss"])
        keys = page.get_by_role("table", name=re.compile("Keys"))
        expect(keys.get_by_role("row").filter(has_text="revoked")).to_have_count(2)
        for key in listed:
            shown = keys.get_by_role("row").filter(has_text=key["id"])
            expect(shown).to_have_count(1 if key["revoked"] else 0)


def eventually_spent(server: Running, secret: str, requests: int = 3) -> dict[str, Any]:
    """Return the spending once all requests are recorded."""
    found: list[dict[str, Any]] = []

    def is_recorded() -> bool:
        found.append(get_json(server, "/brim/spending", secret))
        return [row["requests"] for row in found[-1]["by_key"]] == [requests]

    wait_until(is_recorded)
    return found[-1]


def test_a_window_from_a_context_length_error_is_shown(visit: OpenTab) -> None:
    with (
        ScriptedServer("Hello.", window=2_000, reports_window=False) as provider,
        run_gateway(config(provider.url, window=9_000, reply=100)) as server,
    ):
        ask(server, CHAT, *TURNS)
        (route,) = get_json(server, "/brim/routes")["data"]
        assert (route["window"], route["source"]) == (2_000, "a context-length error")
        row = visit(server, "#models").page.get_by_role("row", name="scripted")
        expect(row).to_contain_text("2,000")
        expect(row).to_contain_text("a context-length error")
        expect(row).to_contain_text(f"{route['accepted']:,}")


def test_an_unknown_window_is_shown_as_unknown(visit: OpenTab) -> None:
    with (
        ScriptedServer("Hello.") as provider,
        run_gateway(config(provider.url, window=None)) as server,
    ):
        ask(server, CHAT, "hi")
        (route,) = get_json(server, "/brim/routes")["data"]
        assert (route["window"], route["limit"]) == (None, None)
        expect(visit(server, "#models").page.get_by_role("row", name="scripted")).to_contain_text(
            "unknown"
        )
