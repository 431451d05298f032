"""Accessibility and safety: hostile names, keyboards, screens and screen readers."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from playwright.sync_api import Page, expect

from brim.testing import ScriptedServer
from tests.support.gateway.accounts import bearer_headers
from tests.support.gateway.process import run_gateway
from tests.support.gateway.requests import CHAT, ask
from tests.support.services.browser import TURNS, OpenTab, config, rows, sign_in

HOSTILE = "<img src=x onerror=document.title='taken'>"


# Names from clients


def test_names_are_shown_as_text(visit: OpenTab) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        ask(server, CHAT, *TURNS, model=HOSTILE)
        page = visit(server).page
        expect(rows(page).first).to_contain_text(HOSTILE)
        rows(page).first.get_by_role("link").click()
        expect(page.get_by_role("dialog").get_by_role("heading", name=HOSTILE)).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_role("link", name="Models").click()
        expect(page.get_by_role("row", name=HOSTILE)).to_be_visible()
        assert page.locator("img").count() == 0
        assert "taken" not in page.title()


def test_the_content_policy_blocks_other_scripts(visit: OpenTab) -> None:
    with run_gateway(config("http://127.0.0.1:9")) as server:
        seen = visit(server)
        expect(seen.page.get_by_role("status")).to_have_text("Live")
        seen.page.evaluate(
            """hostile => {
                document.body.insertAdjacentHTML("beforeend", hostile);
                const script = document.createElement("script");
                script.textContent = "document.title = 'taken'";
                document.body.append(script);
            }""",
            HOSTILE,
        )
        expect(seen.page.locator("img")).to_have_js_property(
            "complete", True
        )  # it cannot be loaded
        assert seen.page.title() == "Requests · brim"
        assert any("Content Security Policy" in message for message in seen.complaints)
        seen.complaints.clear()


# Accessibility


def wait_for(page: Page, place: str) -> None:
    """Wait until a view is drawn."""
    within = "dialog" if "ID" in place else place
    expect(page.locator(f"{within} table").first).to_be_visible()


@pytest.mark.parametrize("place", ["#requests", "#spending", "#models", "#requests/ID", ""])
def test_every_control_and_chart_has_a_name(
    visit: OpenTab, secrets: dict[str, str], place: str
) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        alice = bearer_headers(secrets["alice"])
        id = ask(server, CHAT, *TURNS, headers=alice).headers["brim-request-id"]
        page = visit(server, place.replace("ID", id)).page
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        if place:
            sign_in(page, secrets["boss"])
            wait_for(page, place)
        for control in page.locator("a, button, input, select, summary, [role=img], dialog").all():
            if control.is_visible():
                expect(control).to_have_accessible_name(re.compile(r"\w"))
        for head in page.locator("th:visible").all():
            assert (head.text_content() or "").strip()
        levels = page.locator("h1:visible, h2:visible, h3:visible").evaluate_all(
            "all => all.map(each => Number(each.tagName[1]))"
        )
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))
        assert page.locator("html").get_attribute("lang") == "en"


def test_all_controls_are_reachable_with_tab(visit: OpenTab) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        ask(server, CHAT, "hi")
        page = visit(server).page
        expect(rows(page)).to_have_count(1)
        reached = set()
        for _ in range(14):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate(
                    "document.activeElement.textContent.trim() || document.activeElement.id"
                )
            )
            ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert ring != "none" or page.evaluate("document.activeElement === document.body")
        assert {
            "Requests",
            "Spending",
            "Models",
            "Dark",
            "filter",
            "only-trimmed",
            "Pause",
        } <= reached


def test_the_list_is_one_tab_stop(visit: OpenTab) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        for _ in range(3):
            ask(server, CHAT, "hi")
        page = visit(server).page
        links = rows(page).get_by_role("link")
        expect(links).to_have_count(3)
        page.get_by_role("button", name="Pause").focus()
        page.keyboard.press("Tab")
        expect(links.first).to_be_focused()
        page.keyboard.press("ArrowDown")
        expect(links.nth(1)).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.locator("#rows :focus")).to_have_count(0)
        page.keyboard.press("Shift+Tab")
        expect(links.nth(1)).to_be_focused()
        page.keyboard.press("Shift+Tab")
        expect(page.get_by_role("button", name="Pause")).to_be_focused()
        page.get_by_label("Filter requests").fill("no such model")
        expect(links).to_have_count(0)
        page.get_by_label("Filter requests").fill("")
        page.get_by_role("button", name="Pause").focus()
        page.keyboard.press("Tab")
        expect(links.nth(1)).to_be_focused()


def luminance(page: Page) -> float:
    colours = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    return sum(map(int, colours[:3])) / (3 * 255)


def test_the_theme_follows_the_system_until_it_is_switched(
    visit: OpenTab,
) -> None:
    with run_gateway(config("http://127.0.0.1:9")) as server:
        assert luminance(visit(server, color_scheme="light").page) > 0.9
        page = visit(server, color_scheme="dark").page
        assert luminance(page) < 0.2
        page.get_by_role("button", name="Light colours").click()
        assert luminance(page) > 0.9
        page.reload()
        assert luminance(page) > 0.9


@pytest.mark.parametrize("place", ["#requests", "#spending", "#models", "#requests/ID"])
def test_a_narrow_screen_does_not_scroll_horizontally(
    visit: OpenTab, secrets: dict[str, str], place: str
) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        alice = bearer_headers(secrets["alice"])
        id = ask(server, CHAT, *TURNS, headers=alice, model="m" * 90).headers["brim-request-id"]
        narrow = {"width": 360, "height": 700}
        page = visit(server, place.replace("ID", id), viewport=narrow).page
        sign_in(page, secrets["boss"])
        wait_for(page, place)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_narrow_screen_has_rows_without_columns(visit: OpenTab) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        ask(server, CHAT, "hi")
        page = visit(server, viewport={"width": 1_280, "height": 700}).page
        expect(page.locator("#list thead")).to_be_visible()
        page.set_viewport_size({"width": 360, "height": 700})
        expect(page.locator("#list thead")).to_be_hidden()
        expect(rows(page).first.get_by_role("link")).to_be_visible()
