"""What stands in the pictures: somebody at work in a small project, with answers from a script.

A shop's server writes a log, and its orders fail. Everything is the real shell in a terminal; only
the model is a script, so that each run gives the same screens.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from brim.testing import Answer, Say, Scripted
from tests.shell.driving import Home, Typist

COLUMNS: Final = 96
ROWS: Final = 60
"""More than any scene needs: what is not used is cropped."""
DATA: Final = Path(__file__).parent / "scene"
DATE: Final = "2026-03-02T09:30:00+00:00"
CONFIG: Final = """\
[models.gpt-5-mini]
endpoint = "{url}"
window = 8_192
reply = 1_500
price = {{ input = 0.25, cached = 0.025, output = 2.0 }}

[models.gpt-5-nano]
endpoint = "{url}"
window = 8_192
reply = 1_500
price = {{ input = 0.05, cached = 0.005, output = 0.4 }}

[summary]
model = "gpt-5-nano"

[[routing.rules]]
match = '\\bcommit message\\b'
model = "gpt-5-nano"

[mcp.issues]
command = "{python}"
args = ["{server}"]
"""

