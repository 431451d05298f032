"""Keys typed while brim is busy: not echoed, and typed at the next prompt."""

from __future__ import annotations

import os
import re
import select
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from brim.shell.terminal.process import Attributes
from brim.shell.terminal.relay import handle_interrupts

_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""A key that types no character, or a late response of the terminal."""
_MAX_BYTES: Final = 65_536


class Typeahead:
    """The keys typed too early at a terminal; empty if there is no terminal."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._keys = b""
        self._is_held = False
        self._usual: Attributes | None = None
        """The terminal's attributes before `quiet`; None outside of it."""

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Switch echo off, and hold what was typed back if Ctrl-C is pressed."""
        if self._usual is not None or not os.isatty(self._descriptor):
            yield
            return
        before = self._usual = termios.tcgetattr(self._descriptor)
        self._set(_without_echo(before))

        def hold(number: int, frame: FrameType | None) -> None:
            self._is_held = True  # the user may have typed Ctrl-C against the keys before it
            signal.default_int_handler(number, frame)

        try:
            with handle_interrupts(hold):
                yield
        finally:
            self.take()
            self._usual = None
            self._set(before)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Restore the terminal for a question; keys typed before it do not answer it."""
        self.take()
        self._is_held |= bool(self._keys)
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
            while self._usual is not None and len(self._keys) < _MAX_BYTES:
                if not select.select([self._descriptor], [], [], 0)[0]:
                    return
                data = os.read(self._descriptor, _MAX_BYTES)
                if not data:
                    return
                self._keys += data

    def add(self, keys: bytes) -> None:
        """Add keys that a command has not read."""
        self._keys += keys

    def take_keys(self) -> tuple[str, bool]:
        """Return the keys taken so far, once, and whether their lines must not be sent."""
        taken = self._keys.decode(errors="ignore"), self._is_held
        self._keys, self._is_held = b"", False
        return taken

    def _set(self, attributes: Attributes) -> None:
        with suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, attributes)


def text_from_keys(keys: str) -> str:
    """Return the text that keys have typed."""
    text = ""
    for character in _SEQUENCE.sub("", keys).replace("\r", "\n"):
        if character in "\x7f\b":
            text = text[:-1]
        elif character.isprintable() or character == "\n":
            text += character
    return text


def remove_echo(output: str, keys: bytes) -> str:
    """Return the output of a command without the echoed lines of keys that no program has read."""
    lines = output.split("\n")
    for line in text_from_keys(keys.decode(errors="ignore")).split("\n"):
        if line and line in lines:
            lines.remove(line)
    return "\n".join(lines)


def _without_echo(attributes: Attributes) -> Attributes:
    *modes, characters = attributes
    assert isinstance(modes[3], int)
    assert isinstance(characters, list)
    # NOFLSH: the terminal would otherwise discard what was typed before a Ctrl-C.
    modes[3] = modes[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
    characters = [*characters]
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    return [*modes, characters]
