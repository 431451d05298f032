"""Write docs/cli.md from the help texts of the commands (`make docs`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from brim.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """# The command line

What `--help` says, command by command. This page is written by `make docs`.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *(section(name, command) for name, command in commands("brim", main))])


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and all its subcommands, with their full names."""
    yield name, command
    if isinstance(command, click.Group):
        for part in command.list_commands(click.Context(command)):  # imports and sorts them
            yield from commands(f"{name} {part}", command.commands[part])


def section(name: str, command: click.Command) -> str:
    settings = {**main.context_settings, "terminal_width": 88, "max_content_width": 88}
    context = click.Context(command, info_name=name, **settings)
    return f"## {name}\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
