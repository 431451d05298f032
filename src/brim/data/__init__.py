"""Tables and vocabularies, as files that the packages read at first use."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def load_table(name: str) -> dict[str, Any]:
    """Return the table of a TOML file, which is read once; callers must not change it."""
    import tomllib
    from importlib import resources

    return tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text("utf-8"))
