"""Keys typed while brim is busy: not echoed, not lost, and no answer to a later question."""

from __future__ import annotations

import os
import random
import termios
import threading
import time
from collections.abc import Iterator

import pytest

from brim.shell.terminal.typeahead import Typeahead, remove_echo, text_from_keys
from brim.testing import ScriptedServer, TextReply
from tests.support.shell.driver import Home, Typist, home, last_words
from tests.support.shell.replies import COMMAND, DESTRUCTIVE, asks
from tests.support.terminal import Start, start_terminal

__all__ = ["home", "start_terminal"]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("", ""),
        ("ls -l\r", "ls -l\n"),
        ("one\rtwo\r", "one\ntwo\n"),
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
    early.add(b"third\r")
    assert early.take_keys() == ("first second\nthird\r", False)
    assert early.take_keys() == ("", False)


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
    assert early.take_keys() == ("yes\n", True)


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
        assert early.take_keys() == ("", False)
        assert os.read(reading, 100) == b"a script\n"
    finally:
        os.close(reading)
        os.close(writing)


def typed_while_it_answers(shell: Typist, keys: str) -> None:
    shell.terminal.line("please speak slowly")
    shell.terminal.wait_for("First")
    shell.terminal.type(keys)


def test_lines_typed_during_a_reply_run_after_it(home: Home) -> None:
    hold = threading.Event()
    with ScriptedServer([TextReply("First words and then the last ones.", hold=hold)]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            typed_while_it_answers(shell, "echo early\recho another")
            hold.set()
            shell.at("$ echo another")
            assert "First words and then the last ones." in shell.terminal.everything
            assert shell.terminal.everything.count("\nearly\n") == 1


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_lines_typed_while_commands_run_are_executed_in_order(home: Home, term: str) -> None:
    chance = random.Random(term)
    lines = [_busy_line(chance, number) for number in range(60)]
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        with home.shell(also={"TERM": term}) as shell:
            for line in [*lines, "touch finished"]:
                shell.terminal.type(f"{line}\r")
                time.sleep(chance.choice((0, 0, 0.01, 0.1)))
            shell.wait((home.folder / "finished").exists, "the last line")
            shell.at_prompt()
    assert provider.requests == []
    written = (home.folder / "log").read_text().split()
    assert written == [str(number) for number, line in enumerate(lines) if "log" in line]


def _busy_line(chance: random.Random, number: int) -> str:
    log = f"echo {number} >> log"
    return chance.choice((log, f"sleep 0.{chance.randint(0, 2)}; {log}", ":wrod", f"{log}; seq 40"))


def test_lines_typed_early_are_not_in_the_output_that_is_sent(home: Home) -> None:
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.type("echo one; sleep 1; echo two\r")
            shell.wait(lambda: "\none\n" in shell.terminal.everything)
            shell.terminal.type("echo three\r")
            shell.wait(lambda: "\nthree\n" in shell.terminal.everything)
            shell.at_prompt()
            shell.do("what happened?")
    sent = last_words(provider.requests[0].body)
    assert sent.count("echo three") == 1
    assert "\none\ntwo\n" in sent


def test_lines_of_the_program_itself_stay() -> None:
    assert remove_echo("yes\nready\nyes\n", b"ye\x7fes\rno\r") == "ready\nyes\n"
    assert remove_echo("50 %make\n100 %\n", b"make\r") == "50 %make\n100 %\n"
    assert remove_echo("a\n\nb\n", b"\r") == "a\n\nb\n"


def test_lines_typed_before_ctrl_c_are_not_run(home: Home) -> None:
    hold = threading.Event()
    with ScriptedServer([TextReply("First words and then the last ones.", hold=hold)]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            typed_while_it_answers(shell, "touch made\r")
            shell.terminal.press("ctrl-c")
            shell.at("$ touch made")
    assert not (home.folder / "made").exists()


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
