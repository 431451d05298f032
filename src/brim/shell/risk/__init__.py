"""Risk assessment: whether a shell command only reads, destroys something, or does anything else.

The command is parsed, its words are expanded, and every simple command in it is looked up in a
table (`brim/data/commands.toml`). Wrappers (sudo, xargs, sh -c, ssh), substitutions, aliases and
the files that a command runs are followed. Nothing is ever run. *Read-only* needs a known program
with known options; a command that cannot be parsed counts as destructive.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from brim.shell.risk.findings import Assessment, Finding, LimitReachedError, Risk

__all__ = ["Assessment", "Finding", "Risk", "assess"]


def assess(
    command: str,
    *,
    variables: Mapping[str, str],
    folder: Path,
    home: Path | None = None,
    aliases: Mapping[str, str] | None = None,
    functions: frozenset[str] = frozenset(),
    project: Path | None = None,
    since: float | None = None,
    is_fish: bool = False,
) -> Assessment:
    """Return what a command may do.

    `variables` are those of the user's shell, exported or not; a missing variable is empty. Files
    in `project`, and those that changed after `since`, may have been written by the model. Without
    `since`, no file that is run counts as read-only. What only fish understands is destructive.
    """
    from brim.shell.risk.places import Places
    from brim.shell.risk.review import Review
    from brim.shell.risk.words import clean, reads_alike_in_fish

    text, found = clean(command), Assessment()
    known = {"PWD": str(folder)} | {name: clean(value) for name, value in variables.items()}
    places = Places((folder,), home or Path(known.get("HOME") or "/"), project, since)
    cleaned = {name: clean(text) for name, text in (aliases or {}).items()}
    try:
        if is_fish and not reads_alike_in_fish(text):
            found.add(text, "fish may read it in another way")
        Review(found, places, text, known, cleaned, functions).script(text, text)
    except LimitReachedError:
        pass
    except Exception as error:  # an internal error must not let a command through
        with suppress(LimitReachedError):
            found.add(text, f"it could not be assessed ({type(error).__name__})")
    return found
