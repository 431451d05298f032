"""Commands: run in the user's own shell, and what they print told to the conversation."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brim.config import home_as_tilde
from brim.session.session import OUTPUT_SHARE

if TYPE_CHECKING:
    from brim.shell.state import Shell
    from brim.shell.terminal import CommandResult

NO_OUTPUT: Final = "(no output)"
SHELL_ENDED: Final = "\n[the shell ended; the next command runs in a new one]"


def run(shell: Shell, command: str, *, by: str = "user") -> CommandResult:
    """Run a command where the user can see it, and let its output wait for the next words."""
    if by != "user":
        shell.screen.early.take()
    shell.terminal.spill = shell.log.outputs_folder(shell.conversation.name)
    ran = shell.terminal.run(command)
    if ran.has_ended:
        shell.screen.notice(
            f"your shell ended (exit code {ran.ended_with}); a new one was started, "
            "and its variables are gone"
        )
    elif ran.code:
        shell.screen.notice(f"exit code {ran.code}")
    shell.learn_secrets()
    ended = SHELL_ENDED if ran.has_ended else _format_code(ran.code)
    masked = shell.masker.mask(_format_output(command, ran.output.strip("\n"), ended))
    if masked.found:
        shell.screen.notice(f"hidden from the model: {', '.join(masked.found)}")
    shell.conversation.output(masked.text, _save_long_output(shell, masked.text, ran))
    said = shell.masker.mask(command).text
    shell.note("ran", command=said, code=ran.code, by=by, folder=str(ran.folder))
    return ran


def _format_output(command: str, output: str, ended: str) -> str:
    """What the model is told of a command."""
    return f"$ {command}\n{output or NO_OUTPUT}{ended}"


def _format_code(code: int | None) -> str:
    if code is None:
        return "\n[still running]"
    return f"\n[exit code {code}]" if code else ""


def _save_long_output(shell: Shell, text: str, ran: CommandResult) -> str | None:
    """Where all of an output can be read that is too long to be told whole."""
    if ran.whole is not None:
        return home_as_tilde(ran.whole)
    if shell.driver.count_text(text) <= int(shell.limit * OUTPUT_SHARE):
        return None
    folder = shell.log.outputs_folder(shell.conversation.name)
    for path in (folder.parent, folder):  # the mode is for the last of a path only
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return home_as_tilde(_write_output(folder, ran.output))


def _write_output(folder: Path, text: str) -> Path:
    for number in count(1):
        path = folder / f"{number}.txt"
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(file, "w", encoding="utf-8", errors="replace") as opened:
            opened.write(text)
        break
    return path
