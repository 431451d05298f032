"""Risk assessment: whether a shell command only reads, destroys something, or does anything else.

Every simple command is looked up in a table (`brim/data/commands.toml`). Wrappers (sudo, xargs),
substitutions, aliases and the files that a command runs are followed. Nothing is ever run. Only
known programs with known options are *read-only*; what cannot be parsed counts as destructive.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
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
    from brim.shell.risk.syntax import clean, find_values, reads_alike_in_fish

    text, found = clean(command), Assessment()
    known = {"PWD": str(folder)} | {name: clean(value) for name, value in variables.items()}
    places = Places((folder,), home or Path(known.get("HOME") or "/"), project, since)
    cleaned = {name: clean(text) for name, text in (aliases or {}).items()}
    try:
        if is_fish and not reads_alike_in_fish(text):
            found.add(text, "fish may read it in another way")
        Review(found, places, text, known, cleaned, functions).script(text, text)
        exact: list[Assessment] = []
        added = () if found.is_destructive else find_values(text, known, str(places.home))
        for values in added:
            exact.append(Assessment())
            review = Review(exact[-1], places, text, {**known, **values}, cleaned, functions)
            replace(review, constants=frozenset(values)).script(text, text)
        found = max(exact, key=lambda each: (each.risk, each.runs_changed_file), default=found)
    except LimitReachedError:
        pass
    except Exception as error:  # an internal error must not let a command through
        with suppress(LimitReachedError):
            found.add(text, f"it could not be assessed ({type(error).__name__})")
    return found
