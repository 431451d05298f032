"""The command line: parse, call, print.

What is heavy is imported by the command that needs it, so that help comes at once.
"""

from brim.cli import (  # noqa: F401 - they enter themselves
    ask,
    cost,
    doctor,
    fitting,
    keys,
    local,
    models,
    serve,
    sessions,
    settings,
    shell,
)
from brim.cli.door import main

__all__ = ["main"]
