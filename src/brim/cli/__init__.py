"""The command line: parse options, call the library, print the result.

Heavy modules are imported by the command that needs them, so that `--help` is fast, and commands
only if one is given, so that the shell starts fast.
"""

from brim.cli.main import main

__all__ = ["main"]
