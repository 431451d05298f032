"""Keys typed while brim is busy: not echoed, not lost, and no answer to a later question."""

from __future__ import annotations

import os
import termios
import threading
from collections.abc import Iterator

import pytest

from brim.shell.terminal.typeahead import Typeahead, text_from_keys
from brim.testing import ScriptedServer, TextReply
from tests.support.shell.driver import Home, Typist, home
from tests.support.shell.replies import COMMAND, DESTRUCTIVE, asks
from tests.support.terminal import Start, start_terminal

__all__ = ["home", "start_terminal"]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("", ""),
        ("ls -l\r", "ls -l"),
        ("one\rtwo\r", "one\ntwo"),
        ("lx\x7fs", "ls"),
        ("\x7f\x7fa", "a"),
        ("a\x1b[D\x1bOAb\x1b[1;5Cc\x1b[24;80R", "abc"),
        ("\x1b[200~pasted\x1b[201~", "pasted"),
        ("tab\there\x04\x1b", "tabhere"),
        ("é中🙂", "é中🙂"),
    ],
)
def test_keys_become_text(keys: str, text: str) -> None:
    assert text_from_keys(keys) == text


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    ours, theirs = os.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_keys_are_neither_echoed_nor_lost(pair: tuple[int, int]) -> None:
    ours, theirs = pair
    before = termios.tcgetattr(theirs)
    early = Typeahead(theirs)
    with early.quiet(), early.quiet():
        os.write(ours, b"first")
        early.take()
        os.write(ours, b" second\r")
    os.set_blocking(ours, False)
    with pytest.raises(BlockingIOError):
        os.read(ours, 100)
    assert termios.tcgetattr(theirs) == before
    assert early.take_text() == "first second"
    assert early.take_text() == ""


def test_a_question_gets_a_normal_terminal_and_no_early_keys(pair: tuple[int, int]) -> None:
    ours, theirs = pair
    before = termios.tcgetattr(theirs)
    early = Typeahead(theirs)
    with early.quiet():
        os.write(ours, b"yes\r")
        with early.asking():
            assert termios.tcgetattr(theirs) == before
            os.write(ours, b"no\r")
            assert os.read(theirs, 100) == b"no\n"
        assert not termios.tcgetattr(theirs)[3] & termios.ECHO
    assert termios.tcgetattr(theirs) == before
    assert early.take_text() == "yes"


def test_the_terminal_is_always_restored(pair: tuple[int, int]) -> None:
    before = termios.tcgetattr(pair[1])

    def interrupted() -> None:
        with Typeahead(pair[1]).quiet():
            assert not termios.tcgetattr(pair[1])[3] & termios.ECHO
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert termios.tcgetattr(pair[1]) == before


def test_without_a_terminal_nothing_is_read() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"a script\n")
        early = Typeahead(reading)
        with early.quiet():
            early.take()
        assert early.take_text() == ""
        assert os.read(reading, 100) == b"a script\n"
    finally:
        os.close(reading)
        os.close(writing)


def typed_while_it_answers(shell: Typist, keys: str) -> None:
    shell.terminal.line("please speak slowly")
    shell.terminal.wait_for("First")
    shell.terminal.type(keys)


def test_keys_typed_during_a_reply_are_in_the_next_prompt(home: Home) -> None:
    hold = threading.Event()
    with ScriptedServer([TextReply("First words and then the last ones.", hold=hold)]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            typed_while_it_answers(shell, "echo early\r")
            hold.set()
            shell.at("$ echo early")
            assert "First words and then the last ones." in shell.terminal.everything
            shell.terminal.press("enter")
            shell.terminal.wait_for(lambda screen: "early" in screen)
            shell.at_prompt()


def test_keys_typed_before_ctrl_c_are_not_lost(home: Home, start_terminal: Start) -> None:
    hold = threading.Event()
    with ScriptedServer([TextReply("First words and then the last ones.", hold=hold)]) as provider:
        home.configure(provider)
        with home.shell(start=start_terminal) as shell:
            typed_while_it_answers(shell, "echo early")
            shell.terminal.press("ctrl-c")
            shell.at("$ echo early")
            assert "stopped; the partial reply is kept" in shell.terminal.everything


@pytest.mark.parametrize(
    ("command", "question"),
    [("rm -rf precious", DESTRUCTIVE), ("touch made", COMMAND)],
)
def test_keys_typed_before_a_question_do_not_answer_it(
    home: Home, command: str, question: str
) -> None:
    (home.folder / "precious").mkdir()
    hold = threading.Event()
    with ScriptedServer([TextReply(f"First this:\nCMD: {command}", hold=hold)]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            typed_while_it_answers(shell, "yes\r")
            hold.set()
            asks(shell, question)
            shell.terminal.line("s")
            shell.at_prompt("yes")
    assert (home.folder / "precious").is_dir()
    assert not (home.folder / "made").exists()


def test_an_answer_is_echoed_on_a_dumb_terminal(home: Home) -> None:
    with ScriptedServer("So:\nCMD: touch made") as provider:
        home.configure(provider)
        with home.shell(also={"TERM": "dumb"}) as shell:
            shell.terminal.line("?make it")
            asks(shell, COMMAND)
            shell.terminal.line("y")
            shell.at_prompt()
    assert (home.folder / "made").exists()


def test_keys_typed_with_the_line_do_not_answer_a_question(home: Home) -> None:
    (home.folder / "precious").mkdir()
    with ScriptedServer("So:\nCMD: rm -rf precious") as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.type("?take it away\ryes\r")
            asks(shell, DESTRUCTIVE)
            shell.terminal.line("s")
            shell.at("yes")
    assert (home.folder / "precious").is_dir()
    assert len(provider.requests) == 1
