"""Runs commands in the user's own shell, and adds their output to the conversation."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from brim.config import home_as_tilde
from brim.errors import StoreError
from brim.session.session import OUTPUT_SHARE
from brim.shell.sandbox import Sandbox
from brim.shell.state import Shell
from brim.shell.terminal.output_text import create_output_file, rewrite_file
from brim.shell.terminal.typeahead import remove_echo
from brim.shell.terminal.user_shell import CommandResult

NO_OUTPUT: Final = "(no output)"
SHELL_ENDED: Final = "\n[The shell ended. The next command runs in a new one.]"


def run(
    shell: Shell, command: str, *, by: str = "user", sandbox: Sandbox | None = None
) -> CommandResult:
    """Run a command on the user's terminal; its output waits for the next message.

    In a sandbox it runs in a shell of its own: the folder and variables of the user's shell stay.
    """
    if by != "user":
        shell.screen.typeahead.take()
    name = shell.conversation.name
    shell.terminal.spill = shell.storage.conversations.outputs_folder(name)
    result = _run_recorded(shell, command, sandbox)
    typed = shell.terminal.typed
    shell.screen.typeahead.add(typed)
    result = replace(result, output=remove_echo(result.output, typed))
    if result.has_ended:
        shell.screen.notice(
            f"your shell ended with exit code {result.ended_with}; a new one was started without "
            "its variables"
        )
    elif result.code:
        shell.screen.notice(f"exit code {result.code}")
    shell.secrets.refresh()
    ending = SHELL_ENDED if result.has_ended else _format_code(result.code)
    output = result.output.strip("\n") or NO_OUTPUT
    masked = shell.secrets.mask(f"$ {command}\n{output}{ending}")
    if masked.found:
        shell.screen.notice(f"hidden from the model: {', '.join(masked.found)}")
        if result.whole is not None:
            rewrite_file(result.whole, lambda text: shell.secrets.mask(text).text)
    shell.conversation.add_output(masked.text, _save_long_output(shell, masked.text, result))
    recorded = shell.secrets.mask(command).text
    place = {"sandbox": sandbox.kind} if sandbox else {}
    shell.record(
        "ran", command=recorded, code=result.code, by=by, folder=str(result.folder), **place
    )
    return result


def _run_recorded(shell: Shell, command: str, sandbox: Sandbox | None) -> CommandResult:
    """Run a command; if brim is killed meanwhile, the resumed conversation has it."""
    terminal, recorded, line = shell.terminal, shell.secrets.mask(command).text, command
    if sandbox is not None:
        arguments, hidden = [terminal.program, "-c", command], shell.secrets.variables()
        line = terminal.join(sandbox.wrap(arguments, terminal.folder, hidden))
    with suppress(StoreError):  # on a full disk, commands still run
        shell.record("started", command=recorded)
    try:
        return terminal.run(line)
    except BaseException:
        with suppress(StoreError):
            shell.record("failed", command=recorded)
        raise


def _format_code(code: int | None) -> str:
    if code is None:
        return "\n[still running]"
    return f"\n[exit code {code}]" if code else ""


def _save_long_output(shell: Shell, text: str, result: CommandResult) -> str | None:
    """Return the path of the whole output; None if the model is sent all of it."""
    if result.whole is not None:
        return home_as_tilde(result.whole)
    if shell.driver.count_text(text) <= int(shell.limit * OUTPUT_SHARE):
        return None
    return save_text(shell, shell.secrets.mask(result.output).text)


def save_text(shell: Shell, text: str) -> str | None:
    """Save a text that is clipped for the model, and return its path; None if that fails."""
    folder = shell.storage.conversations.outputs_folder(shell.conversation.name)
    try:
        with create_output_file(folder) as file:
            file.write(text)
        return home_as_tilde(Path(file.name))
    except OSError as error:
        shell.screen.warn(f"the whole text could not be saved: {error.strerror}")
        return None
