"""`brim cost`: spending of the shell and the gateway as totals, bars and rows."""

from __future__ import annotations

import csv
import json
import re
from datetime import date, datetime
from decimal import Decimal
from io import StringIO

import pytest

from brim.cli.cost import parse_day
from brim.cli.render import fill_idle_days
from brim.fitting.text_tables import Bar, draw_bars, draw_download
from brim.models.pricing import SpendingTotal, Usage
from brim.storage import Database, SpendLog
from tests.support.accounts.reservations import make_charge
from tests.support.cli.office import Office

MONDAY, TUESDAY, FRIDAY = "2026-03-02", "2026-03-03", "2026-03-06"
UNPRICED = make_charge(0, tokens=900)._replace(is_unpriced=True)


@pytest.fixture
def team(office: Office) -> Office:
    """Two keys with spending on three days; one gateway crashed."""
    alice, ci = office.key("alice"), office.key("ci", "--project", "web")
    office.spend(alice, make_charge(1_000_000, tokens=100), MONDAY)
    office.spend(ci, make_charge(500_000, tokens=40), MONDAY)
    office.spend(ci, UNPRICED, TUESDAY, model="qwen")
    office.die(alice, make_charge(2_000_000, tokens=60), FRIDAY)
    return office


@pytest.fixture
def shell_costs(office: Office) -> Office:
    """Two calls of the shell."""
    database = Database(office.folder)
    noon = datetime.fromisoformat(f"{MONDAY}T12:00:00").astimezone().timestamp()
    spending = SpendLog(database, clock=lambda: noon)
    where = {"session": "s1", "project": "/home/me", "category": "main"}
    spending.add(SpendingTotal(1, Usage(100, 20, 10), Decimal("0.25")), model="fast", **where)
    spending.add(
        SpendingTotal(1, Usage(300, 0, 30), unknown=True, estimated=True), model="own", **where
    )
    database.close()
    return office


def cells(text: str) -> list[list[str]]:
    """Return the cells of a table whose columns are separated by two or more spaces."""
    return [re.split(r"\s{2,}", line) for line in text.splitlines()]


# Totals


def test_shell_spending_is_grouped_by_day_and_model(shell_costs: Office) -> None:
    assert cells(shell_costs.brim("cost").stdout) == [
        ["day", "model", "calls", "prompt", "cached", "completion", "cost"],
        [MONDAY, "fast", "1", "100", "20", "10", "$0.2500"],
        [MONDAY, "own", "1", "300", "0", "30", "unknown"],
        ["total", "2", "400", "20", "40", "at least $0.2500"],
    ]
    total = json.loads(shell_costs.brim("cost", "--json").stdout)["total"]
    assert (total["calls"], total["cost"], total["at_least"]) == (2, "0.25", True)
    assert (total["input"], total["output"], total["estimated"]) == (400, 40, True)


def test_gateway_spending_is_grouped_by_day_and_key(team: Office) -> None:
    *table, note = team.brim("cost", "--gateway").stdout.splitlines()
    assert cells("\n".join(table)) == [
        ["day", "key", "requests", "prompt", "cached", "completion", "cost"],
        [MONDAY, "alice", "1", "75", "0", "25", "$1.00"],
        [MONDAY, "ci", "1", "30", "0", "10", "$0.5000"],
        [TUESDAY, "ci", "1", "675", "0", "225", "unknown"],
        [FRIDAY, "alice", "1", "45", "0", "15", "$2.00, 1 presumed"],
        ["total", "4", "825", "0", "275", "at least $3.50, 1 presumed"],
    ]
    assert note.startswith("presumed: ")


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("key", {"alice": "3", "ci": "0.5"}),
        ("project", {"": "3", "web": "0.5"}),
        ("model", {"gpt-5-mini": "3.5", "qwen": "0"}),
        ("state", {"presumed": "2", "settled": "1.5"}),
        ("day", {MONDAY: "1.5", TUESDAY: "0", FRIDAY: "2"}),
    ],
)
def test_totals_can_be_printed_as_json(team: Office, by: str, expected: dict[str, str]) -> None:
    report = json.loads(team.brim("cost", "--gateway", "--by", by, "--json").stdout)
    assert report["of"] == "gateway"
    assert {row[by]: row["cost"] for row in report["rows"]} == expected
    assert Decimal(report["total"]["cost"]) == sum(map(Decimal, expected.values()))
    assert (report["total"]["at_least"], report["total"]["presumed"]) == (True, 1)


def test_both_days_of_a_range_are_included(team: Office) -> None:
    report = team.brim("cost", "--by", "key", "--since", MONDAY, "--until", TUESDAY, "--json")
    sums = json.loads(report.stdout)
    assert (sums["since"], sums["until"]) == (MONDAY, TUESDAY)
    assert (sums["total"]["requests"], sums["total"]["cost"]) == (3, "1.5")


