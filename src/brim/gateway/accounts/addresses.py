"""Checks of the URLs of account stores.

URLs contain passwords, and Python's error messages about an invalid URL may quote a part of them.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult

from brim.errors import InputError

ESCAPING_HINT: Final = (
    "escape special characters in the password as %XX: / is %2F, @ is %40, [ is %5B"
)
MAX_PORT: Final = 65_535


def has_unescaped_delimiter(parts: SplitResult) -> bool:
    """Return whether an unescaped / ? or # in the password ended the host: the @ comes later."""
    return "@" in parts.path + parts.query + parts.fragment or parts.netloc.count("@") > 1


def check_port(digits: str) -> None:
    """Raise `InputError` if a port is out of range. Text may be a password, so it is not shown."""
    if digits.isdecimal() and not 0 < int(digits[:9]) <= MAX_PORT:
        raise InputError(
            f"Invalid port in the store's URL: {digits[:9]}. Ports range from 1 to {MAX_PORT}."
        )
