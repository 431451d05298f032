"""The console: charts, search in the history, keys, and rules of accessibility."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from brim.gateway.records import RequestRecord
from brim.models.pricing import Usage
from brim.testing import ScriptedServer
from tests.support.gateway.accounts import bearer_headers, create_secret, ledger, say_hi
from tests.support.gateway.process import Running, run_gateway
from tests.support.gateway.requests import CHAT, ask, wait_until
from tests.support.services.browser import OpenTab, config, rows, run_in_thread, sign_in

VIEWS: Final = ("overview", "requests", "spending", "keys", "models", "changes")
MANY_POINTS: Final = """async () => {
  const { Chart } = await import("/brim/dashboard/charts.js");
  const chart = new Chart("Many", String);
  document.getElementById("charts").replaceChildren(chart.element);
  const values = Array.from({ length: 10000 }, (_, at) => (at === 7777 ? 1000 : at % 7));
  const started = performance.now();
  chart.show({ since: 0, step: 60, lines: [{ name: "n", values }] });
  return [document.querySelector(".line").getAttribute("d").length, performance.now() - started];
}"""


@pytest.fixture
def served() -> Iterator[Running]:
    """A gateway with more requests in its history than the live list has."""
    with (
        ScriptedServer("Hello.") as provider,
        run_gateway(config(provider.url, models=("gpt-4o",))) as served,
    ):
        for number in range(130):
            served.gateway.history.add(_make_record(time.time() - 60 - number, number))
        yield served


def _make_record(at: float, number: int) -> RequestRecord:
    record = RequestRecord(CHAT, "openai")
    record.time, record.model, record.key = at, f"model-{number % 3}", "alice"
    record.status, record.end = (429, "rejected") if number % 10 == 0 else (200, "completed")
    record.code = "insufficient_quota" if number % 10 == 0 else None
    if record.code is None:
        record.usage, record.streamed = Usage(100 + number, 0, 20), True
    record.first_byte, record.seconds = 0.2, 0.5 + number / 100
    return record


def _open_view(page: Page, view: str) -> None:
    page.evaluate(f"location.hash = '#{view}'")
    expect(page.locator(f"#{view}")).to_be_visible()


def test_the_overview_charts_can_be_read_with_the_keyboard(visit: OpenTab, served: Running) -> None:
    page = visit(served, "#overview").page
    page.get_by_label("Last", exact=False).filter(visible=True).first.select_option("3600")
    chart = page.get_by_role("slider", name="Failed requests")
    expect(chart).to_be_visible()
    assert page.locator(".chart").count() == 6
    chart.focus()
    page.keyboard.press("End")
    expect(page.locator(".readout").filter(visible=True)).to_contain_text("failed")
    before = chart.get_attribute("aria-valuetext")
    page.keyboard.press("Home")
    assert chart.get_attribute("aria-valuetext") != before
    expect(page.get_by_text("A spending cap had no room")).to_be_visible()
    page.get_by_label("Lines by").select_option("model")
    expect(page.locator(".chart").first.locator(".legend li")).to_have_text(
        ["model-0", "model-1", "model-2"]
    )


def test_a_chart_of_ten_thousand_points_keeps_its_extremes(visit: OpenTab, served: Running) -> None:
    page = visit(served, "#overview").page
    expect(page.locator(".chart").first).to_be_visible()
    length, _ = page.evaluate(MANY_POINTS)
    assert 1_000 < length < 60_000
    assert "1500" in page.locator(".plot text").all_text_contents()


def test_the_history_is_searched_beyond_the_live_list(visit: OpenTab, served: Running) -> None:
    page = visit(served, "#requests").page
    page.get_by_label("Period").select_option("86400")
    expect(rows(page)).to_have_count(100)
    page.get_by_role("button", name="Show older requests").click()
    expect(rows(page)).to_have_count(130)
    expect(page.get_by_role("button", name="Show older requests")).to_be_hidden()
    page.get_by_label("Failed only").check()
    expect(rows(page)).to_have_count(13)
    page.get_by_label("Filter requests").fill("model-1 429")
    expect(rows(page)).to_have_count(4)
    rows(page).first.click()
    expect(page.locator("dialog .why")).to_contain_text("Raise the cap")


def test_keys_are_managed_with_a_confirmation(visit: OpenTab, served: Running) -> None:
    boss = run_in_thread(create_secret, "boss", is_operator=True)
    page = visit(served, "#keys", bypass_csp=True).page
    sign_in(page, boss)
    page.get_by_role("button", name="Add key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("alice")
    dialog.get_by_label("Caps", exact=True).fill("5/day; 2M tokens/year")
    dialog.get_by_role("button", name="Create key").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Invalid cap")
    dialog.get_by_label("Caps", exact=True).fill("5/day; 2,000,000 tokens/month")
    dialog.get_by_role("button", name="Create key").click()
    secret = dialog.get_by_label("Key", exact=True).input_value()
    dialog.get_by_role("button", name="Done").click()
    expect(page.locator("input.secret")).to_have_count(0)
    assert secret not in page.content()
    answer = run_in_thread(ask, served, CHAT, "hi", headers=bearer_headers(secret), model="gpt-4o")
    assert answer.status_code == 200
    row = page.locator("#key-list tr").filter(has_text="alice")
    expect(row).to_contain_text("2,000,000 tokens/month")
    page.get_by_role("button", name="Edit alice").click()
    dialog.get_by_label("Caps", exact=True).fill("9/week")
    dialog.get_by_label("Caps of each end user").fill("1/day; 10 requests/minute")
    dialog.get_by_label("Labels").fill("team=search")
    dialog.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("$9/week")
    expect(row).to_contain_text("team=search")
    run_in_thread(say_hi, served, secret, user="ann")
    run_in_thread(wait_until, lambda: len(ledger()) == 2)
    page.get_by_role("button", name="Users alice").click()
    expect(dialog.locator("tbody tr").filter(has_text="ann")).to_contain_text("$1/day")
    assert _find_violations(page, "users") == []
    dialog.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Revoke alice").click()
    expect(dialog).to_contain_text("cannot be undone")
    dialog.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("active")
    page.get_by_role("button", name="Revoke alice").click()
    dialog.get_by_role("button", name="Revoke key").click()
    expect(row).to_have_count(0)
    _open_view(page, "changes")
    expect(page.locator("#change-list tbody tr")).to_have_count(5)
    expect(page.locator("#change-list")).to_contain_text("→ $9/week")


def test_an_address_with_a_view_shows_its_heading(visit: OpenTab, served: Running) -> None:
    page = visit(served).page
    _open_view(page, "requests")
    page.get_by_label("Period").select_option("86400")
    expect(page.locator("#rows tr")).to_have_count(100)
    page.set_viewport_size({"width": 390, "height": 500})
    page.evaluate("scrollTo(0, 0); location.hash = '#keys'")
    page.evaluate("location.hash = '#requests'")
    assert page.evaluate("scrollY") == 0


def test_rate_limits_reset_continuously(
    visit: OpenTab, secrets: dict[str, str], served: Running
) -> None:
    run_in_thread(create_secret, "limited", "10 requests/minute", "7/day", "77/total")
    page = visit(served).page
    sign_in(page, secrets["boss"])
    _open_view(page, "spending")
    caps = page.get_by_role("table", name="Caps, the fullest first").get_by_role("row")
    expect(caps.filter(has_text="10 requests/minute")).to_contain_text("continuously")
    expect(caps.filter(has_text="$7/day")).to_contain_text("in ")
    expect(caps.filter(has_text="$77")).to_contain_text("never")


@pytest.mark.parametrize(("width", "colours"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_axe_finds_no_violation_in_any_view(
    visit: OpenTab, secrets: dict[str, str], served: Running, width: int, colours: Any
) -> None:
    run_in_thread(ask, served, CHAT, "hi", headers=bearer_headers(secrets["alice"]), model="gpt-4o")
    page = visit(
        served, viewport={"width": width, "height": 800}, color_scheme=colours, bypass_csp=True
    ).page
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    found = [_find_violations(page, "sign-in")]
    sign_in(page, secrets["boss"])
    expect(rows(page)).to_have_count(1)
    for view in VIEWS:
        _open_view(page, view)
        expect(page.locator(f"#{view} :is(tbody tr, .empty, .chart):visible").first).to_be_visible()
        found.append(_find_violations(page, view))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    _open_view(page, "keys")
    for button in ("Add key", re.compile("Revoke alice"), re.compile("Rotate alice")):
        page.get_by_role("button", name=button).click()
        found.append(_find_violations(page, str(button)))
        page.keyboard.press("Escape")
    assert list(filter(None, found)) == []


def _find_violations(page: Page, place: str) -> list[str]:
    """Return what axe-core complains about."""
    found = []
    for each in Axe().run(page).response["violations"]:
        node = each["nodes"][0]
        found.append(f"{place}: {each['id']}: {node['html'][:200]} {node['failureSummary']}")
    return found
