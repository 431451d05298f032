"""Keys typed while brim is busy: not echoed, and kept for the next prompt."""

from __future__ import annotations

import os
import re
import select
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""A key that types no character, or a late response of the terminal."""
_MAX_BYTES: Final = 65_536

Attributes = list[int | list[bytes | int]]


class Typeahead:
    """The keys typed too early at a terminal; empty if there is no terminal."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._keys = b""
        self._usual: Attributes | None = None
        """The terminal's attributes before `quiet`; None outside of it."""

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Switch echo off, and keep what was typed even if Ctrl-C is pressed."""
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
        """Restore the terminal for a question; keys typed before it do not answer it."""
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
        """Read the keys typed so far, so that the next reader does not get them."""
        with suppress(OSError):
            while self._usual is not None and len(self._keys) < _MAX_BYTES and self._has_keys():
                data = os.read(self._descriptor, _MAX_BYTES)
                if not data:
                    return
                self._keys += data

    def take_text(self) -> str:
        """Return the keys taken so far as text, once."""
        keys, self._keys = self._keys, b""
        return text_from_keys(keys.decode(errors="ignore"))

    def _has_keys(self) -> bool:
        return bool(select.select([self._descriptor], [], [], 0)[0])

    def _set(self, attributes: Attributes) -> None:
        with suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, attributes)


def text_from_keys(keys: str) -> str:
    """Return the text that keys have typed, without the last Enter."""
    text = ""
    for character in _SEQUENCE.sub("", keys).replace("\r", "\n"):
        if character in "\x7f\b":
            text = text[:-1]
        elif character.isprintable() or character == "\n":
            text += character
    return text.strip("\n")


def _without_echo(attributes: Attributes) -> Attributes:
    *modes, characters = attributes
    assert isinstance(modes[3], int)
    assert isinstance(characters, list)
    # NOFLSH: the terminal would otherwise discard what was typed before a Ctrl-C.
    modes[3] = modes[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
    characters = [*characters]
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    return [*modes, characters]
