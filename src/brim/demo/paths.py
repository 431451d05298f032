"""What to type: the command and a file to try it with, as short as they are from here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shutil import which

import brim


def recording() -> Path:
    """The recorded run: a request body with its source and licence beside it."""
    return Path(brim.__file__).with_name("data") / "demo.json"


def command() -> str:
    """What to type for `brim`: where it is not on the path, it lies beside this Python."""
    return "brim" if which("brim") else short(str(Path(sys.executable).with_name("brim")))


def short(path: str) -> str:
    return min(path, os.path.relpath(path), key=len)
