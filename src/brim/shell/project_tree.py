"""The project's file tree, small enough for a system prompt.

One name per line, one space per level, without files that git ignores. If the tree is too long, the
longest lists are shortened and the deepest levels omitted first. The work is bounded, however
large the folder is.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brim.data import load_table
from brim.errors import InputError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

MAX_ENTRIES: Final = 20_000
"""Entries to read, including ignored ones."""
MAX_IN_FOLDER: Final = 2_000
MIN_LIST: Final = 8
"""Lists are not shortened below this while a level can be omitted."""
MAX_DEPTH: Final = 32
"""Levels to read at most."""
MAX_IGNORE_BYTES: Final = 200_000
"""Bytes to read of a .gitignore file."""

MIN_CHARS: Final = 60
"""A shorter tree is useless."""

_NAMES: Final = {key: frozenset(text.split()) for key, text in load_table("project").items()}


def find_root(folder: Path, *, home: Path | None = None) -> Path | None:
    """Return the root of the project that contains a folder; None for the home folder and above.

    A folder without a project is its own root. Markers in the home folder do not make it a project.
    """
    folder = folder.absolute()
    home = (home or Path.home()).resolve()
    if home.is_relative_to(folder.resolve()):
        return None
    for each in (folder, *folder.parents):
        if home.is_relative_to(each.resolve()):
            break
        if any(os.access(each / name, os.F_OK) for name in _NAMES["root"]):
            return each
    return folder


def build_tree(folder: Path, *, depth: int = 3, max_chars: int = 2_000) -> str:
    """Return the tree of a folder with at most `depth` levels and `max_chars` characters."""
    depth = min(depth, MAX_DEPTH)
    root = _scan(folder.absolute(), depth)
    return "\n".join(_lines(root, _shape(root, depth, max_chars)))


# Reading

_Entries = list[tuple[str, bool]]
"""Names, and whether each is a folder; symbolic links count as files and are not followed."""


@dataclass(slots=True, eq=False)
class _Folder:
    """A folder, as far as it was read."""

    name: str
    path: Path
    level: int
    """Level of its own line; its contents are one level deeper."""
    folders: list[_Folder] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    is_cut: bool = False
    """Not all entries were read."""

    @property
    def length(self) -> int:
        return len(self.folders) + len(self.files)


def _scan(path: Path, depth: int) -> _Folder:
    """Read the folders level by level, so that the limit affects the deepest ones."""
    root = _Folder(path.name, path, 0)
    waiting = deque([(root, _rules_above(path))])
    left = MAX_ENTRIES
    while waiting:
        folder, rules = waiting.popleft()
        entries = _entries(folder, min(left, MAX_IN_FOLDER))
        left -= len(entries)
        if (".gitignore", False) in entries:
            rules += _read_rules(folder.path / ".gitignore", folder.path)
        _fill(folder, entries, rules)
        if folder.level + 1 < depth:
            open_ones = (each for each in folder.folders if each.name not in _NAMES["listed"])
            waiting.extend((each, rules) for each in open_ones)
    return root


def _entries(folder: _Folder, most: int) -> _Entries:
    """Return at most `most` entries of a folder; none if it is not readable or generated."""
    entries: _Entries = []
    with suppress(OSError), os.scandir(folder.path) as found:
        for entry in found:
            if len(entries) == most:
                folder.is_cut = True
                break
            entries.append((entry.name, entry.is_dir(follow_symlinks=False)))
    if folder.level and any(name in _NAMES["generated"] for name, _ in entries):
        return []
    return entries


def _fill(folder: _Folder, entries: _Entries, rules: _Rules) -> None:
    for name, is_folder in sorted(entries, key=lambda entry: (entry[0].casefold(), entry)):
        path = folder.path / name
        if name in _NAMES["skipped"] or _is_ignored(rules, path, is_folder):
            continue
        shown = "".join(char if char.isprintable() else "?" for char in name)
        if is_folder:
            folder.folders.append(_Folder(shown, path, folder.level + 1))
        else:
            folder.files.append(shown)


# .gitignore

_Rules = tuple[tuple[str, "GitIgnoreSpec"], ...]
"""Patterns with the folder that they apply to; later ones take precedence."""


def _rules_above(path: Path) -> _Rules:
    """Return the patterns of the repository around a folder, outermost first."""
    chain = [path, *path.parents]
    top = next((n for n, each in enumerate(chain) if os.access(each / ".git", os.F_OK)), None)
    if top is None:
        return ()
    rules = _read_rules(chain[top] / ".git" / "info" / "exclude", chain[top])
    for each in reversed(chain[1 : top + 1]):
        rules += _read_rules(each / ".gitignore", each)
    # If the folder itself is ignored, show it anyway.
    return () if top and _is_ignored(rules, path, is_folder=True) else rules


def _read_rules(file: Path, base: Path) -> _Rules:
    try:
        if not file.is_file():
            return ()
        with file.open("rb") as opened:
            text = opened.read(MAX_IGNORE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    from pathspec import GitIgnoreSpec

    specs: list[GitIgnoreSpec] = []
    for line in text.splitlines():
        with suppress(ValueError):  # an invalid pattern
            specs.append(GitIgnoreSpec.from_lines([line]))
    whole = GitIgnoreSpec([pattern for spec in specs for pattern in spec.patterns])
    return ((f"{base}{os.sep}".replace(2 * os.sep, os.sep), whole),)


def _is_ignored(rules: _Rules, path: Path, is_folder: bool) -> bool:
    full = f"{path}/" if is_folder else str(path)
    for base, spec in reversed(rules):
        verdict = spec.check_file(full[len(base) :]).include
        if verdict is not None:
            return verdict
    return False


# Shape


@dataclass(frozen=True, slots=True)
class _Shape:
    """Which folders are open, and how long a list may be."""

    depth: int
    longest: int
    opened: frozenset[_Folder] = frozenset()
    """Deeper folders that are open as well."""

    def is_open(self, folder: _Folder) -> bool:
        return folder.level < self.depth or folder in self.opened


def _shape(root: _Folder, depth: int, room: int) -> _Shape:
    """Return the largest shape that fits: all levels with short lists, or fewer levels."""
    folders = (root, *_visible(root, _Shape(depth, MAX_ENTRIES)))
    longest = max(each.length for each in folders)
    for levels in range(depth, 0, -1):
        least = min(MIN_LIST, longest) if levels > 1 else 0
        shapes = [_Shape(levels, length) for length in range(least, longest + 1)]
        if fitting := bisect_right(shapes, room, key=partial(_size, root, most=room)):
            return _open_small_folders(root, shapes[fitting - 1], room)
    return _Shape(0, 0)


def _size(folder: _Folder, shape: _Shape, most: int = sys.maxsize) -> int:
    """Return the characters of a folder's contents; above `most`, the count stops."""
    size = -1
    for line in _lines(folder, shape):
        size += len(line) + 1
        if size > most:
            break
    return size


