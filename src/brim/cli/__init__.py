"""The command line: parse, call, print.

What is heavy is imported by the command that needs it, so that help comes at once.
"""

from brim.cli import ask, config, cost, doctor, fit, keys, local, models, serve, sessions, shell  # noqa: F401 - importing a module registers its command
from brim.cli.main import main

__all__ = ["main"]
