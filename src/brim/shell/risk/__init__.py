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

from brim.shell.risk.findings import Finding, Verdict

__all__ = ["Finding", "Verdict", "judge"]

LONGEST_SHOWN: Final = 300
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
    from brim.shell.risk.judging import ExhaustedError, Judge
    from brim.shell.risk.marks import clean
    from brim.shell.risk.scope import Scope
    from brim.shell.risk.walking import Walk

    text, noted = clean(command), Judge()
    known: dict[str, tuple[str, ...]] = {name: (clean(value),) for name, value in variables.items()}
    scope = Scope(known, {name: clean(value) for name, value in aliases.items()}, (folder,), home)
    try:
        Walk(noted, scope).script(text, text)
        for name, body, where in list(noted.pending.values()):
            Walk(noted, where).uncalled(name, body)
    except ExhaustedError:
        pass
    except Exception as error:  # whatever goes wrong here, the user is asked
        why = f"it could not be judged ({type(error).__name__})"
        noted.findings[Finding(text[:LONGEST_SHOWN], why)] = None
    return Verdict(tuple(noted.findings))
