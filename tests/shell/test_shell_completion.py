"""Completion by the user's own bash: what its `complete` commands offer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from brim.shell.terminal.shell_completion import TIMEOUT
from brim.shell.terminal.user_shell import UserShell
from brim.testing import ScriptedServer
from tests.support.shell.driver import Home, Typist, home

__all__ = ["home"]

RC = """
_tool() {
    COMPREPLY=($(compgen -W "start stop --mode=" -- "$2"))
    [[ $3 == = ]] && COMPREPLY=($(compgen -W "fast slow" -- "$2"))
    left_behind=1
}
complete -F _tool tool
complete -W "red green" -o nospace paint
_hang() { sleep 60; }
complete -F _hang hang
"""


@pytest.fixture
def bash(tmp_path: Path) -> Iterator[UserShell]:
    (tmp_path / ".bashrc").write_text(RC)
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    shell = UserShell(
        program="/bin/bash", folder=tmp_path, environment=environment, spill=tmp_path / "spill"
    )
    yield shell
    shell.close()


def test_the_users_own_completions_are_used(bash: UserShell) -> None:
    assert bash.complete(["tool", "st"]) == ["start", "stop"]
    assert bash.complete(["/usr/bin/tool", "x y", "--m"]) == ["--mode="]
    assert bash.complete(["tool", "--mode=f"]) == ["--mode=fast"]
    assert bash.complete(["paint", ""]) == ["red", "green"]
    assert bash.complete(["paint", "';touch made;'"]) == []
    assert bash.complete(["a-program-without-completion", "x"]) == []
    assert "left_behind" not in bash.variables()
    assert not (bash.folder / "made").exists()


def test_a_completion_that_hangs_does_not_stop_the_shell(bash: UserShell) -> None:
    began = time.monotonic()
    assert bash.complete(["hang", "x"]) == []
    assert time.monotonic() - began < 30
    assert bash.run("echo still here").output.strip() == "still here"


def is_completed(shell: Typist) -> bool:
    return shell.terminal.before_cursor.rstrip().endswith("tool start")


def test_tab_completes_a_subcommand(home: Home) -> None:
    (home.folder / ".bashrc").write_text(RC + "tool() { echo did $1; }\n")
    with ScriptedServer("Unused.") as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.do("!true")
            shell.terminal.type("tool sta")
            for _ in range(5):  # on a busy machine, bash may take longer than brim waits
                shell.terminal.press("tab")
                with suppress(AssertionError):
                    shell.terminal.wait_for(lambda _: is_completed(shell), 2 * TIMEOUT)
                    break
            shell.at("tool start ")
            shell.terminal.press("enter")
            shell.terminal.wait_for("did start")
