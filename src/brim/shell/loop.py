"""The loop: a line, what it is, what is done about it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from brim.errors import BrimError
from brim.shell import commands
from brim.shell.chat import ask
from brim.shell.run_command import run
from brim.shell.terminal.typeahead import text_from_keys

if TYPE_CHECKING:
    from brim.shell.input.classify import Classification
    from brim.shell.input.prompt import LinePrompt
    from brim.shell.state import Shell

ERROR_LOG = "faults.log"
"""Where brim's own mistakes are written down."""


def run_prompt(shell: Shell, prompt: LinePrompt, learn_names: Callable[[], None]) -> None:
    """Go on until the user leaves."""
    while not shell.ended:
        text, shell.next_text = shell.next_text, ""
        with shell.screen.typing(prompt.above):
            decision = prompt.line(text)
        if decision is None:
            break
        kind = decision.kind
        if kind == "language":
            shell.screen.gap()
        with shell.screen.early.quiet():
            run_line(shell, decision)
        shell.next_text = " ".join(filter(None, (shell.next_text, shell.screen.early.text())))
        if kind in ("language", "meta"):
            shell.screen.gap()
        if kind == "command":
            learn_names()


def run_script(shell: Shell, lines: Iterable[str], decide: Callable[[str], Classification]) -> bool:
    """Do what the lines of a script say; stops at the first that fails."""
    for line in lines:
        if shell.ended:
            break
        if not run_line(shell, decide(line.rstrip("\n"))):
            return False
    return True


def run_line(shell: Shell, decision: Classification) -> bool:
    """Whatever a line asks for; says whether that worked. The shell outlives it."""
    try:
        return _dispatch(shell, decision)
    except KeyboardInterrupt:
        shell.screen.notice("stopped")
    except (BrimError, OSError) as error:
        shell.fail(error)
    except Exception as error:
        shell.screen.error(
            f"a mistake in brim: {error!r}; {_write_traceback(shell)} has the details"
        )
    return False


def _dispatch(shell: Shell, decision: Classification) -> bool:
    replaces, shell.replaces = shell.replaces, None
    match decision.kind:
        case "command":
            ran = run(shell, decision.text)
            shell.next_text = _typed_ahead(shell)
            return not ran.code
        case "language":
            if replaces is not None:
                shell.conversation.take_back(replaces)
            return ask(shell, decision.text)
        case "meta":
            shell.screen.show(commands.run(shell, decision.text))
        case "nothing":
            pass
    return True


def _typed_ahead(shell: Shell) -> str:
    """What was typed while a command ran, and was not read by it."""
    return text_from_keys(shell.terminal.typed)


def _write_traceback(shell: Shell) -> str:
    path = shell.log.folder / ERROR_LOG
    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "a") as file:
            traceback.print_exc(file=file)
    except OSError:
        return "nothing"
    return str(path)
