"""Risk assessment: whether a shell command could destroy something.

The command is parsed and followed as a shell would run it: words are expanded, variables are
tracked, and wrappers (sudo, xargs, sh -c, ssh) and substitutions are resolved. Nothing is ever run,
and a command that cannot be parsed counts as destructive. `rules` holds the tables of destructive
programs; `wrappers` and `inline_code` cover programs that run something else.
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
    """Return the parts of a command that need a typed yes.

    `variables` are those of the user's shell, exported or not; a missing variable is empty.
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
    except Exception as error:  # an internal error must not let a command through
        why = f"it could not be assessed ({type(error).__name__})"
        log.findings[Finding(text[:LONGEST_SHOWN], why)] = None
    return Assessment(tuple(log.findings))
