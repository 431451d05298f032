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
_MOST: Final = 65_536


class Early:
    """The keys that are typed too early at a terminal; where there is none, there are no keys."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._keys = b""
        self._is_quiet = False

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Echo nothing, and lose nothing by Ctrl-C, which works as ever."""
        if self._is_quiet or not os.isatty(self._descriptor):
            yield
            return
        before = termios.tcgetattr(self._descriptor)
        self._set(_without_echo(termios.tcgetattr(self._descriptor)))
        self._is_quiet = True
        try:
            yield
        finally:
            self.take()
            self._is_quiet = False
            self._set(before)

    def take(self) -> None:
        """Keep what was typed so far away from whoever reads next."""
        with suppress(OSError):
            while self._is_quiet and len(self._keys) < _MOST and self._has_keys():
                data = os.read(self._descriptor, _MOST)
                if not data:
                    return
                self._keys += data

    def text(self) -> str:
        """What was taken, as a line to be edited; it is handed out once."""
        keys, self._keys = self._keys, b""
        return typed_text(keys.decode(errors="ignore"))

    def _has_keys(self) -> bool:
        return bool(select.select([self._descriptor], [], [], 0)[0])

    def _set(self, attributes: list[int | list[bytes | int]]) -> None:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, attributes)


def typed_text(keys: str) -> str:
    """The text that keys have typed; the last Enter is not part of it."""
    text = ""
    for sign in _SEQUENCE.sub("", keys).replace("\r", "\n"):
        if sign in "\x7f\b":
            text = text[:-1]
        elif sign.isprintable() or sign == "\n":
            text += sign
    return text.strip("\n")


def _without_echo(
    attributes: list[int | list[bytes | int]],
) -> list[int | list[bytes | int]]:
    flags, signs = attributes[3], attributes[6]
    assert isinstance(flags, int)
    assert isinstance(signs, list)
    # Without the last one, the terminal would throw away what was typed before a Ctrl-C.
    attributes[3] = flags & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
    signs[termios.VMIN], signs[termios.VTIME] = 1, 0
    return attributes
