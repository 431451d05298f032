"""The door: a shell for a terminal, or for the lines of a script."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final

from brim.shell import commands
from brim.shell.conversation import CUT
from brim.shell.input.completion import ShellCompleter
from brim.shell.input.prompt import Prompt
from brim.shell.input.reader import Reader
from brim.shell.loop import follow, talk
from brim.shell.render.screen import Screen, nobody
from brim.shell.start import Wanted, begin_work, started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brim.config import LoadedConfig
    from brim.shell.state import Shell

HISTORY: Final = "history"


def open_shell(wanted: Wanted, loaded: LoadedConfig, environment: Mapping[str, str]) -> bool:
    """Talk until the user leaves, or to the end of a script; says whether all of it worked."""
    screen = Screen(ask=nobody) if wanted.is_script else Screen()
    with ExitStack() as ends:
        shell = started(wanted, loaded, environment, screen, ends)
        for notice in loaded.notices:
            screen.notice(notice)
        reader = Reader(shell)
        shell.decide = reader.decide
        if wanted.is_script:
            begin_work(shell)
            return follow(shell, _lines(), reader.decide)
        prompt = _prompt(shell, reader)
        prompt.once_shown(partial(_begin, shell, reader))
        shell.background.on_done = prompt.redraw
        shell.terminal.on_output = prompt.news
        screen.ask_with(prompt.ask)
        _greet(shell)
        talk(shell, prompt, reader.learn_names)
        _part(shell)
    return True


def _lines() -> Iterator[str]:
    """The lines of a script; what is no text in them is shown as such."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    yield from sys.stdin


def _begin(shell: Shell, reader: Reader) -> None:
    begin_work(shell)
    reader.count_ahead()
    reader.learn_names()


def _prompt(shell: Shell, reader: Reader) -> Prompt:
    known = commands.names()
    completer = ShellCompleter(
        metas=commands.completions(shell),
        help={name: command.summary for name, command in known.items()},
        names=reader.names,
        folder=lambda: shell.folder,
        decide=reader.decide,
    )
    return Prompt(
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
        state = "; the last answer broke off" if last.get(CUT) else ""
        if last["role"] != "assistant":
            state = "; the last words have no answer"
        retry = ": :retry asks again" if state else ""
        shell.screen.notice(f"{shell.conversation.name}: {turns} turns{state}{retry}")
    else:
        shell.screen.notice(f"{shell.name} · :help · shift-tab flips command and language")


def _part(shell: Shell) -> None:
    if len(shell.session):
        shell.screen.notice(f"brim resume {shell.conversation.name} goes on with this")
