"""What the system prompt of the shell says, and the prefix by which a model proposes a command."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "CMD: "

DEFAULT_PROMPT: Final = "You are an assistant in a user's terminal. Answer briefly."
RULE: Final = (
    f"To run a shell command, write it on its own line, starting with exactly `{PREFIX}`, without "
    "quotes or markup:\n"
    f"{PREFIX}df -h\n"
    "The user may skip a command; you receive the output of those that ran in the next message. "
    "Never invent output. Without such a line, nothing runs."
)
"""Always part of the system prompt, also with a custom base."""
FISH_RULE: Final = " Commands run in fish."
TOOLS_RULE: Final = (
    f"If a tool can do the task, call it. Use `{PREFIX}` lines for all other work on this machine. "
    "Never do the same thing both ways."
)
"""Added if tools are offered."""
