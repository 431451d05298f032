"""The commands in a model's reply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim import count
from brim.shell.prompt_texts import DEFAULT_PROMPT, PREFIX, RULE, TOOLS_RULE
from brim.shell.proposals import find_proposed_commands


@pytest.mark.parametrize(
    ("answer", "commands"),
    [
        ("CMD: ls", ["ls"]),
        ("Look:\n\nCMD: ls -la | head\n\nThat lists it.", ["ls -la | head"]),
        ("CMD: one\nCMD: two\n", ["one", "two"]),
        ("CMD: ls  \t\r\nok", ["ls"]),
        ("CMD:   ls", ["ls"]),
        ("```sh\nCMD: make test\n```", ["make test"]),
        ("CMD: $ ls", ["$ ls"]),
        ("CMD: `ls`", ["`ls`"]),
        ("CMD: echo CMD: ls", ["echo CMD: ls"]),
        ("CMD: ls\nand again\nCMD: ls\nCMD: pwd\nCMD: ls", ["ls", "pwd", "ls"]),
        ("CMD: ls\nCMD: \nCMD: ls", ["ls"]),
        ("CMD: echo 'a\nb'", ["echo 'a"]),
        ("CMD: printf '漢字'", ["printf '漢字'"]),
        ("", []),
        ("CMD:", []),
        ("CMD: ", []),
        ("CMD:    \n", []),
        ("CMD:ls", []),
        ("CMD:\tls", []),
        ("cmd: ls", []),
        ("Cmd: ls", []),
        (" CMD: ls", []),
        ("\tCMD: ls", []),
        ("- CMD: ls", []),
        ("> CMD: ls", []),
        ("**CMD: ls**", []),
        ("`CMD: ls`", []),
        ("Write CMD: ls", []),
        ("one\rCMD: ls", []),
        ("one\x0bCMD: ls", []),
        ("one\u2028CMD: ls", []),
        ("\ufeffCMD: ls", []),
    ],
)
def test_commands(answer: str, commands: list[str]) -> None:
    assert list(find_proposed_commands(answer)) == commands


lines = st.text(alphabet="CMD: ls$`'\"\t\r\x0b é", max_size=12)


@given(st.lists(lines, max_size=8))
def test_every_proposed_command_is_a_line_of_the_reply(answer: list[str]) -> None:
    found = list(find_proposed_commands("\n".join(answer)))
    marked_lines = [line[len(PREFIX) :].strip() for line in answer if line[: len(PREFIX)] == PREFIX]
    wanted = [command for command in marked_lines if command]
    assert [c for n, c in enumerate(wanted) if n == 0 or wanted[n - 1] != c] == found


def test_the_rule_is_small_enough_for_a_small_window() -> None:
    assert count(f"{DEFAULT_PROMPT}\n\n{RULE}") < 120
    assert count(TOOLS_RULE) < 60


def test_the_rule_contains_a_valid_example() -> None:
    assert "exactly `CMD: `" in RULE
    assert find_proposed_commands(RULE) == ("df -h",)
    assert find_proposed_commands(TOOLS_RULE) == ()
    assert "`CMD: `" in TOOLS_RULE
