"""Arguments of meta commands, and the overview of `:help`."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from brim.errors import InputError
from brim.shell.commands import COMMANDS, names
from brim.shell.commands.inspect import _author, _describe_turn
from brim.shell.commands.meta_command import GROUPS, Overview, find, parse_number

WORDLESS = ("tour", "usage", "models", "doctor", "reset", "undo", "retry", "edit")


@pytest.mark.parametrize("name", WORDLESS)
def test_a_command_without_arguments_rejects_them(name: str) -> None:
    COMMANDS[name].check("")
    with pytest.raises(InputError, match=f":{name} takes no argument: 'x y'. Leave it out."):
        COMMANDS[name].check("x y")
    assert {name for name, command in COMMANDS.items() if not command.usage} == set(WORDLESS)


@pytest.mark.parametrize(
    ("name", "taken", "wrong", "problem"),
    [
        ("cost", ("", "detail", "reset"), "rest", "Unknown argument: 'rest'. Use detail or reset."),
        ("context", ("", "json"), "x", "Unknown argument: 'x'. Use json."),
        ("sessions", ("", "all"), "x", "Unknown argument: 'x'. Use all."),
        ("config", ("", "all"), "all of it", "Unknown argument: 'all of it'. Use all."),
        ("output", ("", "drop"), "x", "Unknown argument: 'x'. Use drop."),
        ("rolling", ("", "on", "off"), "perhaps", "Unknown argument: 'perhaps'. Use on or off."),
    ],
)
def test_a_command_with_fixed_arguments_rejects_others(
    name: str, taken: tuple[str, ...], wrong: str, problem: str
) -> None:
    for words in taken:
        COMMANDS[name].check(words)
    with pytest.raises(InputError) as rejected:
        COMMANDS[name].check(wrong)
    assert str(rejected.value) == problem


@pytest.mark.parametrize("name", ["tokens", "goal", "export"])
def test_a_missing_argument_is_an_error_with_an_example(name: str) -> None:
    COMMANDS[name].check("anything goes")
    with pytest.raises(InputError, match=rf"^The .* is missing\. Example: :{name} "):
        COMMANDS[name].check("")


def test_every_required_argument_has_an_error_message() -> None:
    needs_words = {name for name, one in COMMANDS.items() if one.usage[:1] not in ("", "[")}
    required = {name for name, one in COMMANDS.items() if one.missing}
    assert needs_words == required | {"recall"}, "which wants a number"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", "The turn is missing. Example: :recall 3"),
        ("x", "The turn must be a number: 'x'. Example: :recall 3"),
        ("0", "The turn must be at least 1: 0."),
        ("-2", "The turn must be at least 1: -2."),
    ],
)
def test_numbers(words: str, problem: str) -> None:
    assert parse_number("7", "turn", example=":recall 3", least=7) == 7
    with pytest.raises(InputError) as rejected:
        parse_number(words, "turn", example=":recall 3", least=1)
    assert str(rejected.value) == problem


def test_choices() -> None:
    COMMANDS["cost"].check("detail")
    with pytest.raises(InputError, match=r"Unknown argument: 'all'\. Use detail or reset\."):
        COMMANDS["cost"].check("all")


def test_names_of_other_shells_are_handled() -> None:
    assert names()["clear"] is names()["new"] is COMMANDS["reset"]
    assert names()["exit"] is COMMANDS["quit"]
    with pytest.raises(InputError, match="History expansion"):
        find("!!")


def draw(width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(Overview())
    return file.getvalue().splitlines()


def test_the_overview_lists_every_command_once() -> None:
    listed = [name for group in GROUPS.values() for name in group]
    assert sorted(listed) == sorted(COMMANDS)


def test_the_shell_page_lists_every_command() -> None:
    page = (Path(__file__).parents[2] / "docs/shell.md").read_text("utf-8")
    assert set(COMMANDS) <= set(re.findall(r"`:(\w+)", page))


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_overview_is_never_truncated(width: int) -> None:
    lines = draw(width)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert "…" not in text
    for group in GROUPS.values():
        assert all(f":{name.ljust(10)}{about}" in text for name, about in group.items())
    assert "ctrl-d" in text


def test_the_overview_takes_one_screen() -> None:
    assert len(draw(100)) <= 30


def test_turns_are_described_in_one_line() -> None:
    calls = [{"function": {"name": "read"}}, {"function": {"name": "write"}}]
    assert (
        _describe_turn({"role": "assistant", "content": "", "tool_calls": calls})
        == "calls read, write"
    )
    assert _describe_turn({"role": "assistant", "content": ""}) == "(empty)"
    assert _describe_turn({"role": "assistant", "content": None}) == "(empty)"
    assert (
        _describe_turn({"role": "assistant", "content": "One", "_cut": True}) == "(incomplete) One"
    )
    assert _author({"role": "user", "content": "Go on.", "_brim": True}) == "brim"
    assert _author({"role": "user", "content": "Go on."}) == "user"
