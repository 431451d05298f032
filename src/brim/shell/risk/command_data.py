"""The data about commands, `data/commands.toml`, and the patterns in it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def load_commands() -> dict[str, Any]:
    """Return the data; it is read once."""
    return tomllib.loads(files("brim.data").joinpath("commands.toml").read_text("utf-8"))


@cache
def load_patterns() -> Mapping[str, re.Pattern[str]]:
    return {name: re.compile(text) for name, text in load_commands()["patterns"].items()}
