"""The project's file tree, small enough for a system prompt.

One name per line, one space per level, without files that git ignores. If the tree is too long, the
longest lists are shortened and the deepest levels omitted first. The work is bounded, however
large the folder is.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

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

ROOT_MARKERS: Final = (
    ".git", ".hg", ".jj", ".svn", ".brim.toml", "pyproject.toml", "setup.py", "package.json",
    "deno.json", "Cargo.toml", "go.mod", "pom.xml", "build.gradle", "build.gradle.kts",
    "composer.json", "Gemfile", "mix.exs", "CMakeLists.txt", "flake.nix",
)  # fmt: skip
"""Files and folders that mark the root of a project."""
SKIPPED: Final = frozenset((
    ".git", ".hg", ".jj", ".svn", ".venv", ".tox", ".nox", ".eggs", "__pycache__", ".mypy_cache",
    ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".gradle", ".terraform",
    ".direnv", ".DS_Store",
))  # fmt: skip
"""Names that are never shown."""
LISTED_ONLY: Final = frozenset(
    ["node_modules", "bower_components", "site-packages", ".next", ".nuxt"]
)
"""Folders that are shown without their contents."""
GENERATED_MARKERS: Final = frozenset(("pyvenv.cfg", "CACHEDIR.TAG"))
"""Files that mark a folder as generated."""


@dataclass(frozen=True, slots=True)
class ProjectTree:
    """The tree as text, and how many files and folders there are."""

    text: str
    files: int = 0
    folders: int = 0
    left_out: int = 0
    """Files and folders that are not in the text."""


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
        if any(_exists(each / name) for name in ROOT_MARKERS):
            return each
    return folder


def _exists(path: Path) -> bool:
    """Return whether a path exists and is accessible."""
    try:
        return path.exists()
    except OSError:
        return False


def build_tree(folder: Path, *, depth: int = 3, max_chars: int = 2_000) -> ProjectTree:
    """Build the tree of a folder with at most `depth` levels and `max_chars` characters."""
    depth = min(depth, MAX_DEPTH)
    root = _scan(folder.absolute(), depth)
    shape = _shape(root, depth, max_chars)
    lines = list(_lines(root, shape))
    found = list(_inside(root))
    files = sum(len(each.files) for each in (root, *found))
    shown = _count_shown(root, shape)
    return ProjectTree("\n".join(lines), files, len(found), files + len(found) - shown)


# Reading


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


def _inside(folder: _Folder) -> Iterator[_Folder]:
    """Yield all folders below a folder."""
    waiting = deque(folder.folders)
    while waiting:
        yield (each := waiting.popleft())
        waiting.extend(each.folders)


def _scan(path: Path, depth: int) -> _Folder:
    """Read the folders level by level, so that the limit affects the deepest ones."""
    root = _Folder(path.name, path, 0)
    waiting = deque([(root, _rules_above(path))])
    left = MAX_ENTRIES
    while waiting:
        folder, rules = waiting.popleft()
        entries = _entries(folder, min(left, MAX_IN_FOLDER))
        left -= len(entries)
        rules = _with_own(rules, folder.path, entries)
        _fill(folder, entries, rules)
        if folder.level + 1 < depth:
            open_ones = (each for each in folder.folders if each.name not in LISTED_ONLY)
            waiting.extend((each, rules) for each in open_ones)
    return root


def _entries(folder: _Folder, most: int) -> list[os.DirEntry[str]]:
    """Return at most `most` entries of a folder; none if it is not readable or generated."""
    entries: list[os.DirEntry[str]] = []
    with suppress(OSError), os.scandir(folder.path) as found:
        for entry in found:
            if len(entries) == most:
                folder.is_cut = True
                break
            entries.append(entry)
    if folder.level and any(entry.name in GENERATED_MARKERS for entry in entries):
        return []
    return entries


def _fill(folder: _Folder, entries: Sequence[os.DirEntry[str]], rules: _Rules) -> None:
    for entry in sorted(entries, key=lambda entry: (entry.name.casefold(), entry.name)):
        is_folder = _is_folder(entry)
        if entry.name in SKIPPED or _is_ignored(rules, folder.path / entry.name, is_folder):
            continue
        name = "".join(char if char.isprintable() else "?" for char in entry.name)
        if is_folder:
            folder.folders.append(_Folder(name, folder.path / entry.name, folder.level + 1))
        else:
            folder.files.append(name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a folder; symbolic links count as files and are not followed."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


# .gitignore

_Rules = tuple[tuple[str, "GitIgnoreSpec"], ...]
"""Patterns with the folder that they apply to; later ones take precedence."""


def _rules_above(path: Path) -> _Rules:
    """Return the patterns of the repository around a folder, outermost first."""
    chain = [path, *path.parents]
    top = next((n for n, each in enumerate(chain) if _exists(each / ".git")), None)
    if top is None:
        return ()
    rules = _read_rules(chain[top] / ".git" / "info" / "exclude", chain[top])
    for each in reversed(chain[1 : top + 1]):
        rules += _read_rules(each / ".gitignore", each)
    # If the folder itself is ignored, show it anyway.
    return () if top and _is_ignored(rules, path, is_folder=True) else rules


def _with_own(rules: _Rules, path: Path, entries: Sequence[os.DirEntry[str]]) -> _Rules:
    if any(entry.name == ".gitignore" for entry in entries):
        return rules + _read_rules(path / ".gitignore", path)
    return rules


def _read_rules(file: Path, base: Path) -> _Rules:
    try:
        if not file.is_file():
            return ()
        with file.open("rb") as opened:
            text = opened.read(MAX_IGNORE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    spec = _spec(text.splitlines())
    return () if spec is None else ((f"{base}{os.sep}".replace(2 * os.sep, os.sep), spec),)


def _spec(lines: Sequence[str]) -> GitIgnoreSpec | None:
    """Compile the valid patterns; ignore invalid ones."""
    from pathspec import GitIgnoreSpec

    good = [line for line in lines if line.strip() and not line.startswith("#")]
    try:
        return GitIgnoreSpec.from_lines(good) if good else None
    except ValueError:
        each = [spec for line in good if (spec := _one(line)) is not None]
        return GitIgnoreSpec([pattern for spec in each for pattern in spec.patterns])


def _one(line: str) -> GitIgnoreSpec | None:
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines([line])
    except ValueError:
        return None


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
    longest = max((each.length for each in (root, *_inside(root))), default=0)
    for levels in range(depth, 0, -1):
        least = min(MIN_LIST, longest) if levels > 1 else 0
        if _fits(root, _Shape(levels, least), room):
            shape = _Shape(levels, _largest(root, levels, least, longest, room))
            return _open_small_folders(root, shape, room)
    return _Shape(0, 0)


def _largest(root: _Folder, levels: int, least: int, most: int, room: int) -> int:
    """Return the maximum list length that fits."""
    while least < most:
        middle = (least + most + 1) // 2
        if _fits(root, _Shape(levels, middle), room):
            least = middle
        else:
            most = middle - 1
    return least


def _open_small_folders(root: _Folder, shape: _Shape, room: int) -> _Shape:
    """Use the remaining room to open the smallest closed folders."""
    room -= sum(len(line) + 1 for line in _lines(root, shape)) - 1
    closed = [each for each in _visible(root, shape) if each.length and not shape.is_open(each)]
    chosen: list[_Folder] = []
    for each in sorted(closed, key=lambda folder: (folder.length, str(folder.path))):
        inside = _lines(each, replace(shape, opened=frozenset((each,))))
        room -= sum(len(line) + 1 for line in inside) - len(_inner(each, shape))
        if room < 0:
            break
        chosen.append(each)
    return replace(shape, opened=frozenset(chosen))


def _fits(root: _Folder, shape: _Shape, room: int) -> bool:
    """Return whether the text fits, without building all of it."""
    used = -1
    for line in _lines(root, shape):
        used += len(line) + 1
        if used > room:
            return False
    return True


def _visible(folder: _Folder, shape: _Shape) -> Iterator[_Folder]:
    """Yield the folders that have a line."""
    if shape.is_open(folder):
        for each in folder.folders[: shape.longest]:
            yield each
            yield from _visible(each, shape)


def _count_shown(root: _Folder, shape: _Shape) -> int:
    """Return the number of names that have a line."""
    is_open = (each for each in (root, *_visible(root, shape)) if shape.is_open(each))
    return sum(min(each.length, shape.longest) for each in is_open)


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


class ProjectFiles:
    """The project's file tree, as each model is shown it.

    What was once fitted to a model stays the same although its limit moves while it is calibrated:
    the tree is at the beginning of a request, which should stay cacheable.
    """

    def __init__(self, root: Path | None, *, depth: int, max_chars: int) -> None:
        """`root` is None if the folder is not part of a project."""
        self.root = root
        self._depth = depth
        self._max_chars = max_chars
        self._text: str | None = None
        self._fitted: dict[tuple[str, int], str] = {}

    def scan(self, depth: int | None = None) -> str:
        """Read the files and return the tree; raise InputError if there is no project."""
        if self.root is None:
            raise InputError("The home folder is not a project: its files are not shown.")
        self._depth = depth or self._depth
        return self._build(self._max_chars)

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
            self._fitted[model] = self._fit(self._text or "", size, room)
        return self._fitted[model]

    def _fit(self, text: str, size: Callable[[str], int], room: int) -> str:
        chars = self._max_chars
        while text and self.root and size(text) > room:
            chars = chars * 2 // 3
            text = self._build(chars) if chars > MIN_CHARS else ""
        return text

    def _build(self, max_chars: int) -> str:
        assert self.root is not None
        return build_tree(self.root, depth=self._depth, max_chars=max_chars).text
