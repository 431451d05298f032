"""The terminal sanitizer: text from models, servers and files cannot control the terminal."""

from __future__ import annotations

import re
from typing import Final

_BIDI: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Direction marks: with them, a line can read differently from what it runs."""
_INVISIBLE: Final = "\u200b\u2028\u2029\u2060-\u2065\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"
"""Zero-width characters, which can hide text. Joiners stay: emoji need them."""
_CONTROL: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff"
_UNSAFE: Final = re.compile(f"\r\n|[{_CONTROL}{_BIDI}{_INVISIBLE}]")


def sanitize(text: str) -> str:
    """Replace control and invisible characters by visible ones; keep newlines and tabs.

    CRLF becomes a newline. C0 controls become Unicode control pictures, all others escapes such as
    `\\x9b`.
    """
    return _UNSAFE.sub(_spell_out, text)


def _spell_out(found: re.Match[str]) -> str:
    character = found[0]
    if character == "\r\n":
        return "\n"
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return character.encode("ascii", "backslashreplace").decode()
