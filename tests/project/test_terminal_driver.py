"""The terminal driver of the tests, with a small program and with a shell."""

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
def prompt(start_terminal: Start, tmp_path: Path) -> Driver:
    (tmp_path / "program.py").write_text(PROGRAM)
    terminal = start_terminal([sys.executable, "program.py"], columns=60, rows=12)
    terminal.wait_for("say> ")
    return terminal


def test_a_typed_line_gets_a_response(prompt: Driver) -> None:
    prompt.line("a 'b' \"c\" $d;")
    prompt.wait_for("you said 'a \\'b\\' \"c\" $d;' in 13")
    prompt.line("é 漢字 x")
    prompt.wait_for("you said 'é 漢字 x' in 6")
    assert "CPR" not in prompt.everything


def test_the_toolbar_is_on_the_last_line(prompt: Driver) -> None:
    prompt.wait_for(lambda screen: "a toolbar" in screen[-1])
    assert len(prompt.screen) == 12


def test_a_line_can_be_longer_than_the_screen(prompt: Driver) -> None:
    long = "".join(chr(ord("a") + n % 26) for n in range(150))
    prompt.line(long)
    prompt.wait_for(f"you said '{long}' in 150")


def test_the_scrollback_is_kept(prompt: Driver) -> None:
    prompt.line("lines")
    prompt.wait_for("line 199")
    assert "line 3" not in prompt.screen
    prompt.wait_for("\nline 3\n", anywhere=True)
    scrolled = prompt.everything.split("\n")
    assert [line for line in scrolled if line.startswith("line ")] == [
        f"line {n}" for n in range(200)
    ]


def test_keys_can_be_pressed(prompt: Driver) -> None:
    prompt.type("apr")
    prompt.wait_for("apricot")
    prompt.press("tab")
    prompt.wait_for("say> apricot")
    prompt.press("ctrl-u")
    prompt.type("bc")
    prompt.press("home")
    prompt.type("a")
    prompt.press("end")
    prompt.type("d")
    prompt.press("left")
    prompt.press("backspace")
    prompt.wait_for("say> abd")
    prompt.press("enter")
    prompt.wait_for("you said 'abd'")
    prompt.press("up")
    prompt.wait_for(lambda _: prompt.before_cursor.endswith("abd"))
    prompt.press("enter")
    prompt.wait_for(lambda screen: sum("you said 'abd'" in line for line in screen) == 2)


def test_a_pasted_text_is_one_line_of_input(prompt: Driver) -> None:
    prompt.paste("one\ntwo;")
    prompt.wait_for("two;")
    prompt.press("enter")
    prompt.wait_for("you said 'one\\ntwo;' in 8")


def test_ctrl_c_reaches_the_prompt_and_a_running_program(prompt: Driver) -> None:
    prompt.press("ctrl-c")
    prompt.wait_for("interrupted")
    prompt.line("wait")
    prompt.wait_for("waiting")
    prompt.press("ctrl-c")
    prompt.wait_for("woken")
    prompt.line("still here")
    prompt.wait_for("you said 'still here'")


def test_the_exit_code_of_a_program_is_known(prompt: Driver) -> None:
    assert prompt.code is None
    prompt.press("ctrl-d")
    assert prompt.wait_for_end() == 7


def test_a_killed_program_is_dead(prompt: Driver) -> None:
    prompt.line("before")
    prompt.wait_for("you said 'before'")
    prompt.kill()
    assert prompt.code == -9
    assert "you said 'before'" in prompt.everything


def test_a_program_sees_a_new_size(prompt: Driver) -> None:
    prompt.resize(40, 20)
    prompt.wait_for(lambda screen: len(screen) == 20 and "a toolbar" in screen[-1])
    prompt.line("x" * 50)
    prompt.wait_for("in 50")


def test_a_screenshot_has_colors(prompt: Driver) -> None:
    prompt.settle()
    lines = [line for line in prompt.ansi().split("\n") if "say" in line]
    assert "32msay" in lines[0]


def test_a_missing_output_is_an_error_with_the_screen(prompt: Driver) -> None:
    prompt.line("lines")
    prompt.wait_for("line 199")
    with pytest.raises(AssertionError) as error:
        prompt.wait_for("something else", timeout=0.1)
    assert "waited for 'something else'" in str(error.value)
    assert "\nline 60\n" in str(error.value)
    assert "a toolbar" in str(error.value)


def test_waiting_stops_when_the_program_ends(prompt: Driver) -> None:
    prompt.press("ctrl-d")
    with pytest.raises(AssertionError, match=r"the program ended \(7\)"):
        prompt.wait_for("something else", timeout=600)


def test_an_unknown_key_is_an_error(prompt: Driver) -> None:
    with pytest.raises(ValueError, match="no key is called 'ctrl-enter'"):
        prompt.press("ctrl-enter")


def test_the_screen_is_restored_after_a_full_screen_program(start_terminal: Start) -> None:
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


def test_the_program_has_its_own_terminal(start_terminal: Start, tmp_path: Path) -> None:
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
def test_unknown_escape_sequences_are_not_printed(tmp_path: Path, strange: str) -> None:
    command = ["sh", "-c", f"printf 'one {strange}two'; read a"]
    with Terminal(command, environment=dict(os.environ), folder=tmp_path) as terminal:
        terminal.wait_for("one two")
        assert "\x1b[0mone two" in terminal.ansi()


def test_dim_is_a_text_style_like_bold(tmp_path: Path) -> None:
    command = ["sh", "-c", "printf 'a\\033[2mb\\033[22mc\\033[1;2;31md\\033[0me'; read a"]
    with Terminal(command, environment=dict(os.environ), folder=tmp_path) as terminal:
        terminal.wait_for("abcde")
        assert terminal.ansi() == "\x1b[0ma\x1b[0;2mb\x1b[0mc\x1b[0;1;2;31md\x1b[0me\x1b[0m"
