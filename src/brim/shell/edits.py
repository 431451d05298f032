"""Changes of files in a reply: found, and applied to all files together, or to none.

A change is a search/replace block or a unified diff.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brim.errors import InputError

EDIT_RULE: Final = (
    "[brim] To change a file, write its path on a line, and below it:\n"
    "<<<<<<< SEARCH\nthe exact lines to replace\n=======\nthe new lines\n>>>>>>> REPLACE"
)
"""Sent with the first files of a conversation."""

_BLOCK: Final = re.compile(
    r"^<{5,9} ?SEARCH[^\n]*\n(.*?)^={5,9}[ \t]*\n(.*?)^>{5,9} ?REPLACE", re.MULTILINE | re.DOTALL
)
_DIFF: Final = re.compile(
    r"^--- ([^\t\n]+)[^\n]*\n\+\+\+ ([^\t\n]+)[^\n]*\n"
    r"((?:@@[^\n]*\n(?:(?!--- .*\n\+\+\+ )[-+ \\][^\n]*(?:\n|\Z)|\n(?!```))*)+)",
    re.MULTILINE,
)
_HUNK: Final = re.compile(r"^@@[^\n]*\n", re.MULTILINE)
_FENCE: Final = re.compile(r"\s*(`{3,}|~{3,})")
_SAVED: Final = "/dev/null"


@dataclass(frozen=True, slots=True)
class Replacement:
    """Lines of a file, and what they become; without old lines, a new file."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class AppliedEdit:
    """Files that were changed together, with their content before and after."""

    turns: int
    """The length of the conversation then."""
    before: Mapping[Path, bytes | None]
    after: Mapping[Path, bytes]


# Finding


def find_replacements(reply: str) -> list[Replacement]:
    """Return the changes in a reply, in order."""
    found = [(match.start(), _from_block(reply, match)) for match in _BLOCK.finditer(reply)]
    for match in _DIFF.finditer(reply):
        found += [(match.start(), each) for each in _from_diff(*match.groups())]
    ordered = [each for _, each in sorted(found, key=lambda one: one[0])]
    for place, each in enumerate(ordered):
        if not each.file and place:  # a second block for the same file
            ordered[place] = Replacement(ordered[place - 1].file, each.old, each.new)
    return [each for each in ordered if each.file]


def _from_block(reply: str, match: re.Match[str]) -> Replacement:
    lines = [line for line in reply[: match.start()].split("\n") if line.strip()]
    while lines and _FENCE.match(lines[-1]):
        lines.pop()
    name = lines[-1].strip(" \t#*`:") if lines else ""
    is_path = not re.search(r"\s|^>+ ?REPLACE", name)
    return Replacement(name if is_path else "", match[1], match[2])


def _from_diff(old: str, new: str, hunks: str) -> Iterator[Replacement]:
    source = new if old.strip() == _SAVED else old
    name = re.sub(r"^[ab]/", "", source.strip())
    for hunk in _HUNK.split(hunks)[1:]:
        lines = [line or " " for line in hunk.removesuffix("\n").split("\n")]
        yield Replacement(name, _pick(lines, " -"), _pick(lines, " +"))


def _pick(lines: list[str], signs: str) -> str:
    return "".join(f"{line[1:]}\n" for line in lines if line[0] in signs)


# Applying


def apply_replacements(content: str, changes: list[Replacement]) -> str:
    """Return the new content of a file; raise InputError if a change does not apply."""
    ending = "\r\n" if "\r\n" in content else "\n"
    text = content.replace("\r\n", "\n")
    for change in changes:
        text = _replace(text, change)
    return text.replace("\n", ending)


def _replace(text: str, change: Replacement) -> str:
    if not change.old.strip():
        if text.strip():
            raise InputError(f"{change.file} exists already, and no lines to replace are given.")
        return change.new
    lines, old = text.split("\n"), change.old.removesuffix("\n").split("\n")
    places = _find_lines(lines, old) or _find_lines([each.rstrip() for each in lines], old)
    if len(places) != 1:
        problem = f"occur {len(places)} times" if places else "do not occur"
        raise InputError(f"The lines to replace {problem} in {change.file}: {old[0].strip()!r} …")
    new = change.new.removesuffix("\n").split("\n") if change.new else []
    lines[places[0] : places[0] + len(old)] = new
    return "\n".join(lines)


def _find_lines(lines: list[str], wanted: list[str]) -> list[int]:
    last = len(lines) - len(wanted)
    return [at for at in range(last + 1) if lines[at : at + len(wanted)] == wanted]


def write_files(contents: Mapping[Path, bytes | None]) -> None:
    """Write all files, or none; None removes one."""
    written: dict[Path, bytes | None] = {}
    prepared: dict[Path, Path] = {}
    try:
        for path, data in contents.items():
            if data is not None:
                prepared[path] = _prepare(path, data)
        for path, data in contents.items():
            before = path.read_bytes() if path.exists() else None
            if data is None:
                path.unlink(missing_ok=True)
            else:
                prepared[path].replace(path)
            written[path] = before
    except OSError:
        if written:
            with suppress(OSError):
                write_files(written)
        raise
    finally:
        for temporary in prepared.values():
            temporary.unlink(missing_ok=True)


def _prepare(path: Path, data: bytes) -> Path:
    """Write the content to a file next to its place, with the same mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(prefix=".brim-", dir=path.parent)
    with os.fdopen(number, "wb") as file:
        file.write(data)
    temporary = Path(name)
    if path.exists():
        shutil.copymode(path, temporary)
    else:
        temporary.chmod(0o644)
    return temporary
