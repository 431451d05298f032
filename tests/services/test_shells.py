"""The shell with zsh and with fish."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from brim.shell.terminal.user_shell import UserShell
from brim.testing import ScriptedServer
from tests.services.conftest import program
from tests.support.shell.driver import Home, Typist, home, last_words
from tests.support.terminal import Driver

__all__ = ["home"]

ZSHRC = """
alias greet='print good day'
twice() { print "$1 $1" }
setopt extended_glob
"""
SEQUENCES = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 10
"""Random sequences of lines that are typed while commands run."""


def test_zsh_is_the_users_own_shell(home: Home) -> None:
    (home.folder / ".zshrc").write_text(ZSHRC)
    (home.folder / "inner").mkdir()
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        with home.shell(also={"SHELL": program("zsh")}) as shell:
            shell.do("!true")  # its aliases and functions are known afterwards
            assert "good day" in shell.do("greet")
            assert "so so" in shell.do("twice so")
            shell.do("cd inner && export PLACE=here && left=(one two)")
            assert "here two" in shell.do("print $PLACE $left[2]")
            assert str(home.folder / "inner") in shell.do("!print -l (#i)$PWD")
            assert "exit code 3" in shell.do("(exit 3)")
            shell.terminal.line("sleep 1000")
            shell.wait(lambda: "sleep 1000" in shell.terminal.everything)
            time.sleep(0.5)
            shell.terminal.press("ctrl-c")
            shell.at_prompt()
            assert "still here" in shell.do("print still $PLACE")
            shell.terminal.type("git --vers")
            shell.terminal.press("ctrl-u")
            shell.do("what happened?")
    assert "$ greet\ngood day" in last_words(provider.requests[0].body)


COMPLETIONS = """
autoload -Uz compinit; compinit -u -D
_tool() { _arguments '1:command:(start stop)' '--mode=[speed]:mode:(fast slow)' }
compdef _tool tool
print noise from the start file
"""


def test_zsh_completes_as_its_user_set_it_up(tmp_path: Path) -> None:
    (tmp_path / ".zshrc").write_text(COMPLETIONS)
    (tmp_path / "sub folder").mkdir()
    shell = UserShell(
        program=program("zsh"),
        folder=tmp_path,
        environment={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        spill=tmp_path / "spill",
    )
    try:
        assert shell.complete(["tool", "st"]) == ["start", "stop"]
        assert shell.complete(["tool", "--mode=f"]) == ["--mode=fast"]
        assert "-TERM" in shell.complete(["kill", "-T"])
        assert shell.complete(["cat", "su"]) == ["sub\\ folder"]
        assert shell.complete(["tool", "$(touch made)"]) == []
        assert shell.complete(["touch", "made\n"]) == []
        assert not (tmp_path / "made").exists()
    finally:
        shell.close()


PRINT_ARGUMENTS = "import sys; print(sys.argv[1:])"
CONFIG_FISH = """
set -gx FROM_FILE yes
alias greet 'echo good day'
function twice; echo $argv[1] $argv[1]; end
complete -c tool -f -a 'start stop'
"""


def write_fish_config(home: Path) -> None:
    folder = home / ".config" / "fish"
    folder.mkdir(parents=True)
    (folder / "config.fish").write_text(CONFIG_FISH)


def test_fish_is_the_users_own_shell(home: Home) -> None:
    write_fish_config(home.folder)
    (home.folder / "inner").mkdir()
    with ScriptedServer("CMD: find . -\\x64elete") as provider:
        home.configure(provider)
        with home.shell(also={"SHELL": program("fish")}) as shell:
            shell.do("!true")  # its functions are known afterwards
            assert "good day" in shell.do("greet")
            assert "so so" in shell.do("twice so")
            shell.do("!cd inner; set -x PLACE here; set left one two")
            assert "here two yes" in shell.do("echo $PLACE $left[2] $FROM_FILE")
            assert "it's here" in shell.do("!bash -c 'echo $PLACE' | string replace h 'it\\'s h'")
            assert "exit code 3" in shell.do("!sh -c 'exit 3'")
            assert "it was 3" in shell.do("!echo it was $status")
            shell.terminal.line("sleep 1000")
            shell.wait(lambda: "sleep 1000" in shell.terminal.everything)
            time.sleep(0.5)
            shell.terminal.press("ctrl-c")
            shell.at_prompt()
            assert "still here" in shell.do("echo still $PLACE")
            shell.terminal.line("what happened?")
            shell.wait(lambda: "type yes" in shell.terminal.everything)
            shell.terminal.line("s")
            shell.at_prompt()
    assert "$ greet\ngood day" in last_words(provider.requests[0].body)


def test_fish_completes_and_quotes_as_its_user_expects(tmp_path: Path) -> None:
    write_fish_config(tmp_path)
    shell = UserShell(
        program=program("fish"),
        folder=tmp_path,
        environment={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        spill=tmp_path / "spill",
    )
    try:
        assert shell.complete(["tool", "st"]) == ["start", "stop"]
        assert "FROM_FILE" in shell.variables()
        assert {"greet", "twice"} <= shell.functions()
        assert "ls" not in shell.functions()
        words = ["a\\\\b'c", "$HOME (x)", "two\nlines"]
        output = shell.run(shell.join([sys.executable, "-c", PRINT_ARGUMENTS, *words])).output
        assert output == f"{words}\n"
    finally:
        shell.close()


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_random_lines_typed_while_commands_run_are_executed_in_order(home: Home, name: str) -> None:
    log, chance, expected = home.folder / "log", random.Random(name), []
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        with home.shell(also={"SHELL": program(name)}) as shell:
            for number in range(SEQUENCES):
                lines = [f"{number}-{place}" for place in range(chance.randint(2, 6))]
                type_lines(shell.terminal, lines, chance)
                expected += lines
                wait_for_line(shell, log, lines[-1])
                shell.at_prompt()
    assert read_lines(log) == expected
    assert provider.requests == []


def wait_for_line(shell: Typist, log: Path, line: str) -> None:
    shell.wait(lambda: read_lines(log)[-1:] == [line], f"line {line}")


def type_lines(terminal: Driver, lines: list[str], chance: random.Random) -> None:
    """Type lines with slips and pauses; the first one takes a moment."""
    for place, line in enumerate(lines):
        busy = "sleep 0.2; " if not place else chance.choice(("", "", "sleep 0.05; ", "seq 30; "))
        slip = chance.choice(("", "", "x\x7f"))
        terminal.type(f"{busy}echo {line}{slip} >> log\r")
        time.sleep(chance.choice((0, 0, 0.01, 0.1)))


def read_lines(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []
