"""The command line: parse, call, print.

What is heavy is imported by the command that needs it, so that help comes at once.
"""

from brim.cli import ask, fitting, local, models, settings  # noqa: F401 - they enter themselves
from brim.cli.door import main

__all__ = ["main"]
