"""The prompt: a line is typed, and it is seen before Enter whether it is a command or language."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth, DummyOutput
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import is_dumb_terminal

from brim.shell.input.classify import Classification, flip

if TYPE_CHECKING:
    from prompt_toolkit.application import Application
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPressEvent
    from prompt_toolkit.output import Output


def read_line(sign: str, default: str = "") -> str:
    """What is typed behind the sign; Ctrl-C and Ctrl-D are raised."""
    try:
        return _read_edited(sign, default)
    except (KeyboardInterrupt, EOFError):
        sys.stdout.write("\n")
        raise


def _read_edited(sign: str, default: str) -> str:
    with suppress(ImportError):  # then the line cannot be edited, but it can be typed
        import readline

        readline.set_startup_hook(lambda: readline.insert_text(default))
        try:
            return input(sign)
        finally:
            readline.set_startup_hook(None)
    return input(sign)


SIGNS: Final = {
    "command": ("class:command", "$ "),
    "language": ("class:language", "› "),
    "meta": ("class:meta", "» "),
    "nothing": ("class:nothing", "› "),
}
NEWS_DELAY: Final = 0.05
"""Seconds for which news wait for others, so that many at once do not make the line flicker."""
MIN_REASON_WIDTH: Final = 60
"""Columns; with fewer, nothing stands behind the line: a narrower terminal would wrap it."""
KIND_LABELS: Final = {"command": "command", "language": "to the model", "meta": "brim"}
STYLE: Final = Style.from_dict(
    {
        "command": "ansigreen bold",
        "language": "ansicyan bold",
        "meta": "ansimagenta bold",
        "nothing": "ansibrightblack",
        "reason": "ansibrightblack",
        "key": "ansicyan bold",
        "bottom-toolbar": "noreverse",
    }
)


class LinePrompt:
    """Where the user types."""

    def __init__(
        self,
        *,
        history: Path,
        completer: Completer,
        decide: Callable[[str], Classification],
        status: Callable[[int], StyleAndTextTuples],
        colors: bool,
        missing: Callable[[str], str | None] = lambda _command: None,
        show_others: Callable[[], None] = lambda: None,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._decide = decide
        self._status = status
        self._missing = missing
        self._show_others = show_others
        self._is_news = self._is_flipped = False
        self._is_dumb = output is None and is_dumb_terminal()
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(_create_private(history))),
            completer=completer,
            complete_while_typing=False,
            auto_suggest=AutoSuggestFromHistory(),
            key_bindings=self._keys(),
            style=STYLE,
            color_depth=None if colors else ColorDepth.DEPTH_1_BIT,
            input=input,
            output=DummyOutput() if self._is_dumb else output,
        )
        # Made when something is asked: at the start it would only keep the prompt waiting.
        self._asking: Callable[[], PromptSession[str]] = cache(
            lambda: PromptSession(
                style=STYLE,
                color_depth=None if colors else ColorDepth.DEPTH_1_BIT,
                input=input,
                output=output,
            )
        )

    def once_shown(self, work: Callable[[], None]) -> None:
        """Do something as soon as the prompt is there."""

        def shown(_app: Application[str]) -> None:
            self._session.app.after_render -= shown
            work()

        if self._is_dumb:  # it shows nothing that could be waited for
            work()
        else:
            self._session.app.after_render += shown

    def line(self, default: str = "") -> Classification | None:
        """What was typed, and what it is; None where the user wants to leave.

        Ctrl-C gives up the line, and Ctrl-D on an empty one leaves.
        """
        self._is_flipped = self._is_news = False
        try:
            if self._is_dumb:
                return self._plain(default)
            text = self._session.prompt(
                self._message,
                default=default,
                rprompt=self._reason,
                bottom_toolbar=self._toolbar,
                multiline=True,
                prompt_continuation="  ",
                enable_open_in_editor=True,
                enable_suspend=True,
                pre_run=self._show_others,
            )
        except KeyboardInterrupt:
            return Classification("nothing", "", "given up")
        except EOFError:
            return None
        return self._decision(text)

    def _plain(self, default: str) -> Classification:
        """The same where nothing can be painted: only the line, and only its sign before it."""
        self._show_others()
        text = read_line(SIGNS["nothing"][1], default)
        while self._is_unfinished(text) or _is_open(text):
            text += "\n" + read_line("  ")
        if text.strip():
            self._session.history.append_string(text)
        return self._decision(text)

    def ask(self, question: str, default: str = "") -> str:
        """An answer to a question; Ctrl-D answers nothing, and Ctrl-C is raised."""
        try:
            if self._is_dumb:
                return read_line(question, default)
            asking = self._asking()
            with _typeahead_held_back(asking.input):
                return asking.prompt(_highlight_keys(question), default=default)
        except EOFError:
            return ""

    def above(self, draw: Callable[[], None]) -> None:
        """Draw something above the line while it is typed; only from the prompt's own thread."""
        run_in_terminal(draw)

    def news(self) -> None:
        """Others have something to show above the line; from any thread.

        Where no line is typed, it is shown with the next one.
        """
        app = self._session.app
        if app.is_running and app.loop is not None and not self._is_news:
            self._is_news = True
            soon = partial(app.loop.call_later, NEWS_DELAY, self._above_line, context=app.context)
            with suppress(RuntimeError):  # the line was ended just now
                app.loop.call_soon_threadsafe(soon)

    def _above_line(self) -> None:
        self._is_news = False
        if self._session.app.is_running:
            run_in_terminal(self._show_others)

    def redraw(self) -> None:
        """Draw the line anew, because something that it shows has changed; from any thread."""
        self._session.app.invalidate()

    def _decision(self, text: str) -> Classification:
        decision = self._decide(text)
        return flip(decision) if self._is_flipped else decision

    @property
    def _typed(self) -> str:
        return self._session.default_buffer.text

    def _message(self) -> StyleAndTextTuples:
        return [SIGNS[self._decision(self._typed).kind]]

    def _reason(self) -> StyleAndTextTuples:
        decision = self._decision(self._typed)
        is_narrow = self._session.app.output.get_size().columns < MIN_REASON_WIDTH
        if decision.kind == "nothing" or is_narrow or self._session.app.is_done:
            return []
        flip = "" if decision.kind == "meta" else " · shift-tab flips"
        return [("class:reason", f"{KIND_LABELS[decision.kind]}: {decision.reason}{flip}")]

    def _is_unfinished(self, text: str) -> bool:
        """Whether it is a command whose shell would wait for more."""
        decision = self._decision(text)
        return decision.kind == "command" and self._missing(decision.text) is not None

    def _toolbar(self) -> StyleAndTextTuples:
        return self._status(self._session.app.output.get_size().columns)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        is_line = has_focus(DEFAULT_BUFFER)  # not the field of a search, which has keys of its own
        is_typing = is_line & Condition(lambda: self._session.default_buffer.complete_state is None)

        @keys.add("enter", filter=is_typing)
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if self._is_unfinished(buffer.text):
                buffer.cursor_position = len(buffer.text)
                buffer.insert_text("\n")
            elif _is_open(buffer.document.text_before_cursor):
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter", filter=is_line)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("s-tab")
        def _(event: KeyPressEvent) -> None:
            self._is_flipped = not self._is_flipped
            event.app.invalidate()

        return keys


def _highlight_keys(question: str) -> StyleAndTextTuples:
    """A question in which the letters that answer it are seen: `[s]kip`."""
    pieces = re.split(r"(\[\w\])", question)
    return [("class:key" if place % 2 else "", piece) for place, piece in enumerate(pieces)]


def _is_open(text: str) -> bool:
    """A line that ends in a backslash is not at its end, nor is one inside of a code fence."""
    fences = sum(line.startswith("```") for line in text.split("\n"))
    is_escaped = len(text) - len(text.rstrip("\\")) & 1
    return bool(is_escaped) or fences % 2 == 1


@contextmanager
def _typeahead_held_back(keys: Input) -> Iterator[None]:
    """Keys that came with the Enter of the line before are no answer; the next line gets them."""
    early = [key for key in get_typeahead(keys) if key.key not in (Keys.ControlM, Keys.ControlJ)]
    try:
        yield
    finally:
        store_typeahead(keys, early)


def _create_private(path: Path) -> Path:
    """A file that only its user can read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    return path
