"""The terminals of the tests, tried on a small program with a prompt, and on a shell."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.terminal import Driver, Start, Terminal, start_terminal

__all__ = ["start_terminal"]

PROGRAM = """
import signal, sys, time
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import HTML

words = WordCompleter(["apple", "apricot", "banana"])
session = PromptSession(bottom_toolbar=HTML("<b>a toolbar</b>"), completer=words)
while True:
    try:
        said = session.prompt(HTML("<ansigreen>say</ansigreen>> "))
    except KeyboardInterrupt:
        print("interrupted")
        continue
    except EOFError:
        sys.exit(7)
    if said == "lines":
        print("\\n".join(f"line {n}" for n in range(200)))
    elif said == "wait":
        try:
            print("waiting", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print("woken")
    else:
        print(f"you said {said!r} in {len(said)}")
"""


@pytest.fixture
def talk(start_terminal: Start, tmp_path: Path) -> Driver:
    (tmp_path / "program.py").write_text(PROGRAM)
    terminal = start_terminal([sys.executable, "program.py"], columns=60, rows=12)
    terminal.wait_for("say> ")
    return terminal


def test_a_line_is_typed_and_answered(talk: Driver) -> None:
    talk.line("a 'b' \"c\" $d;")
    talk.wait_for("you said 'a \\'b\\' \"c\" $d;' in 13")
    talk.line("é 漢字 x")
    talk.wait_for("you said 'é 漢字 x' in 6")
    assert "CPR" not in talk.everything


def test_the_toolbar_is_on_the_last_line(talk: Driver) -> None:
    talk.wait_for(lambda screen: "a toolbar" in screen[-1])
    assert len(talk.screen) == 12


def test_a_line_longer_than_the_screen_is_wide(talk: Driver) -> None:
    long = "".join(chr(ord("a") + n % 26) for n in range(150))
    talk.line(long)
    talk.wait_for(f"you said '{long}' in 150")


def test_what_has_scrolled_by_is_kept(talk: Driver) -> None:
    talk.line("lines")
    talk.wait_for("line 199")
    assert "line 3" not in talk.screen
    talk.wait_for("\nline 3\n", anywhere=True)
    scrolled = talk.everything.split("\n")
    assert [line for line in scrolled if line.startswith("line ")] == [
        f"line {n}" for n in range(200)
    ]


def test_keys_are_pressed(talk: Driver) -> None:
    talk.type("apr")
    talk.wait_for("apricot")
    talk.press("tab")
    talk.wait_for("say> apricot")
    talk.press("ctrl-u")
    talk.type("bc")
    talk.press("home")
    talk.type("a")
    talk.press("end")
    talk.type("d")
    talk.press("left")
    talk.press("backspace")
    talk.wait_for("say> abd")
    talk.press("enter")
    talk.wait_for("you said 'abd'")
    talk.press("up")
    talk.wait_for(lambda _: talk.before_cursor.endswith("abd"))
    talk.press("enter")
    talk.wait_for(lambda screen: sum("you said 'abd'" in line for line in screen) == 2)


def test_a_pasted_text_is_one_line_of_input(talk: Driver) -> None:
    talk.paste("one\ntwo;")
    talk.wait_for("two;")
    talk.press("enter")
    talk.wait_for("you said 'one\\ntwo;' in 8")


def test_ctrl_c_reaches_the_prompt_and_what_runs(talk: Driver) -> None:
    talk.press("ctrl-c")
    talk.wait_for("interrupted")
    talk.line("wait")
    talk.wait_for("waiting")
    talk.press("ctrl-c")
    talk.wait_for("woken")
    talk.line("still here")
    talk.wait_for("you said 'still here'")


def test_a_program_ends_with_its_code(talk: Driver) -> None:
    assert talk.code is None
    talk.press("ctrl-d")
    assert talk.wait_for_end() == 7


def test_a_killed_program_is_dead(talk: Driver) -> None:
    talk.line("before")
    talk.wait_for("you said 'before'")
    talk.kill()
    assert talk.code == -9
    assert "you said 'before'" in talk.everything


def test_a_program_is_told_of_another_size(talk: Driver) -> None:
    talk.resize(40, 20)
    talk.wait_for(lambda screen: len(screen) == 20 and "a toolbar" in screen[-1])
    talk.line("x" * 50)
    talk.wait_for("in 50")


def test_a_picture_has_colours(talk: Driver) -> None:
    talk.settle()
    lines = [line for line in talk.ansi().split("\n") if "say" in line]
    assert "32msay" in lines[0]


def test_what_does_not_come_is_an_error_that_shows_the_screen(talk: Driver) -> None:
    talk.line("lines")
    talk.wait_for("line 199")
    with pytest.raises(AssertionError) as error:
        talk.wait_for("something else", timeout=0.1)
    assert "waited for 'something else'" in str(error.value)
    assert "\nline 60\n" in str(error.value)
    assert "a toolbar" in str(error.value)


def test_a_program_that_ends_is_waited_for_no_longer(talk: Driver) -> None:
    talk.press("ctrl-d")
    with pytest.raises(AssertionError, match=r"the program ended \(7\)"):
        talk.wait_for("something else", timeout=600)


def test_a_key_that_is_none(talk: Driver) -> None:
    with pytest.raises(ValueError, match="no key is called 'ctrl-enter'"):
        talk.press("ctrl-enter")


def test_programs_that_use_the_whole_screen_give_it_back(start_terminal: Start) -> None:
    script = (
        "echo before; read a; printf '\\033[?1049h\\033[2J\\033[Hthe other screen'; read b; "
        "printf '\\033[?1049l'; echo after; read c"
    )
    terminal = start_terminal(["sh", "-c", script])
    terminal.wait_for("before")
    terminal.press("enter")
    terminal.wait_for(lambda screen: screen[0] == "the other screen" and "before" not in screen)
    terminal.press("enter")
    terminal.wait_for(lambda screen: screen[0] == "before" and "after" in screen)
    assert "the other screen" not in terminal.everything


def test_the_program_has_a_terminal_of_its_own(start_terminal: Start, tmp_path: Path) -> None:
    script = 'echo "$WORD in $(pwd)"; stty size < /dev/tty; read a'
    terminal = start_terminal(
        ["sh", "-c", script],
        environment={"PATH": os.environ["PATH"], "WORD": "hello"},
        columns=70,
        rows=9,
    )
    terminal.wait_for(f"hello in {tmp_path.resolve()}")
    terminal.wait_for("9 70")


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("\\033[6n", "\\x1b[1;1R"),
        ("\\033[5n", "\\x1b[0n"),
        ("\\033[c", "\\x1b[?6c"),
        ("\\033[>c", "\\x1b[>0;10;1c"),
    ],
)
def test_queries_are_answered(tmp_path: Path, asked: str, answer: str) -> None:
    program = (
        f"import os, sys, tty; tty.setraw(0); os.write(1, b'{asked}'); "
        "data = b''\nwhile not data[-1:].isalpha(): data += os.read(0, 1)\n"
        "print(ascii(data))"
    )
    with Terminal([sys.executable, "-c", program], environment={}, folder=tmp_path) as terminal:
        terminal.wait_for(answer)


@pytest.mark.parametrize(
    "strange",
    [
        "\\033[>4;1m", "\\033[?6n", "\\033[?1$p", "\\033[4:3m", "\\033P+q544e\\033\\\\",
        "\\033]11;?\\007", "\\033[2 q", "\\033[!p", "\\033[?25h", "\\033[=1u",
    ],
)  # fmt: skip
def test_what_the_emulator_does_not_know_is_not_printed(tmp_path: Path, strange: str) -> None:
    command = ["sh", "-c", f"printf 'one {strange}two'; read a"]
    with Terminal(command, environment=dict(os.environ), folder=tmp_path) as terminal:
        terminal.wait_for("one two")
        assert "\x1b[0mone two" in terminal.ansi()


def test_dim_is_a_kind_of_type_like_bold(tmp_path: Path) -> None:
    command = ["sh", "-c", "printf 'a\\033[2mb\\033[22mc\\033[1;2;31md\\033[0me'; read a"]
    with Terminal(command, environment=dict(os.environ), folder=tmp_path) as terminal:
        terminal.wait_for("abcde")
        assert terminal.ansi() == "\x1b[0ma\x1b[0;2mb\x1b[0mc\x1b[0;1;2;31md\x1b[0me\x1b[0m"
