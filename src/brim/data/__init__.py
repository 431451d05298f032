"""Tables and vocabularies, as files that the packages read at first use."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def load_table(name: str) -> dict[str, Any]:
    """Return the table of a TOML file, which is read once; callers must not change it."""
    import tomllib
    from pkgutil import get_data  # importlib.resources takes ten times as long to import

    return tomllib.loads((get_data(__name__, f"{name}.toml") or b"").decode())
