"""The loop: a line, what it is, what is done about it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from brim.errors import BrimError
from brim.shell import commands
from brim.shell.asking import ask
from brim.shell.running import run

if TYPE_CHECKING:
    from brim.shell.classify import Decision
    from brim.shell.prompt import Prompt
    from brim.shell.state import Shell

FAULTS = "faults.log"
"""Where brim's own mistakes are written down."""


def talk(shell: Shell, prompt: Prompt, learn_names: Callable[[], None]) -> None:
    """Go on until the user leaves."""
    while not shell.ended:
        text, shell.next_text = shell.next_text, ""
        with shell.screen.typing(prompt.above):
            typed = prompt.line(text)
        if typed is None:
            break
        shell.line = typed.line
        kind = typed.decision.kind
        if kind == "language":
            shell.screen.gap()
        do(shell, typed.decision)
        if kind in ("language", "meta"):
            shell.screen.gap()
        if kind == "command":
            learn_names()


def follow(shell: Shell, lines: Iterable[str], decide: Callable[[str], Decision]) -> bool:
    """Do what the lines of a script say; stops at the first that fails."""
    for line in lines:
        if shell.ended:
            break
        if not do(shell, decide(line.rstrip("\n"))):
            return False
    return True


def do(shell: Shell, decision: Decision) -> bool:
    """Whatever a line asks for; says whether that worked. The shell outlives it."""
    try:
        return _done(shell, decision)
    except KeyboardInterrupt:
        shell.screen.notice("stopped")
    except (BrimError, OSError) as error:
        shell.screen.error(str(error))
    except Exception as error:
        shell.screen.error(f"a mistake in brim: {error!r}; {_written_down(shell)} has the details")
    return False


def _done(shell: Shell, decision: Decision) -> bool:
    match decision.kind:
        case "command":
            return not run(shell, decision.text).code
        case "language":
            return ask(shell, decision.text)
        case "meta":
            shell.screen.show(commands.run(shell, decision.text))
        case "nothing":
            pass
    return True


def _written_down(shell: Shell) -> str:
    path = shell.log.folder / FAULTS
    with path.open("a", encoding="utf-8") as file:
        path.chmod(0o600)
        traceback.print_exc(file=file)
    return str(path)
