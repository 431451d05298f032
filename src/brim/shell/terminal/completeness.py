"""Checks whether a command is complete, or a shell would wait for more lines."""

from __future__ import annotations

import re
import subprocess
from typing import Final

from brim.shell.terminal.dialects import PosixDialect

_OPEN: Final = re.compile(r"looking for matching `(.+)'|[Uu]nmatched (.)")
_HERE: Final = re.compile(r"wanted `(.+)'")
_TIMEOUT: Final = 10


def describe_missing(command: str, program: str, dialect: PosixDialect) -> str | None:
    """Return what is missing; None if the command is complete, or wrong in another way.

    The shell itself parses the command without running it. Only an unexpected end counts, because
    other errors depend on the user's aliases and options.
    """
    missing = _check_syntax(command, program, dialect)
    if missing is None and _ends_in_backslash(command):
        # In a comment, neither the backslash nor a quote in its place has a meaning.
        quoted = _check_syntax(command[:-1] + '"', program, dialect)
        return "a line must follow the backslash" if quoted else None
    return missing


def _ends_in_backslash(command: str) -> bool:
    return (len(command) - len(command.rstrip("\\"))) % 2 == 1


def _check_syntax(command: str, program: str, dialect: PosixDialect) -> str | None:
    text = command.encode(errors="surrogateescape") + b"\n"
    environment = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    try:
        read = subprocess.run(
            [program, *dialect.parse_arguments, "-n"],
            input=text,
            capture_output=True,
            env=environment,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    error = read.stderr.decode(errors="replace")
    return _describe(error) if re.search(dialect.incomplete_errors, error, re.MULTILINE) else None


def _describe(error: str) -> str:
    here = _HERE.search(error)
    if here:
        return f"the here-document has no line {here[1]}"
    found = _OPEN.search(error)
    if found:
        return f"{found[1] or found[2]} is missing"
    return "more must follow"
