"""The main loop: read a line, classify it, run it."""

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

ERROR_LOG = "errors.log"
"""Tracebacks of unexpected errors, in the state folder."""


def run_prompt(shell: Shell, prompt: LinePrompt, refresh_names: Callable[[], None]) -> None:
    """Run lines typed at the prompt until the user leaves."""
    while not shell.ended:
        with shell.screen.typing(prompt.above):
            line = prompt.read(shell.input.take_text())
        if line is None:
            break
        if line.kind == "language":
            shell.screen.gap()
        with shell.screen.typeahead.quiet():
            run_line(shell, line)
        shell.input.prefill(shell.input.take_text(), shell.screen.typeahead.take_text())
        if line.kind in ("language", "meta"):
            shell.screen.gap()
        if line.kind == "command":
            refresh_names()


def run_script(
    shell: Shell, lines: Iterable[str], classify: Callable[[str], Classification]
) -> bool:
    """Run the lines of a script; stop at the first that fails, and return whether all succeeded."""
    for line in lines:
        if shell.ended:
            break
        if not run_line(shell, classify(line.rstrip("\n"))):
            return False
    return True


def run_line(shell: Shell, line: Classification) -> bool:
    """Run a line and return whether it succeeded; errors are shown and never end the shell."""
    try:
        return _dispatch(shell, line)
    except KeyboardInterrupt:
        shell.screen.notice("stopped")
    except (BrimError, OSError) as error:
        shell.show_error(error)
    except Exception as error:
        shell.screen.error(f"Unexpected error: {error!r}. See {_write_traceback(shell)}.")
    return False


def _dispatch(shell: Shell, line: Classification) -> bool:
    replaced = shell.input.take_replaced()
    match line.kind:
        case "command":
            result = run(shell, line.text)
            shell.input.prefill(text_from_keys(shell.terminal.typed))
            return not result.code
        case "language":
            if replaced is not None:
                shell.conversation.rewind(replaced)
            return ask(shell, line.text)
        case "meta":
            shell.screen.show(commands.run(shell, line.text))
        case "nothing":
            pass
    return True


def _write_traceback(shell: Shell) -> str:
    path = shell.storage.conversations.folder / ERROR_LOG
    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "a") as file:
            traceback.print_exc(file=file)
    except OSError:
        return "no log: it cannot be written"
    return str(path)
