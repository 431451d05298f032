"""The live list of requests, and an open request."""

from __future__ import annotations

import re
import threading
from itertools import cycle

import httpx
from playwright.sync_api import Page, expect

from brim.testing import ErrorReply, ScriptedServer, TextReply
from tests.support.gateway.accounts import bearer_headers
from tests.support.gateway.process import run_gateway
from tests.support.gateway.requests import CHAT, ask
from tests.support.services.browser import TURNS, OpenTab, Tab, config, rows, sign_in

# The live list


def test_requests_appear_and_end_automatically(visit: OpenTab) -> None:
    held = threading.Event()
    answer = TextReply("Hello there.", hold=held)
    with ScriptedServer(answer) as provider, run_gateway(config(provider.url)) as server:
        page = visit(server).page
        expect(page.get_by_text("No requests yet.")).to_be_visible()
        asking = threading.Thread(target=ask, args=(server, CHAT, "hi"), kwargs={"stream": True})
        asking.start()
        expect(rows(page)).to_have_count(1)
        expect(rows(page).first).to_contain_text("running")
        held.set()
        asking.join()
        expect(rows(page).first).to_contain_text("200")
        expect(rows(page).first).not_to_contain_text("running")
        expect(rows(page).first).to_contain_text("$0.00")


def test_a_row_shows_the_trim(visit: OpenTab) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        answer = ask(server, CHAT, *TURNS)
        row = rows(visit(server).page).first
        headers = answer.headers
        for number in ("brim-tokens-before", "brim-tokens", "brim-limit"):
            expect(row).to_contain_text(f"{int(headers[number]):,}")
        expect(row).to_contain_text(headers["brim-trimmed"].replace("=", " "))
        picture = row.get_by_role("img")
        trimmed = int(headers["brim-tokens-before"]) - int(headers["brim-tokens"])
        name = re.compile(rf"of the limit, {trimmed:,} tokens trimmed")
        expect(picture).to_have_accessible_name(name)


def test_failed_requests_can_be_filtered(visit: OpenTab) -> None:
    with (
        ScriptedServer([ErrorReply(500), "Hello."]) as provider,
        run_gateway(config(provider.url)) as server,
    ):
        ask(server, CHAT, "hi")
        ask(server, CHAT, "hi")
        page = visit(server).page
        expect(rows(page)).to_have_count(2)
        page.get_by_label("Failed only").check()
        expect(rows(page)).to_have_count(1)
        expect(rows(page).first).to_contain_text("500")
        page.get_by_label("Failed only").uncheck()
        page.get_by_label("Filter requests").fill("no such model")
        expect(page.get_by_text("No matching requests.")).to_be_visible()


def test_a_dry_run_is_shown_as_not_sent(visit: OpenTab) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        ask(server, CHAT, "hi")
        ask(server, CHAT, *TURNS, headers={"brim-fitting": "dry-run"})
        page = visit(server).page
        tried, sent = rows(page).first, rows(page).nth(1)
        for words in ("200", "dry run", "not sent"):
            expect(tried).to_contain_text(words)
        expect(tried).not_to_contain_text("upstream-1")
        expect(sent).to_contain_text("upstream-1")
        expect(sent).not_to_contain_text("dry run")
        tried.get_by_role("link").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("img", name=re.compile("Would be sent:"))).to_be_visible()
        expect(dialog).not_to_contain_text("Sent:")


def test_a_request_rejected_by_the_gateway_is_shown_as_not_sent(
    visit: OpenTab, secrets: dict[str, str]
) -> None:
    with (
        ScriptedServer(ErrorReply(429, "slow down")) as provider,
        run_gateway(config(provider.url)) as server,
    ):
        for secret in (secrets["alice"], secrets["poor"], "brim-unknown"):
            ask(server, CHAT, "hi", headers=bearer_headers(secret))
        assert len(provider.requests) == 1
        page = visit(server).page
        sign_in(page, secrets["boss"])
        stranger, poor, alice = (rows(page).nth(place) for place in range(3))
        for row, status in ((stranger, "401"), (poor, "429")):
            expect(row).to_contain_text(status)
            expect(row).to_contain_text("not sent")
            expect(row).not_to_contain_text("upstream-1")
        expect(alice).to_contain_text("429")
        expect(alice).to_contain_text("upstream-1")
        poor.get_by_role("link").click()
        expect(page.get_by_role("dialog")).to_contain_text("not sent")
        expect(page.get_by_role("dialog")).not_to_contain_text("upstream-1")


