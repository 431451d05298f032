"""Text of others that cannot do anything to the terminal that shows it, nor hide in it."""

from __future__ import annotations

import re
from typing import Final

_TURNS: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""What changes the direction of writing: a line may read otherwise than it runs."""
_UNSEEN: Final = "\u200b\u2028\u2029\u2060-\u2065\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"
"""What takes no room: words can be hidden in it. Joiners stay, emoji are made with them."""
_CONTROL: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff"
_HARMFUL = re.compile(f"\r\n|[{_CONTROL}{_TURNS}{_UNSEEN}]")


def sanitize(text: str) -> str:
    """The text with control and invisible characters spelled out; line ends and tabs stay."""
    return _HARMFUL.sub(_spell_out, text)


def _spell_out(found: re.Match[str]) -> str:
    sign = found[0]
    if sign == "\r\n":
        return "\n"
    code = ord(sign)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return sign.encode("ascii", "backslashreplace").decode()
