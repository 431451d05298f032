"""Commands in the user's own shell, on a real terminal, for as long as brim lives.

The shell is an ordinary interactive one. Its output, errors and keys are a pseudo-terminal that is
relayed to brim's own; the lines it reads come through a pipe that no program it starts ever sees,
so that keys typed too early are never taken for commands. What became of a command is reported
through a named pipe. Between commands the shell waits for its next line, with its folder,
variables, aliases and jobs.
"""

from __future__ import annotations

from brim.shell.terminal.user_shell import CommandResult, UserShell

__all__ = ["CommandResult", "UserShell"]
