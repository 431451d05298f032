from __future__ import annotations

import io
import re
import time
from decimal import Decimal
from typing import Any

import pytest
from rich.console import Console, RenderableType

from brim.models.pricing import Price, Usage
from brim.session.ledger import Ledger, SpendingLimits
from brim.session.request_log import LoggedRequest, RequestLog
from brim.shell.render.money import cost, cost_detail, usage

PRICE = Price(input=Decimal(1), output=Decimal(2))


def draw(shown: RenderableType, width: int = 100, **settings: Any) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, height=40, **settings)
    console.print(shown, soft_wrap=not console.is_terminal)
    return file.getvalue()


def draw_on_terminal(shown: RenderableType, width: int = 100) -> str:
    """Render on a terminal, and remove the colors."""
    made = draw(shown, width, force_terminal=True, color_system="standard")
    return re.sub(r"\x1b\[[0-9;]*m", "", made)


def ledger_with_calls(*, cap: str | None = None) -> Ledger:
    ledger = Ledger(SpendingLimits(cap_at_dollars=cap))
    used = Usage(input=558, cached=100, output=20)
    ledger.record("gpt-5-mini", "main", usage=used, counted=508 - 10, price=PRICE)
    ledger.record("local", "summary", usage=None, counted=90, counted_output=7, price=None)
    return ledger


def test_without_a_terminal_the_detail_is_the_ledgers_text() -> None:
    ledger = ledger_with_calls()
    assert draw(cost_detail(ledger, 1_234), width=30) == ledger.format_table(1_234) + "\n"
    assert draw(cost_detail(Ledger(), 0)) == Ledger().format_table(0) + "\n"


def test_on_a_terminal_the_detail_has_the_same_content() -> None:
    ledger = ledger_with_calls()
    lines = draw_on_terminal(cost_detail(ledger, 1_234)).splitlines()
    assert [line.split() for line in lines] == [
        line.split() for line in ledger.format_table(1_234).splitlines()
    ]
    assert "558 ~est=498" in lines[1]
    assert lines[1].endswith("$0.000598")
    assert "unknown" in lines[2]
    assert lines[3].startswith("total")
    assert "at least $0.000598" in lines[3]
    assert lines[4] == "the conversation now has 1,234 tokens"
    assert (
        draw_on_terminal(cost_detail(Ledger(), 7))
        == "no calls yet\nthe conversation now has 7 tokens\n"
    )


@pytest.mark.parametrize("width", [30, 50, 70, 100])
def test_it_is_never_wider_than_the_screen(width: int) -> None:
    for shown in (
        cost_detail(ledger_with_calls(), 12),
        usage(requests()),
        cost(ledger_with_calls(cap="5")),
    ):
        assert all(len(line) <= width for line in draw_on_terminal(shown, width).splitlines())
    assert "$0.000598" in draw_on_terminal(cost_detail(ledger_with_calls(), 12), width)


def test_colors_are_used_only_if_supported() -> None:
    shown = cost_detail(ledger_with_calls(), 12)
    coloured: dict[str, Any] = {"force_terminal": True, "color_system": "standard"}
    assert re.search(r"\x1b\[32m *\$0\.000598", draw(shown, **coloured))
    assert "\x1b[3" not in draw(shown, **coloured, no_color=True)
    assert "\x1b" not in draw(shown)


def test_the_cost_in_a_few_lines() -> None:
    assert draw_on_terminal(cost(Ledger())) == "$0.00 · no calls yet\n"
    assert draw_on_terminal(cost(ledger_with_calls(cap="0.5"))).splitlines() == [
        "at least $0.0006 · 2 calls",
        "648 tokens in (100 cached), 27 out (estimated in part)",
        "cap $0.5000, $0.4994 left",
        "The cap of $0.5000 does not cover local: the price is unknown.",
        ":cost detail shows it by model",
    ]


def requests() -> RequestLog:
    log = RequestLog()
    log.add(LoggedRequest(0.0, "gpt-5-mini", "main", 893, 900, 1_000, False, 0))
    log.add(LoggedRequest(60.0, "gpt-5-mini", "main", 1_900, 700, 1_000, True, 14))
    log.add(LoggedRequest(61.0, "local\x1b[2J", "goal", 20, 10, 1_000, True, 0))
    return log


def test_usage_lists_the_last_requests() -> None:
    lines = draw_on_terminal(usage(requests(), local=time.gmtime)).splitlines()
    assert lines[0] == "3 requests, 2 trimmed, 54% of the limit used on average"
    assert [line.split() for line in lines[1:]] == [
        ["time", "model", "category", "before", "sent", "limit", "full", "trimmed"],
        ["01-01", "00:00:00", "gpt-5-mini", "main", "900", "1,000", "90%"],
        ["01-01", "00:01:00", "gpt-5-mini", "main", "1,900", "700", "1,000", "70%", "14"],
        ["01-01", "00:01:01", "local␛[2J", "goal", "20", "10", "1,000", "1%", "shortened"],
    ]
    assert "\x1b" not in draw(usage(requests()))


def test_usage_without_requests_is_zero() -> None:
    assert (
        draw_on_terminal(usage(RequestLog()))
        == "0 requests, 0 trimmed, 0% of the limit used on average\n"
    )
    log = RequestLog()
    log.add(LoggedRequest(0, "m", "main", 1, 1, 10, False, 0))
    assert draw_on_terminal(usage(log)).startswith("1 request, 0 trimmed")
    for number in range(1, 150):
        log.add(LoggedRequest(number, "m", "main", 1, 1, 10, False, 0))
    lines = draw(usage(log, local=time.gmtime)).splitlines()
    assert lines[0].startswith("150 requests, 0 trimmed, 10% ")
    assert len(lines) == 22
    assert lines[-1].startswith("01-01 00:02:29  m")
