"""A line at a terminal that can only print: edited in the way that the system has for it."""

from __future__ import annotations

import sys
from contextlib import suppress


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
