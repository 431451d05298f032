"""Text of others that cannot do anything to the terminal that shows it."""

from __future__ import annotations

import re
from typing import Final

_TURNS: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""What changes the direction of writing: a line may read otherwise than it runs."""
_HARMFUL = re.compile(f"\r(?=\n)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_TURNS}]")


def harmless(text: str) -> str:
    """The text with control characters spelled out; line ends and tabs stay."""
    return _HARMFUL.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    sign = found[0]
    code = ord(sign)
    if sign == "\r" and found.string[found.end() : found.end() + 1] == "\n":
        return ""
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
