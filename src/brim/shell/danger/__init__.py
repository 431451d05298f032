"""Whether a shell command could destroy something, told from its parsed form.

A command is read as the shell would read it: words are expanded, wrappers (sudo, xargs, sh -c, ssh)
and substitutions are looked through, variables of the line are followed. Nothing is ever run, and
what cannot be read counts as destructive. The names of programs and what makes them destructive are
the tables of `rules`; `wrappers` and `inline` say what else runs something.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from brim.shell.danger.findings import Finding, Verdict

__all__ = ["Finding", "Verdict", "judge"]

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def judge(
    command: str,
    *,
    variables: Mapping[str, str],
    folder: Path,
    home: Path | None = None,
    aliases: Mapping[str, str] = _NONE,
) -> Verdict:
    """What in the command needs the user's yes.

    `variables` are those of the user's shell, exported or not: one that is missing is empty.
    """
    from brim.shell.danger.judging import Judge
    from brim.shell.danger.walking import read

    noted = Judge()
    read(command, noted, variables=variables, folder=folder, home=home, aliases=aliases)
    return Verdict(tuple(noted.findings))
