"""Shell commands among the arguments of tool calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brim.shell.risk import assess
from brim.shell.tool_calls import find_commands

DESTRUCTIVE: list[dict[str, Any]] = [
    {"command": "rm -rf ~"},
    {"commands": ["ls", "rm -rf ~"]},
    {"program": "rm", "args": ["-rf", "~"]},
    {"cmd": {"program": "rm", "args": ["-rf", "~"]}},
    {"argv": ["rm", "-rf", "x"]},
    {"command": [["rm", "-rf", "~"]]},
    {"command": "rm\t-rf\t~", "args": ["x"]},
    {"command": "rm", "arguments": "-rf ~"},
    {"run": "rm -rf ~"},
    {"cmdline": "rm -rf ~"},
    {"command_line": "rm -rf ~"},
    {"commandLine": "rm -rf ~"},
    {"bash_command": "rm -rf ~"},
    {"shellCommand": "rm -rf ~"},
    {"CMD": "rm -rf ~"},
    {"steps": [{"run": "rm -rf ~"}]},
    {"execute": {"line": "rm -rf ~"}},
    {"script": "cd x\nrm -rf y"},
]
HARMLESS: list[dict[str, Any]] = [
    {},
    {"command": "ls -l"},
    {"path": "notes.md", "content": "don't rm -rf this"},
    {"query": "how to rm -rf a folder"},
    {"a": 1, "b": [1, 2]},
    {"argv": ["git", "status"]},
    {"program": "ls", "args": []},
    {"recommendation": "rm -rf x"},
]


def is_destructive(arguments: dict[str, Any]) -> bool:
    return any(
        assess(command, variables={}, folder=Path("/")).is_destructive
        for command in find_commands(arguments)
    )


@pytest.mark.parametrize("arguments", DESTRUCTIVE, ids=str)
def test_a_destructive_command_is_found_in_any_argument(arguments: dict[str, Any]) -> None:
    assert is_destructive(arguments)


@pytest.mark.parametrize("arguments", HARMLESS, ids=str)
def test_what_is_no_command_is_left_alone(arguments: dict[str, Any]) -> None:
    assert not is_destructive(arguments)
