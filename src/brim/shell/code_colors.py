"""Colours for code that comes line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

LOOKED_BACK: Final = 4_000
"""Characters before a line that say what it is part of (a comment, a text of several lines)."""
LONGEST: Final = 2_000
"""A longer line is shown without colours: nobody reads it, and it would take long."""
THEME: Final = "ansi_dark"
"""The terminal's own colours, whatever they are."""


class CodeColors:
    """The lines of one piece of code, each coloured by what it is part of."""

    def __init__(self, language: str) -> None:
        from rich.syntax import Syntax

        # `lexer` looks the language up, and is None where nobody knows it.
        self._lexer = Syntax("", language.lower()).lexer
        self._theme = Syntax.get_theme(THEME)
        self._before = ""

    def line(self, code: str) -> Text:
        """The next line, which is remembered."""
        if self._lexer is None or len(code) > LONGEST:
            return Text(code, no_wrap=True)
        tokens = self._lexer.get_tokens(f"{self._before}{code}\n")
        text = self._colored(tokens, len(self._before))
        self._before = _newest(f"{self._before}{code}\n")
        return text

    def _colored(self, tokens: Iterable[tuple[tuple[str, ...], str]], start: int) -> Text:
        """The tokens from a place on, without the line's end."""
        text, place = Text(no_wrap=True), 0
        for kind, value in tokens:
            shown = value[max(0, start - place) :].rstrip("\n")
            place += len(value)
            if shown:
                text.append(shown, self._theme.get_style_for_token(kind))
        return text


def _newest(text: str) -> str:
    if len(text) <= LOOKED_BACK:
        return text
    return text[text.index("\n", len(text) - LOOKED_BACK // 2) + 1 :]
