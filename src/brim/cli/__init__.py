"""The command line: parse options, call the library, print the result.

Heavy modules are imported by the command that needs them, so that `--help` is fast.
"""

from brim.cli import ask, audit, config, cost, doctor, fit, keys, local, models, serve, sessions  # noqa: F401 - importing a module registers its command
from brim.cli.main import main

__all__ = ["main"]
