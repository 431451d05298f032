"""The screen: the only place that draws, and the only one that asks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from brim.shell.render.sanitize import sanitize
from brim.shell.terminal.typeahead import Typeahead

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from brim.shell.render.markdown import AnswerScreen

NO_ANSWER: Final = ""
"""What is answered where nobody can be asked."""

Ask = Callable[[str, str], str]
"""(a question, what stands there to be edited) → the answer, as it was typed."""
Above = Callable[[Callable[[], None]], None]
"""Draws something above the line that is being typed."""


def answer_nothing(_question: str, _default: str = "") -> str:
    return NO_ANSWER


def ask_on_terminal(question: str, _default: str = "") -> str:
    """Whoever sits at the terminal, before there is a better prompt."""
    try:
        return input(question)
    except (KeyboardInterrupt, EOFError):
        return NO_ANSWER


class Screen:
    """What the user sees."""

    def __init__(self, console: Console | None = None, ask: Ask = ask_on_terminal) -> None:
        from rich.console import Console

        self.console = console or Console(highlight=False, soft_wrap=False)
        self._ask = ask
        self._above: Above | None = None
        self._waiting: list[Callable[[], None]] = []
        """What is to be drawn as soon as it disturbs nobody who types."""
        self.early = Typeahead()
        """What is typed while nobody asks."""

    def ask_with(self, ask: Ask) -> None:
        """Ask in another way from now on."""
        self._ask = ask

    @property
    def is_terminal(self) -> bool:
        return self.console.is_terminal and not self.console.is_dumb_terminal

    @property
    def has_colors(self) -> bool:
        return self.console.color_system is not None and not self.console.no_color

    def fills(self, text: str) -> bool:
        """Whether a text takes more than half of the screen."""
        width, height = self.console.size
        rows = sum(1 + len(line) // max(1, width) for line in text.split("\n"))
        return rows > height // 2

    def show(self, thing: RenderableType | None) -> None:
        """Draw what a command has to show; a text goes out as it is."""
        if isinstance(thing, str):
            self._print(sanitize(thing), markup=False, soft_wrap=True)
        elif thing is not None:
            self._print(thing, soft_wrap=not self.console.is_terminal)

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
        self._print(sanitize(text), style=style, markup=False, soft_wrap=wrap)

    def _print(self, thing: RenderableType, **how: Any) -> None:
        self._waiting.append(partial(self.console.print, thing, **how))
        if self._above is None:
            self._draw_waiting()
        else:
            self._above(self._draw_waiting)

    def _draw_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for draw in waiting:
            draw()

    @contextmanager
    def typing(self, above: Above) -> Iterator[None]:
        """While somebody types: what is to be said goes above the line, by way of `above`."""
        self._above = above
        try:
            yield
        finally:
            self._above = None
            self._draw_waiting()

    def ask(self, question: str, default: str = "") -> str:
        """What the user types; Ctrl-D answers nothing, and Ctrl-C at a prompt is raised.

        Keys that were typed before the question was there are no answer to it.
        """
        sys.stdout.flush()
        with self.early.asking():
            return self._ask(question, default).strip()

    def answer(self) -> AnswerScreen:
        """Where an answer is drawn while it comes."""
        from brim.shell.render.markdown import AnswerScreen

        return AnswerScreen(self.console)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Something that moves while there is nothing to see yet."""
        if not self.is_terminal:
            yield
            return
        from rich.text import Text

        moving = self.console.status(Text(sanitize(what)), spinner="dots", spinner_style="dim")
        try:  # a Ctrl-C while it starts would otherwise leave it on the screen for good
            moving.start()
            yield
        finally:
            moving.stop()
