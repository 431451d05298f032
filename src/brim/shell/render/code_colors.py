"""Colours for code that comes line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

LOOKED_BACK: Final = 2_000
"""Characters before a line that say what it is part of, as far as a line's end is a safe one."""
MOST: Final = 4 * LOOKED_BACK
"""And where there is none, because a comment or a text goes on and on."""
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
        self._safe = 0
        """Where a line begins in it that is part of no comment or text of several lines."""

    def line(self, code: str) -> Text:
        """The next line, which is remembered."""
        if self._lexer is None or len(code) > LONGEST:
            return Text(code, no_wrap=True)
        start = len(self._before)
        self._before += f"{code}\n"
        text, last = self._colored(self._lexer.get_tokens(self._before), start)
        if not last.startswith(("Token.Literal.String", "Token.Comment")):
            self._forget(len(self._before))
        elif len(self._before) > MOST:
            self._before, self._safe = "", 0
        return text

    def _forget(self, safe: int) -> None:
        """What stands before the last safe place is not needed, once there is enough behind it."""
        if safe - self._safe > LOOKED_BACK // 2:
            self._before = self._before[self._safe :]
            self._safe = len(self._before)

    def _colored(
        self, tokens: Iterable[tuple[tuple[str, ...], str]], start: int
    ) -> tuple[Text, str]:
        """The tokens from a place on, without the line's end, and what the last of them is."""
        text, place, last = Text(no_wrap=True), 0, ""
        for kind, value in tokens:
            shown = value[max(0, start - place) :].rstrip("\n")
            place += len(value)
            last = str(kind)
            if shown:
                text.append(shown, self._theme.get_style_for_token(kind))
        return text, last
