"""The door: a shell for a terminal, or for the lines of a script."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final

from brim.shell import commands
from brim.shell.conversation import INCOMPLETE
from brim.shell.input.completion import ShellCompleter
from brim.shell.input.prompt import LinePrompt
from brim.shell.input.reader import PromptState
from brim.shell.loop import run_prompt, run_script
from brim.shell.render.screen import Screen, answer_nothing
from brim.shell.start import StartOptions, build_shell, start_background_work

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brim.config import LoadedConfig
    from brim.shell.state import Shell

HISTORY: Final = "history"


def open_shell(wanted: StartOptions, loaded: LoadedConfig, environment: Mapping[str, str]) -> bool:
    """Talk until the user leaves, or to the end of a script; says whether all of it worked."""
    screen = Screen(ask=answer_nothing) if wanted.is_script else Screen()
    with ExitStack() as ends:
        shell = build_shell(wanted, loaded, environment, screen, ends)
        for notice in loaded.notices:
            screen.notice(notice)
        reader = PromptState(shell)
        shell.decide = reader.decide
        if wanted.is_script:
            start_background_work(shell)
            return run_script(shell, _read_script(), reader.decide)
        prompt = _build_prompt(shell, reader)
        prompt.once_shown(partial(_start_work, shell, reader))
        shell.background.on_done = prompt.redraw
        shell.terminal.on_output = prompt.news
        screen.ask_with(prompt.ask)
        _greet(shell)
        run_prompt(shell, prompt, reader.learn_names)
        _say_goodbye(shell)
    return True


def _read_script() -> Iterator[str]:
    """The lines of a script; what is no text in them is shown as such."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    yield from sys.stdin


def _start_work(shell: Shell, reader: PromptState) -> None:
    start_background_work(shell)
    reader.count_ahead()
    reader.learn_names()


def _build_prompt(shell: Shell, reader: PromptState) -> LinePrompt:
    known = commands.names()
    completer = ShellCompleter(
        metas=commands.completions(shell),
        help={name: command.summary for name, command in known.items()},
        names=reader.names,
        folder=lambda: shell.folder,
        decide=reader.decide,
    )
    return LinePrompt(
        history=shell.log.folder / HISTORY,
        completer=completer,
        decide=reader.decide,
        status=reader.status,
        colors=shell.screen.has_colors,
        missing=shell.terminal.missing,
        show_others=shell.terminal.show_lines,
    )


def _greet(shell: Shell) -> None:
    turns = len(shell.session)
    if turns:
        last = shell.session.since(turns - 1)[0]
        state = "; the last answer broke off" if last.get(INCOMPLETE) else ""
        if last["role"] != "assistant":
            state = "; the last words have no answer"
        retry = ": :retry asks again" if state else ""
        shell.screen.notice(f"{shell.conversation.name}: {turns} turns{state}{retry}")
    else:
        shell.screen.notice(f"{shell.name} · :help · shift-tab flips command and language")


def _say_goodbye(shell: Shell) -> None:
    if len(shell.session):
        shell.screen.notice(f"brim resume {shell.conversation.name} goes on with this")
