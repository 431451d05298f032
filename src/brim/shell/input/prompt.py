"""The prompt: shows while a line is typed whether it is a command or language."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application, run_in_terminal
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import Completer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.output import ColorDepth, DummyOutput, Output
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import is_dumb_terminal

from brim.shell.input.classification import Classification, flip
from brim.shell.terminal.typeahead import text_from_keys


def read_line(sign: str, default: str = "") -> str:
    """Read a line on a terminal that can only print; Ctrl-C and Ctrl-D are raised."""
    try:
        return _read_edited(sign, default)
    except (KeyboardInterrupt, EOFError):
        sys.stdout.write("\n")
        raise


def _read_edited(sign: str, default: str) -> str:
    with suppress(ImportError):  # without readline, the line cannot be edited
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
"""Seconds to collect output of background jobs, so that the line does not flicker."""
MIN_REASON_WIDTH: Final = 60
"""Columns from which the reason is shown to the right of the line."""
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


class _PrivateHistory(FileHistory):
    """A history that does not write lines with secrets to its file, which is private."""

    def __init__(self, path: Path, has_secret: Callable[[str], bool]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        super().__init__(str(path))
        self._has_secret = has_secret

    def store_string(self, string: str) -> None:
        if not self._has_secret(string):
            super().store_string(string)


class LinePrompt:
    """The prompt for lines, and for questions."""

    def __init__(
        self,
        *,
        history: Path,
        completer: Completer,
        classify: Callable[[str], Classification],
        status: Callable[[int], StyleAndTextTuples],
        colors: bool,
        has_secret: Callable[[str], bool] = lambda _line: False,
        missing: Callable[[str], str | None] = lambda _command: None,
        show_output: Callable[[], None] = lambda: None,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._classify = classify
        self._status = status
        self._missing = missing
        self._show_output = show_output
        self._is_output_due = self._is_flipped = self._is_held = False
        self._early = ""
        """Text typed early on a terminal that can only print."""
        self._is_dumb = output is None and is_dumb_terminal()
        color_depth = None if colors else ColorDepth.DEPTH_1_BIT
        self._session: PromptSession[str] = PromptSession(
            history=_PrivateHistory(history, has_secret),
            completer=completer,
            complete_while_typing=False,
            complete_in_thread=True,
            auto_suggest=AutoSuggestFromHistory(),
            key_bindings=self._keys(),
            style=STYLE,
            color_depth=color_depth,
            input=input,
            output=DummyOutput() if self._is_dumb else output,
        )
        # Created for the first question, so that it does not delay the first prompt.
        self._asking: Callable[[], PromptSession[str]] = cache(
            lambda: PromptSession(style=STYLE, color_depth=color_depth, input=input, output=output)
        )

    def once_shown(self, work: Callable[[], None]) -> None:
        """Run this as soon as the prompt is on the screen."""

        def shown(_app: Application[str]) -> None:
            self._session.app.after_render -= shown
            work()

        if self._is_dumb:  # it never renders
            work()
        else:
            self._session.app.after_render += shown

    def read(self, default: str = "") -> Classification | None:
        """Read and classify a line; return None if the user leaves.

        Ctrl-C discards the line, and Ctrl-D on an empty one leaves.
        """
        self._is_flipped = self._is_output_due = False
        is_held, self._is_held = self._is_held or bool(default), False
        try:
            if self._is_dumb:
                return self._read_plain(default, is_held=is_held)
            if is_held:
                default = self._hold_keys(default)
            text = self._session.prompt(
                lambda: [SIGNS[self._classified(self._typed).kind]],
                default=default,
                rprompt=self._reason,
                bottom_toolbar=lambda: self._status(self._session.app.output.get_size().columns),
                multiline=True,
                prompt_continuation="  ",
                enable_open_in_editor=True,
                enable_suspend=True,
                pre_run=self._show_output,
            )
        except KeyboardInterrupt:
            return Classification("nothing", "", "discarded")
        except EOFError:
            return None
        return self._classified(text)

    def type_early(self, keys: str, is_held: bool) -> None:
        """Type keys at the next prompts; lines that are held wait there for another Enter."""
        self._is_held |= is_held
        if self._is_dumb:
            self._early += text_from_keys(keys)
            return
        typed: list[KeyPress] = []
        parser = Vt100Parser(typed.append)
        parser.feed(keys)
        parser.flush()
        store_typeahead(self._session.input, typed)

    def _hold_keys(self, default: str) -> str:
        """Return the text for a prompt that shows the early keys and does not send them."""
        keys = get_typeahead(self._session.input)
        typed = text_from_keys("".join(key.data for key in keys)).strip("\n")
        return "\n".join(filter(None, (default, typed)))

    def _read_plain(self, default: str, *, is_held: bool) -> Classification:
        """Read a line on a terminal that can only print."""
        self._show_output()
        sign, early, self._early = SIGNS["nothing"][1], self._early, ""
        if is_held:
            text = read_line(sign, " ".join([default, *early.split("\n")]).strip())
        elif "\n" in early:
            text, _, self._early = early.partition("\n")
            sys.stdout.write(f"{sign}{text}\n")
        else:
            text = read_line(sign, early)
        while self._is_unfinished(text) or _is_open(text):
            text += "\n" + read_line("  ")
        if text.strip():
            self._session.history.append_string(text)
        return self._classified(text)

    def ask(self, question: str, default: str = "") -> str:
        """Return the answer to a question; Ctrl-D gives an empty one, Ctrl-C is raised."""
        try:
            if self._is_dumb:
                return read_line(question, default)
            return self._ask_later(question, default)
        except EOFError:
            return ""

    def _ask_later(self, question: str, default: str) -> str:
        """Ask without the keys that were typed before the question; the next line gets them."""
        asking = self._asking()
        early = get_typeahead(asking.input)
        self._is_held |= bool(early)
        try:
            return asking.prompt(_highlight_keys(question), default=default)
        finally:
            store_typeahead(asking.input, early + get_typeahead(asking.input))

    def above(self, output: Callable[[], None]) -> None:
        """Print above the line while it is typed; call it in the prompt's own thread."""
        run_in_terminal(output)

    def show_output_soon(self) -> None:
        """Show the output of background jobs above the line; safe to call from any thread.

        If no line is being typed, it is shown with the next one.
        """
        app = self._session.app
        if app.is_running and app.loop is not None and not self._is_output_due:
            self._is_output_due = True
            soon = partial(app.loop.call_later, NEWS_DELAY, self._above_line, context=app.context)
            with suppress(RuntimeError):  # the line has just ended
                app.loop.call_soon_threadsafe(soon)

    def _above_line(self) -> None:
        self._is_output_due = False
        if self._session.app.is_running:
            run_in_terminal(self._show_output)

    def redraw(self) -> None:
        """Redraw the line because something it shows has changed; safe to call from any thread."""
        self._session.app.invalidate()

    def _classified(self, text: str) -> Classification:
        line = self._classify(text)
        return flip(line) if self._is_flipped else line

    @property
    def _typed(self) -> str:
        return self._session.default_buffer.text

    def _reason(self) -> StyleAndTextTuples:
        line = self._classified(self._typed)
        is_narrow = self._session.app.output.get_size().columns < MIN_REASON_WIDTH
        if line.kind == "nothing" or is_narrow or self._session.app.is_done:
            return []
        hint = "" if line.kind == "meta" else " · Shift-Tab switches"
        return [("class:reason", f"{KIND_LABELS[line.kind]}: {line.reason}{hint}")]

    def _is_unfinished(self, text: str) -> bool:
        """Return whether it is an incomplete command, for which a shell would read more lines."""
        line = self._classified(text)
        return line.kind == "command" and self._missing(line.text) is not None

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        is_line = has_focus(DEFAULT_BUFFER)  # not the search field, which has its own keys
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
    """Highlight the keys of a question, as in `[s]kip`."""
    pieces = re.split(r"(\[\w\])", question)
    return [("class:key" if place % 2 else "", piece) for place, piece in enumerate(pieces)]


def _is_open(text: str) -> bool:
    """Return whether the text ends with a backslash, or inside a code fence."""
    fences = sum(line.startswith("```") for line in text.split("\n"))
    is_escaped = len(text) - len(text.rstrip("\\")) & 1
    return bool(is_escaped) or fences % 2 == 1