def test_keys_with_the_same_name_are_distinguished(office: Office) -> None:
    old = office.key("alice")
    office.spend(old, make_charge(1_000_000), MONDAY)
    office.brim("keys", "revoke", "alice")
    new = office.key("alice")
    office.spend(new, make_charge(2_000_000), MONDAY)
    rows = json.loads(office.brim("cost", "--by", "key", "--json").stdout)["rows"]
    costs = {row["key"]: row["cost"] for row in rows}
    assert costs == {f"alice ({old.id})": "1", f"alice ({new.id})": "2"}


def test_costs_of_shell_and_gateway_are_never_added_up(shell_costs: Office) -> None:
    key = shell_costs.key("alice")
    shell_costs.spend(key, make_charge(1_000_000), MONDAY)
    options: list[tuple[str, ...]] = [(), ("--gateway",), ("--store", str(shell_costs.file))]
    report = [json.loads(shell_costs.brim("cost", *words, "--json").stdout) for words in options]
    assert [each["total"]["cost"] for each in report] == ["0.25", "1", "1"]


def test_an_empty_report_names_the_other_option(office: Office) -> None:
    assert "--gateway" in office.brim("cost").stdout
    assert office.brim("cost", "--gateway").stdout == "No spending was recorded.\n"
    assert not office.file.exists(), "reading creates no store"


def test_control_characters_in_names_are_removed(office: Office) -> None:
    office.spend(office.key("alice"), make_charge(1), MONDAY, model="\x1b[2Jgpt\x07")
    for words in (("--by", "key", "--by", "model"), ("--gateway", "--by", "model", "--plot")):
        shown = office.brim("cost", *words).stdout
        assert "[2Jgpt" in shown
        assert not re.search(r"[\x00-\x09\x0b-\x1f]", shown)


# Bars


def test_bars_are_proportional_to_the_totals(team: Office) -> None:
    shown = team.brim("cost", "--gateway", "--plot").stdout.splitlines()
    lengths = {line[:10].strip(): line.count("█") for line in shown[:-2]}
    assert list(lengths) == [MONDAY, TUESDAY, "2026-03-04", "2026-03-05", FRIDAY]
    assert lengths[MONDAY] == pytest.approx(0.75 * lengths[FRIDAY], abs=1)
    assert lengths[TUESDAY] == lengths["2026-03-04"] == 0
    assert shown[-2].removeprefix("total").strip() == "at least $3.50, 1 presumed"
    assert max(map(len, shown)) == 80


def test_the_largest_spender_is_first(team: Office) -> None:
    shown = team.brim("cost", "--by", "key", "--plot").stdout.splitlines()
    assert [line.split()[0] for line in shown[:3]] == ["alice", "ci", "total"]


def test_without_prices_bars_show_tokens(office: Office) -> None:
    office.spend(office.key("alice"), UNPRICED, MONDAY)
    assert re.fullmatch(
        r"2026-03-02  █+  900 tokens\n", office.brim("cost", "--gateway", "--plot").stdout
    )


def test_plain_bars_use_ascii() -> None:
    bars = [Bar("a", Decimal(8), "8"), Bar("b", Decimal(4), "4"), Bar("c", Decimal(0), "0")]
    assert draw_bars(bars, 26, plain=True) == [
        "a  " + "#" * 20 + "  8",
        "b  " + "#" * 10 + " " * 10 + "  4",
        "c  " + " " * 20 + "  0",
    ]


def test_a_small_amount_has_a_visible_bar() -> None:
    bars = [Bar("a", Decimal(1_000_000), ""), Bar("b", Decimal(1), "")]
    assert "▏" in draw_bars(bars, 40, plain=False)[1]
    assert "#" in draw_bars(bars, 40, plain=True)[1]


def test_a_long_label_leaves_room_for_its_bar() -> None:
    (line,) = draw_bars([Bar("m" * 200, Decimal(1), "$1.00")], 60, plain=False)
    assert len(line) == 60
    assert "█" * 10 in line


def test_a_long_idle_time_takes_one_line() -> None:
    bars = [Bar(day, Decimal(1), "") for day in ("2026-01-01", "2026-01-03", "2026-03-01")]
    labels = [bar.label for bar in fill_idle_days(bars)]
    assert labels == ["2026-01-01", "2026-01-02", "2026-01-03", "56 days", "2026-03-01"]