def test_pausing_stops_updates(visit: OpenTab) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        ask(server, CHAT, "hi")
        seen = visit(server)
        page = seen.page
        expect(rows(page)).to_have_count(1)
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("status")).to_have_text("Paused")
        ask(server, CHAT, "hi")
        page.get_by_label("Filter requests").fill("scripted")  # redraws the list
        expect(rows(page)).to_have_count(1)
        page.get_by_role("button", name="Resume").click()
        expect(rows(page)).to_have_count(2)


def test_a_hidden_tab_does_not_poll(visit: OpenTab) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        seen = visit(server)
        page = seen.page
        expect(page.get_by_role("status")).to_have_text("Live")
        page.clock.install()
        page.evaluate(
            "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        before = len(seen.requests)
        page.clock.run_for(60_000)
        assert len(seen.requests) == before
        page.evaluate(
            "delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))"
        )
        eventually_asked(page, seen, before)


def eventually_asked(page: Page, seen: Tab, before: int) -> None:
    with page.expect_response(re.compile("/brim/requests")):
        page.clock.run_for(2_000)
    assert len(seen.requests) > before


def test_requests_of_several_gateways_are_combined(visit: OpenTab) -> None:
    with (
        ScriptedServer("Hello.") as provider,
        run_gateway(config(provider.url)) as one,
        run_gateway(config(provider.url)) as other,
    ):
        for server, model in ((one, "first"), (other, "second")):
            ask(server, CHAT, "hi", model=model)
        page = visit(one).page
        turns = cycle((one, other))
        page.route(
            "**/brim/requests*",
            lambda route: route.fulfill(
                response=route.fetch(url=f"{next(turns).url}/brim/requests")
            ),
        )
        expect(rows(page)).to_have_count(2)
        expect(rows(page).filter(has_text="first")).to_have_count(1)
        expect(rows(page).filter(has_text="second")).to_have_count(1)


# One request


def test_a_request_can_be_opened_and_closed_by_keyboard(visit: OpenTab) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        ask(server, CHAT, "hi")
        answer = ask(server, CHAT, *TURNS)
        page = visit(server).page
        rows(page).first.get_by_role("link").focus()
        page.keyboard.press("ArrowDown")
        expect(rows(page).nth(1).get_by_role("link")).to_be_focused()
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="scripted")
        expect(dialog).to_contain_text(answer.headers["brim-request-id"])
        expect(dialog.get_by_role("button", name="Close")).to_be_focused()
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(rows(page).first.get_by_role("link")).to_be_focused()
        page.go_back()
        expect(dialog).to_be_visible()


def test_closing_a_request_changes_the_url_immediately(visit: OpenTab) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        request = ask(server, CHAT, "hi").headers["brim-request-id"]
        page = visit(server, f"#requests/{request}").page
        dialog = page.get_by_role("dialog", name="scripted")
        expect(dialog).to_be_visible()
        expect(dialog.get_by_role("button", name="Close")).to_be_focused()
        within_one_frame = (
            "button => { button.click(); const at = location.hash; history.back(); return at; }"
        )
        assert dialog.get_by_role("button").evaluate(within_one_frame) == "#requests"
        expect(page).to_have_url(re.compile(f"#requests/{request}$"))
        expect(dialog).to_be_visible()


def test_a_plan_is_shown_as_chart_and_table_without_content(
    visit: OpenTab,
) -> None:
    with ScriptedServer("Hello.") as provider, run_gateway(config(provider.url)) as server:
        answer = ask(server, CHAT, *TURNS)
        id = answer.headers["brim-request-id"]
        plan = httpx.get(f"{server.url}/brim/requests/{id}").json()["plan"]
        page = visit(server, f"#requests/{id}").page
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("heading", name="81 messages")).to_be_visible()
        sent_label = f"Sent: {int(answer.headers['brim-tokens']):,} tokens"
        expect(dialog.get_by_role("img", name=re.compile(sent_label))).to_be_visible()
        table = dialog.get_by_role("table")
        for reason in {decision["reason"] for decision in plan["decisions"]}:
            expect(table).to_contain_text(reason)
        dropped = sum(each["before"] for each in plan["decisions"] if each["outcome"] == "dropped")
        assert dropped > 0
        expect(table.get_by_role("row").filter(has_text="dropped")).to_contain_text(f"{dropped:,}")
        assert "some words" not in page.content()


def test_an_unknown_request_is_reported(visit: OpenTab) -> None:
    with run_gateway(config("http://127.0.0.1:9")) as server:
        page = visit(server, "#requests/brim_0123").page
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("no longer has this request")
