"""URLs of stores: what is wrong with them, and what of them can be shown.

They hold passwords, and what Python says of one that it cannot read may repeat a part of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from brim.config import home_as_tilde
from brim.errors import InputError
from brim.gateway.accounts import file_path

ESCAPING_HINT: Final = (
    "what is not a letter or digit in a password as %XX: / is %2F, @ is %40, [ is %5B"
)
MAX_PORT: Final = 65_535


def redact_address(address: str, folder: Path) -> str:
    """Where books are, without the name and the password that may stand in an address."""
    if (file := file_path(address, folder)) is not None:
        return home_as_tilde(file)
    try:
        parts = urlsplit(address)
    except ValueError:
        return f"{address.partition('://')[0]}://…"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def has_unescaped_delimiter(parts: SplitResult) -> bool:
    """Whether a bare / ? or # in a password ended the host too early: the @ comes after it."""
    return "@" in parts.path + parts.query + parts.fragment or parts.netloc.count("@") > 1


def check_port(digits: str) -> None:
    """Raise where a port is none; what is no number at all may be a password, and is not shown."""
    if digits.isdecimal() and not 0 < int(digits[:9]) <= MAX_PORT:
        raise InputError(
            f"{digits[:9]} in the URL of the store is no port: they go from 1 to {MAX_PORT}"
        )
