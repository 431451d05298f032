"""Mistyped commands are noticed before a model is asked about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.shell.input.classification import Classification
from brim.shell.input.classify import classify, suggest_command
from brim.shell.input.simple_commands import KnownNames
from brim.testing import ScriptedServer
from tests.support.shell.driver import Home, home

__all__ = ["home"]

NAMES = frozenset(("git", "ls", "cat", "grep", "find", "make", "docker", "test", "cargo", "sort"))


def classify_line(line: str) -> Classification:
    return classify(line, KnownNames(NAMES.__contains__, lambda path: Path(path).exists(), ()))


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("gti status", "git status"),
        ("sl", "ls"),
        ("sl -la", "ls -la"),
        ("gerp -rn TODO .", "grep -rn TODO ."),
        ("dokcer ps -a", "docker ps -a"),
        ("mak -j4", "make -j4"),
        ("catt -n x", "cat -n x"),
        ("cargp build --release", "cargo build --release"),
        ("mkae", "make"),
    ],
)
def test_a_slip_is_recognized(line: str, meant: str) -> None:
    assert suggest_command(line, NAMES, classify_line) == meant


@pytest.mark.parametrize(
    "line",
    [
        *(
            "",
            "fine",
            "rest",
            "hat is this",
            "fund the bug in my code",
            "gti status?",
            "thanks",
            "a b",
        ),
        *(
            "sore loser, are you",
            "hello there",
            "what is git",
            "frobnicate --all",
            "mail me the log",
        ),
    ],
)
def test_a_sentence_is_left_alone(line: str) -> None:
    assert suggest_command(line, NAMES, classify_line) is None


def test_the_user_is_asked_what_they_meant(home: Home) -> None:
    with ScriptedServer("Here it is.") as provider:
        home.configure(provider)
        with home.shell() as shell:
            assert "@notes.txt" in shell.do(":tour")
            shell.expect_question("ehco typed-wrong", "ask the model:")
            assert "typed-wrong\n" in shell.do("y")
            shell.expect_question("ehco typed-wrong", "ask the model:")
            assert "Here it is." in shell.do("n")
    assert len(provider.requests) == 1