@pytest.mark.parametrize(
    ("also", "has_colors"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colors_are_used_only_on_terminals_that_support_them(
    team: Office, also: dict[str, str], has_colors: bool
) -> None:
    shown = team.on_terminal(80, "cost", "--gateway", "--plot", also=also)
    assert ("\x1b[" in shown) == has_colors
    assert "█" in shown


def test_an_ascii_terminal_gets_ascii_bars(team: Office) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    shown = team.on_terminal(80, "cost", "--gateway", "--plot", also=ascii_only)
    assert "#" * 20 in shown
    assert shown.isascii()


@pytest.mark.parametrize("columns", [60, 80])
def test_a_report_fits_the_width_of_the_terminal(team: Office, columns: int) -> None:
    for words in (("--gateway",), ("--by", "key", "--plot")):
        shown = team.on_terminal(columns, "cost", *words, also={"NO_COLOR": "1"}).splitlines()
        assert max(map(len, shown)) <= columns


# Rows


def test_ledger_rows_can_be_printed_as_csv(team: Office) -> None:
    rows = list(csv.DictReader(StringIO(team.brim("cost", "--gateway", "--rows").stdout)))
    assert [(row["day"], row["key"], row["cost"], row["state"]) for row in rows] == [
        (MONDAY, "alice", "1", "settled"),
        (MONDAY, "ci", "0.5", "settled"),
        (TUESDAY, "ci", "", "settled"),
        (FRIDAY, "alice", "2", "presumed"),
    ]
    assert rows[0]["time"] == f"{MONDAY}T12:00:00+00:00"


def test_ledger_rows_can_be_printed_as_json(team: Office) -> None:
    report = team.brim("cost", "--gateway", "--rows", "--json", "--since", TUESDAY).stdout
    rows = [json.loads(line) for line in report.splitlines()]
    assert [(row["id"], row["cost"]) for row in rows] == [("request-3", None), ("request-4", "2")]
    assert {row["counted"] for row in rows} == {False}


def test_shell_calls_can_be_printed_as_rows(shell_costs: Office) -> None:
    table = list(csv.DictReader(StringIO(shell_costs.brim("cost", "--rows").stdout)))
    assert [(row["model"], row["cost"]) for row in table] == [("fast", "0.25"), ("own", "")]
    lines = shell_costs.brim("cost", "--rows", "--json").stdout.splitlines()
    assert [json.loads(line)["estimated"] for line in lines] == [False, True]


def test_an_empty_ledger_still_has_a_header(office: Office) -> None:
    head = office.brim("cost", "--gateway", "--rows").stdout
    assert head.startswith("id,time,day,key,")
    assert head.count("\n") == 1
    assert office.brim("cost", "--gateway", "--rows", "--json").stdout == ""


def test_formulas_are_escaped_in_csv(office: Office) -> None:
    evil = "=HYPERLINK(1)"
    office.spend(office.key("alice"), make_charge(1), MONDAY, model=evil)
    (row,) = csv.DictReader(StringIO(office.brim("cost", "--gateway", "--rows").stdout))
    assert row["model"] == f"'{evil}"
    report = json.loads(office.brim("cost", "--gateway", "--rows", "--json").stdout)
    assert report["model"] == evil


def test_control_characters_in_rows_are_spelled_out(office: Office) -> None:
    evil = "gpt\x1b]0;owned\x07\x9b31m\x7f–ü"
    office.spend(office.key("alice"), make_charge(1), MONDAY, model=evil)
    table = office.brim("cost", "--gateway", "--rows").stdout
    lines = office.brim("cost", "--gateway", "--rows", "--json").stdout
    for shown in (table, lines):
        assert shown.replace("\n", "").isprintable()
    (row,) = csv.DictReader(StringIO(table))
    assert row["model"] == "gpt\u241b]0;owned\u2407\\x9b31m\u2421–ü"
    assert row["project"] == ""
    assert json.loads(lines)["model"] == evil


# Days and errors


@pytest.mark.parametrize(
    ("words", "day"),
    [
        ("today", "2026-03-04"),
        ("yesterday", TUESDAY),
        ("monday", MONDAY),
        ("Wednesday", "2026-03-04"),
        ("thursday", "2026-02-26"),
        ("7d", "2026-02-25"),
        ("2 days", MONDAY),
        ("2025-12-31", "2025-12-31"),
    ],
)
def test_days_can_be_words_or_dates(words: str, day: str) -> None:
    assert parse_day(words, date(2026, 3, 4)).isoformat() == day


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--since tomorrow", "--since 'tomorrow' is not a day"),
        ("--until never", "--until 'never' is not a day"),
        ("--by key --by session", "--by session is only available for the shell's spending"),
        ("--gateway --by category", "--by category is only available for the shell's spending"),
        ("--rows --by day", "--rows cannot be combined"),
        ("--rows --plot", "--rows cannot be combined"),
        ("--plot --json", "--plot and --json cannot be combined"),
        ("--by nothing", "nothing"),
        ("--store mysql://h/x", "Unknown account store: mysql://"),
        ("--gateway --store ~/team.sqlite3", "Account store not found: ~/team.sqlite3"),
        ("--rows --store ~/team.sqlite3", "Account store not found: ~/team.sqlite3"),
        (f"--since {TUESDAY} --until {MONDAY}", f"--since {TUESDAY} is after --until {MONDAY}"),
        ("--gateway --since today --until 2d", "is after --until"),
    ],
)
def test_invalid_arguments_are_reported(office: Office, words: str, reason: str) -> None:
    ended = office.brim("cost", *words.split())
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert reason in ended.stderr
    assert not (office.folder / "team.sqlite3").exists()


def test_a_download_is_a_bar_with_figures() -> None:
    assert draw_download(0, 93_000_000) == "·" * 30 + " 0 of 93 MB"
    assert draw_download(46_500_000, 93_000_000) == "█" * 15 + "·" * 15 + " 46 of 93 MB"
    assert draw_download(93_000_000, 93_000_000) == "█" * 30 + " 93 of 93 MB"
