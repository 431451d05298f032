"""The screen: the only place that prints to the terminal and asks the user."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Console, RenderableType
from rich.text import Text

from brim.shell.render.sanitize import sanitize
from brim.shell.terminal.typeahead import Typeahead

if TYPE_CHECKING:
    from brim.shell.render.reply_view import ReplyView

NO_ANSWER: Final = ""
"""The answer if there is no user to ask."""
YES: Final = "yes"
Answer = Literal["run", "edit", "skip", "explain", "always", "stop", "interrupt"]
ANSWERS: Final[dict[str, Answer]] = {
    **dict.fromkeys(("y", YES, "r", "run"), "run"),
    **dict.fromkeys(("e", "edit"), "edit"),
    **dict.fromkeys((NO_ANSWER, "n", "no", "s", "skip"), "skip"),
    **dict.fromkeys(("x", "explain"), "explain"),
    **dict.fromkeys(("a", "always"), "always"),
    **dict.fromkeys(("q", "quit", "stop"), "stop"),
}
"""What the user can type before something runs, and what it means."""

Ask = Callable[[str, str], str]
"""(question, text to edit) → the answer as typed."""
Above = Callable[[Callable[[], None]], None]
"""Runs a function that prints above the line being typed."""


def answer_nothing(_question: str, _default: str = "") -> str:
    return NO_ANSWER


def ask_on_terminal(question: str, _default: str = "") -> str:
    """Ask with `input`, until the prompt is available."""
    try:
        return input(question)
    except (KeyboardInterrupt, EOFError):
        return NO_ANSWER


class Screen:
    """Output to the user, and questions; in a pipe, messages of brim go to standard error."""

    def __init__(self, console: Console | None = None, ask: Ask = ask_on_terminal) -> None:
        self.console = self._messages = console or Console(highlight=False, soft_wrap=False)
        if console is None and not self.console.is_terminal:
            self._messages = Console(stderr=True, highlight=False, soft_wrap=False)
        for file in (self.console.file, self._messages.file):
            if isinstance(file, TextIOWrapper):
                # An encoding without some characters must not be an error.
                file.reconfigure(errors="replace")
        self._ask = ask
        self._above: Above | None = None
        self._pending: list[Callable[[], None]] = []
        """Output that waits until it does not disturb the line being typed."""
        self.typeahead = Typeahead()

    def ask_with(self, ask: Ask) -> None:
        """Use another function for questions from now on."""
        self._ask = ask

    @property
    def is_terminal(self) -> bool:
        return self.console.is_terminal and not self.console.is_dumb_terminal

    @property
    def has_colors(self) -> bool:
        return self.console.color_system is not None and not self.console.no_color

    def fills(self, text: str) -> bool:
        """Return whether a text takes more than half of the screen."""
        width, height = self.console.size
        rows = sum(1 + len(line) // max(1, width) for line in text.split("\n"))
        return rows > height // 2

    def show(self, thing: RenderableType | None) -> None:
        """Print the result of a command; text is printed without wrapping."""
        if isinstance(thing, str):
            self._print(sanitize(thing), markup=False, soft_wrap=True)
        elif thing is not None:
            self._print(thing, soft_wrap=not self.console.is_terminal)

    def gap(self) -> None:
        """Print a blank row on a terminal."""
        if self.is_terminal:
            self.console.print()

    def notice(self, text: str) -> None:
        """Print one dim line about what brim did."""
        self._line(f"· {text}", "dim")

    def warn(self, text: str) -> None:
        self._line(f"! {text}", "yellow")

    def error(self, text: str) -> None:
        self._line(f"brim: {text}", "red")

    def _line(self, text: str, style: str) -> None:
        wrap, console = not self.console.is_terminal, self._messages
        self._print(sanitize(text), console, style=style, markup=False, soft_wrap=wrap)

    def _print(self, thing: RenderableType, console: Console | None = None, **options: Any) -> None:
        self._pending.append(partial((console or self.console).print, thing, **options))
        if self._above is None:
            self._print_pending()
        else:
            self._above(self._print_pending)

    def _print_pending(self) -> None:
        pending, self._pending = self._pending, []
        for output in pending:
            output()

    @contextmanager
    def typing(self, above: Above) -> Iterator[None]:
        """While the user types a line, print through `above`."""
        self._above = above
        try:
            yield
        finally:
            self._above = None
            self._print_pending()

    def ask(self, question: str, default: str = "") -> str:
        """Return the user's answer; Ctrl-D gives an empty one, Ctrl-C at a prompt is raised.

        Keys that were typed before the question appeared do not answer it.
        """
        sys.stdout.flush()
        with self.typeahead.asking():
            return self._ask(question, default).strip()

    def confirm(
        self, question: str, *, offered: Collection[Answer], is_destructive: bool
    ) -> Answer:
        """Ask before something runs, until the answer is one of those `offered`; return it.

        A destructive action needs the whole word "yes", typed by the user; no rule or option
        replaces it.
        """
        if self._ask is answer_nothing:
            self.notice("skipped: a script cannot confirm it")
            return "skip"
        while True:
            try:
                typed = self.ask(question).lower()
            except KeyboardInterrupt:
                return "interrupt"
            answer = ANSWERS.get(typed)
            if answer is None or answer not in offered:
                self.notice("type one of the letters in brackets; Enter skips")
            elif is_destructive and answer == "run" and typed != YES:
                self.notice('this is destructive: type the whole word "yes" to run it')
            else:
                return answer

    def open_reply(self) -> ReplyView:
        """Return a view for a reply that is being streamed."""
        from brim.shell.render.reply_view import ReplyView

        return ReplyView(self.console)

    @contextmanager
    def waiting(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner until there is something to see; yield what changes its text."""
        if not self.is_terminal:
            yield lambda _text: None
            return
        spinner = self.console.status(Text(sanitize(text)), spinner="dots", spinner_style="dim")
        try:  # a Ctrl-C while it starts would otherwise leave it on the screen
            spinner.start()
            yield spinner.update
        finally:
            spinner.stop()
