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

from brim.shell.risk.findings import Assessment, Finding

__all__ = ["Assessment", "Finding", "assess"]

LONGEST_SHOWN: Final = 300
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def assess(
    command: str,
    *,
    variables: Mapping[str, str],
    folder: Path,
    home: Path | None = None,
    aliases: Mapping[str, str] = _NONE,
) -> Assessment:
    """What in the command needs the user's yes.

    `variables` are those of the user's shell, exported or not: one that is missing is empty.
    """
    from brim.shell.risk.findings import FindingLog, LimitReachedError
    from brim.shell.risk.interpreter import Interpreter
    from brim.shell.risk.shell_state import ShellState
    from brim.shell.risk.syntax import clean

    text, log = clean(command), FindingLog()
    known: dict[str, tuple[str, ...]] = {name: (clean(value),) for name, value in variables.items()}
    scope = ShellState(
        known, {name: clean(value) for name, value in aliases.items()}, (folder,), home
    )
    try:
        Interpreter(log, scope).script(text, text)
        for name, body, where in list(log.pending.values()):
            Interpreter(log, where).uncalled(name, body)
    except LimitReachedError:
        pass
    except Exception as error:  # whatever goes wrong here, the user is asked
        why = f"it could not be judged ({type(error).__name__})"
        log.findings[Finding(text[:LONGEST_SHOWN], why)] = None
    return Assessment(tuple(log.findings))
