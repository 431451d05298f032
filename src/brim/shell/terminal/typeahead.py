"""Keys that nobody has asked for yet: not echoed while brim works, and kept for the next prompt."""

from __future__ import annotations

import os
import re
import select
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""A key that types no character, or a terminal's late answer."""
_MAX_BYTES: Final = 65_536

Attributes = list[int | list[bytes | int]]


class Typeahead:
    """The keys that are typed too early at a terminal; where there is none, there are no keys."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._keys = b""
        self._usual: Attributes | None = None
        """How the terminal was, while it is quiet."""

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Echo nothing, and lose nothing by Ctrl-C, which works as ever."""
        if self._usual is not None or not os.isatty(self._descriptor):
            yield
            return
        before = self._usual = termios.tcgetattr(self._descriptor)
        self._set(_without_echo(before))
        try:
            yield
        finally:
            self.take()
            self._usual = None
            self._set(before)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """The terminal as usual for a question; what was typed before it is no answer."""
        self.take()
        usual = self._usual
        if usual is None:
            yield
            return
        self._set(usual)
        try:
            yield
        finally:
            self._set(_without_echo(usual))

    def take(self) -> None:
        """Keep what was typed so far away from whoever reads next."""
        with suppress(OSError):
            while self._usual is not None and len(self._keys) < _MAX_BYTES and self._has_keys():
                data = os.read(self._descriptor, _MAX_BYTES)
                if not data:
                    return
                self._keys += data

    def text(self) -> str:
        """What was taken, as a line to be edited; it is handed out once."""
        keys, self._keys = self._keys, b""
        return text_from_keys(keys.decode(errors="ignore"))

    def _has_keys(self) -> bool:
        return bool(select.select([self._descriptor], [], [], 0)[0])

    def _set(self, attributes: Attributes) -> None:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, attributes)


def text_from_keys(keys: str) -> str:
    """The text that keys have typed; the last Enter is not part of it."""
    text = ""
    for sign in _SEQUENCE.sub("", keys).replace("\r", "\n"):
        if sign in "\x7f\b":
            text = text[:-1]
        elif sign.isprintable() or sign == "\n":
            text += sign
    return text.strip("\n")


def _without_echo(attributes: Attributes) -> Attributes:
    *modes, signs = attributes
    assert isinstance(modes[3], int)
    assert isinstance(signs, list)
    # Without the last one, the terminal would throw away what was typed before a Ctrl-C.
    modes[3] = modes[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
    signs = [*signs]
    signs[termios.VMIN], signs[termios.VTIME] = 1, 0
    return [*modes, signs]
