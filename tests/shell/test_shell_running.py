"""Commands in the shell: they run in the user's shell, and their output is sent to the model."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.testing import ScriptedServer
from tests.support.shell.driver import PROGRAM, Home, home, last_words
from tests.support.terminal import Start, start_terminal

__all__ = ["home", "start_terminal"]

FULL_SCREEN = """
import sys, termios, tty
before = termios.tcgetattr(0)
tty.setraw(0)
sys.stdout.write("\\x1b[?1049h\\x1b[2J\\x1b[Hall of the screen")
sys.stdout.flush()
key = sys.stdin.read(1)
sys.stdout.write("\\x1b[?1049l")
sys.stdout.flush()
termios.tcsetattr(0, termios.TCSADRAIN, before)
sys.exit(0 if key == "q" else 5)
"""


@pytest.fixture
def provider(home: Home) -> Iterator[ScriptedServer]:
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        yield provider


def test_a_command_is_shown_live_and_sent_to_the_model(
    home: Home, provider: ScriptedServer
) -> None:
    with home.shell() as shell:
        shell.terminal.line("echo begun; read line; echo got $line")
        shell.terminal.wait_for(lambda screen: "begun" in screen)
        shell.terminal.type("typed\r")
        shell.terminal.wait_for("got typed")
        shell.at_prompt()
        shell.do("mkdir inner; cd inner")
        assert str(home.folder / "inner") in shell.do("pwd")
        shell.do("export COLOUR=teal")
        assert "it is teal" in shell.do('echo "it is $COLOUR"')
        assert "exit code 3" in shell.do("(exit 3)")
        assert "not found" in shell.do("!nosuchprogram")
        shell.do("what happened here?")
    message = last_words(provider.requests[0].body)
    assert message.startswith("[exec output]\n")
    assert "begun\n" in message
    assert "got typed" in message
    assert "$ (exit 3)\n(no output)\n[exit code 3]" in message
    assert "[exit code 127]" in message
    assert message.endswith("\n\nwhat happened here?")


@pytest.mark.usefixtures("provider")
def test_ctrl_c_stops_a_command_and_not_the_shell(home: Home) -> None:
    (home.folder / "log").write_text("begun\n")  # by one process: shells can miss an interrupt
    with home.shell() as shell:
        shell.terminal.line("tail -f log")
        shell.terminal.wait_for(lambda screen: "begun" in screen)
        shell.terminal.press("ctrl-c")
        shell.terminal.wait_for("exit code 130")
        shell.at_prompt()
        assert "still here" in shell.do("echo still here")


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(
    ("command", "code"), [("set -e; false", 1), ("kill -9 $$", 137), ("exec true", 0)]
)
def test_the_end_of_the_users_shell_is_reported(home: Home, command: str, code: int) -> None:
    with home.shell() as shell:
        shown = shell.do(command)
        assert f"your shell ended with exit code {code}; a new one was started" in shown
        assert "still here" in shell.do("echo still here")


@pytest.mark.usefixtures("provider")
def test_output_of_a_background_job_appears_above_the_line(home: Home) -> None:
    job = "!(until [ -e go ]; do sleep 0.02; done; echo the job speaks; printf 'and on') &"
    with home.shell() as shell:
        shell.do(job)
        shell.terminal.type("echo half a")
        shell.at("$ echo half a")
        (home.folder / "go").touch()
        shell.terminal.wait_for(lambda screen: "the job speaks" in screen)
        shell.at("$ echo half a")
        assert sum("echo half a" in row for row in shell.terminal.screen) == 1
        shell.terminal.line(" line")
        shell.terminal.wait_for(lambda screen: any(row.endswith("half a line") for row in screen))
        shell.at_prompt()


def test_a_long_output_is_clipped_with_the_path_of_the_whole(
    home: Home, provider: ScriptedServer
) -> None:
    with home.shell() as shell:
        shell.terminal.line("seq -f 'line %g of many' 1 4000")
        shell.terminal.wait_for(lambda screen: "line 4000 of many" in screen)
        shell.at_prompt()
        shell.do("how many lines were there?")
        message = last_words(provider.requests[0].body)
        assert "line 1 of many" in message
        assert "line 4000 of many" in message
        assert "line 2000 of many" not in message
        named = re.search(r"\[full output: (.*)\]", message)
        assert named is not None
        path = Path(named[1].replace("~", str(home.folder), 1))
        assert "line 2000 of many" in path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_secrets_are_not_kept_in_the_files_of_long_outputs(home: Home) -> None:
    secret = "zq8-Kf72-mmA1-04xTr"
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        with home.shell(also={"MY_API_KEY": secret}) as shell:
            for length in (20_000, 9_000):  # more than the memory holds, and less
                shell.terminal.line(f"echo $MY_API_KEY; seq {length}; echo the; echo end")
                shell.terminal.wait_for(lambda screen: "end" in screen)
                shell.at_prompt()
    files = [*home.folder.rglob("output-*.txt")]
    assert len(files) == 2
    for path in files:
        text = path.read_text()
        assert secret not in text
        assert "MY_API_KEY" in text
        assert "\n8999\n" in text


def test_secrets_are_not_sent_to_the_model(home: Home, provider: ScriptedServer) -> None:
    secret = "zq8-Kf72-mmA1-04xTr"
    with home.shell(also={"MY_API_KEY": secret}) as shell:
        shown = shell.do("echo the key is $MY_API_KEY")
        assert secret in shown, "the user sees it"
        assert re.search(r"hidden from the model: .*MY_API_KEY", shown)
        made = "ghp_" + "aB3dE6gH9" * 4
        assert "hidden from the model" in shell.do(f"echo {made}")
        shell.do("which key is it?")
    message = last_words(provider.requests[0].body)
    assert "the key is " in message
    assert secret not in message
    assert made not in message.split("$ echo " + made)[-1]


def test_a_full_screen_program_leaves_nothing(
    home: Home, provider: ScriptedServer, start_terminal: Start
) -> None:
    (home.folder / "full.py").write_text(FULL_SCREEN)
    with home.shell(start=start_terminal) as shell:
        shell.do("echo before it")
        shell.terminal.line(f"{shlex.quote(sys.executable)} full.py")
        shell.terminal.wait_for(lambda screen: screen[0] == "all of the screen")
        assert "before it" not in "\n".join(shell.terminal.screen)
        shell.terminal.type("q")
        shell.terminal.wait_for(lambda screen: "before it" in screen)
        shell.at_prompt()
        assert "all of the screen" not in "\n".join(shell.terminal.screen)
        assert "exit code" not in "\n".join(shell.terminal.screen)
        assert "after it" in shell.do("echo after it")
        shell.do("what was that?")
    message = last_words(provider.requests[0].body)
    assert "\x1b" not in message
    assert "after it" in message


def test_a_proposed_command_runs_if_the_user_agrees(home: Home) -> None:
    with ScriptedServer(["Look:\nCMD: mkdir -v n-$((6*7))", "It is 42."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("?what is six times seven")
            shell.terminal.wait_for("run it? ")
            shell.terminal.line("y")
            shell.terminal.wait_for("created directory")
            shell.at_prompt()
            shell.do("?so what is it")
    message = last_words(provider.requests[1].body)
    assert "$ mkdir -v n-$((6*7))\nmkdir: created directory 'n-42'" in message


def test_a_file_that_cannot_grow_is_named(home: Home) -> None:
    limited = ("bash", "-c", 'ulimit -f 60; exec "$@"', "brim", *PROGRAM)
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        with home.shell(program=limited) as shell:
            shown = shell.do("seq 1 20000")
            assert "19999\n20000\n" in shown
            assert f"brim: {home.state}/" in shown
            assert "cannot be" in shown
            assert "still" in shell.do("echo still here")
