"""Meta commands: `:name arguments`, each a function in a registry, its docstring the help.

registry   how a command is entered, found, checked and run
help       all of them on one screen
looking    what shows something and changes nothing
talking    what changes the conversation
keeping    what is kept between runs, and what goes along with a request
"""

from __future__ import annotations

from brim.shell.commands import edit, inspect, persist  # noqa: F401 - they enter themselves
from brim.shell.commands.meta_command import COMMANDS, MetaCommand, completions, names, run

__all__ = ["COMMANDS", "MetaCommand", "completions", "names", "run"]
