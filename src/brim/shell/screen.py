"""The screen: the only place that draws, and the only one that asks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from brim.shell.harmless import harmless

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from brim.shell.markdown import AnswerScreen

NOBODY: Final = ""
"""What is answered where nobody can be asked."""

Ask = Callable[[str, str], str]
"""(a question, what stands there to be edited) → the answer, as it was typed."""


def nobody(_question: str, _default: str = "") -> str:
    return NOBODY


def somebody(question: str, _default: str = "") -> str:
    """Whoever sits at the terminal, before there is a better prompt."""
    try:
        return input(question)
    except (KeyboardInterrupt, EOFError):
        return NOBODY


class Screen:
    """What the user sees."""

    def __init__(self, console: Console | None = None, ask: Ask = somebody) -> None:
        from rich.console import Console

        self.console = console or Console(highlight=False, soft_wrap=False)
        self._ask = ask

    def ask_with(self, ask: Ask) -> None:
        """Ask in another way from now on."""
        self._ask = ask

    @property
    def is_terminal(self) -> bool:
        return self.console.is_terminal and not self.console.is_dumb_terminal

    @property
    def has_colors(self) -> bool:
        return self.console.color_system is not None and not self.console.no_color

    def show(self, thing: RenderableType | None) -> None:
        """Draw what a command has to show; a text goes out as it is."""
        if isinstance(thing, str):
            self.console.print(harmless(thing), markup=False, soft_wrap=True)
        elif thing is not None:
            self.console.print(thing, soft_wrap=not self.console.is_terminal)

    def gap(self) -> None:
        """A blank row, where somebody reads."""
        if self.is_terminal:
            self.console.print()

    def notice(self, text: str) -> None:
        """One dim line about what brim did."""
        self._line(f"· {text}", "dim")

    def warn(self, text: str) -> None:
        self._line(f"! {text}", "yellow")

    def error(self, text: str) -> None:
        """What went wrong, in words."""
        self._line(f"brim: {text}", "red")

    def _line(self, text: str, style: str) -> None:
        wrap = not self.console.is_terminal
        self.console.print(harmless(text), style=style, markup=False, soft_wrap=wrap)

    def ask(self, question: str, default: str = "") -> str:
        """What the user types; Ctrl-D answers nothing, and Ctrl-C at a prompt is raised."""
        sys.stdout.flush()
        return self._ask(question, default).strip()

    def answer(self) -> AnswerScreen:
        """Where an answer is drawn while it comes."""
        from brim.shell.markdown import AnswerScreen

        return AnswerScreen(self.console)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Something that moves while there is nothing to see yet."""
        if not self.is_terminal:
            yield
            return
        moving = self.console.status(what, spinner="dots", spinner_style="dim")
        try:  # a Ctrl-C while it starts would otherwise leave it on the screen for good
            moving.start()
            yield
        finally:
            moving.stop()
