"""Whether a command ends before it is finished, so that a shell would wait for more."""

from __future__ import annotations

import re
import subprocess
from typing import Final

from brim.shell.terminal.dialects import PosixDialect

_OPEN: Final = re.compile(r"looking for matching `(.+)'|[Uu]nmatched (.)")
_HERE: Final = re.compile(r"wanted `(.+)'")
_TIMEOUT: Final = 10


def describe_missing(command: str, program: str, dialect: PosixDialect) -> str | None:
    """What is missing, in words; None where it is whole, or wrong in another way.

    The shell itself reads it, without running it. Only an end that came too early counts: in
    other matters the user's aliases and options decide, which are not known here.
    """
    fault = _check_syntax(command, program, dialect)
    if fault is None and _ends_in_backslash(command):
        # In a comment the backslash means nothing, and neither does a quote in its place.
        quoted = _check_syntax(command[:-1] + '"', program, dialect)
        return "a line must follow the backslash" if quoted else None
    return fault


def _ends_in_backslash(command: str) -> bool:
    return (len(command) - len(command.rstrip("\\"))) % 2 == 1


def _check_syntax(command: str, program: str, dialect: PosixDialect) -> str | None:
    text = command.encode(errors="surrogateescape") + b"\n"
    environment = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    try:
        read = subprocess.run(
            [program, *dialect.reading, "-n"],
            input=text,
            capture_output=True,
            env=environment,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = read.stderr.decode(errors="replace")
    return _describe(said) if re.search(dialect.is_unfinished, said, re.MULTILINE) else None


def _describe(said: str) -> str:
    here = _HERE.search(said)
    if here:
        return f"the here-document has no line {here[1]}"
    found = _OPEN.search(said)
    if found:
        return f"{found[1] or found[2]} is missing"
    return "it ends where more must follow"
