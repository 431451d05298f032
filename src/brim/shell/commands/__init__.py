"""Meta commands: `:name arguments`, each a function whose docstring is its help text.

meta_command   how a command is registered, found, checked and run; the overview of `:help`
inspect        commands that show something and change nothing
edit           commands that change the conversation
persist        commands about what is kept between runs and sent with every request
"""

from __future__ import annotations

from brim.shell.commands import edit, inspect, persist  # noqa: F401 - they register their commands
from brim.shell.commands.meta_command import COMMANDS, MetaCommand, completions, names, run

__all__ = ["COMMANDS", "MetaCommand", "completions", "names", "run"]