def _open_small_folders(root: _Folder, shape: _Shape, room: int) -> _Shape:
    """Use the remaining room to open the smallest closed folders."""
    room -= _size(root, shape)
    closed = [each for each in _visible(root, shape) if each.length and not shape.is_open(each)]
    chosen: list[_Folder] = []
    for each in sorted(closed, key=lambda folder: (folder.length, str(folder.path))):
        opened = replace(shape, opened=frozenset((each,)))
        room -= _size(each, opened) + 1 - len(_inner(each, shape))
        if room < 0:
            break
        chosen.append(each)
    return replace(shape, opened=frozenset(chosen))


def _visible(folder: _Folder, shape: _Shape) -> Iterator[_Folder]:
    """Yield the folders that have a line."""
    if shape.is_open(folder):
        for each in folder.folders[: shape.longest]:
            yield each
            yield from _visible(each, shape)


def _lines(folder: _Folder, shape: _Shape) -> Iterator[str]:
    """Yield the lines of a folder's contents, folders first."""
    if not shape.is_open(folder):
        return
    indent = " " * folder.level
    for each in folder.folders[: shape.longest]:
        yield f"{indent}{each.name}/{_inner(each, shape)}"
        yield from _lines(each, shape)
    for name in folder.files[: max(0, shape.longest - len(folder.folders))]:
        yield f"{indent}{name}"
    if (left := folder.length - shape.longest) > 0 or folder.is_cut:
        yield f"{indent}… {_number(max(0, left), folder.is_cut)}more"


def _inner(folder: _Folder, shape: _Shape) -> str:
    """Return the note after a closed folder; empty if it is open or empty."""
    if shape.is_open(folder) or not (folder.length or folder.is_cut):
        return ""
    return f" … {_number(folder.length, folder.is_cut)}inside"


def _number(count: int, is_cut: bool) -> str:
    if not count:
        return ""
    return f"over {count:,} " if is_cut else f"{count:,} "


# The tree in requests


@dataclass(slots=True)
class ProjectFiles:
    """The project's file tree, as each model is shown it.

    What was once fitted to a model stays the same although its limit moves while it is calibrated:
    the tree is at the beginning of a request, which should stay cacheable.
    """

    root: Path | None
    """None if the folder is not part of a project."""
    _: KW_ONLY
    depth: int
    max_chars: int
    _text: str | None = None
    _fitted: dict[tuple[str, int], str] = field(default_factory=dict)

    def scan(self, depth: int | None = None) -> str:
        """Read the files and return the tree; raise InputError if there is no project."""
        if self.root is None:
            raise InputError("The home folder is not a project: its files are not shown.")
        self.depth = depth or self.depth
        return self._build(self.max_chars)

    def show(self, text: str) -> None:
        """Show this tree to the model from the next request on."""
        self._text, self._fitted = text, {}

    def hide(self) -> None:
        self._text, self._fitted = None, {}

    @property
    def is_shown(self) -> bool:
        return self._text is not None

    def text_for(self, model: tuple[str, int], size: Callable[[str], int], room: int) -> str:
        """Return as much of the tree as fits, the same text every time for the same model."""
        if model not in self._fitted:
            text, chars = self._text or "", self.max_chars
            while text and self.root and size(text) > room:
                chars = chars * 2 // 3
                text = self._build(chars) if chars > MIN_CHARS else ""
            self._fitted[model] = text
        return self._fitted[model]

    def _build(self, max_chars: int) -> str:
        assert self.root is not None
        return build_tree(self.root, depth=self.depth, max_chars=max_chars)
