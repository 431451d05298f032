"""What Tab offers: brim's own commands and what they take, the shell's commands, files.

What is completed depends on what the line is so far; the word at the cursor is left out of that
question, for half a file name is no file yet.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Final

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from brim.shell.input import vocabulary
from brim.shell.input.classify import Classification
from brim.shell.input.simple_commands import WordAtCursor, word_at_end

Arguments = Callable[[str], Iterable[str]]
"""What a meta command can take, whole, for what was typed of it so far."""

_WANTS_FOLDERS: Final = frozenset(("cd", "pushd", "rmdir"))
_BEFORE_COMMANDS: Final = vocabulary.PREFIXES | vocabulary.RUNS_FOR_OTHERS
_META: Final = re.compile(r"\s*([:/])([^\s/]*)(?:\s+(.*))?", re.DOTALL)
_ASSIGNED: Final = re.compile(r"(?:--?[\w-]+|[A-Za-z_]\w*)=")
_SPECIAL: Final = re.compile(r"([^\w@%+=:,./~-])")
_SPECIAL_IN_QUOTES: Final = re.compile(r'(["\\$`])')
_SPOKEN_PATH: Final = re.compile(r"(?:^|(?<=\s))(?:\.{1,2}|~[\w-]*)?/\S*\Z")


class ShellCompleter(Completer):
    """Completes at brim's prompt."""

    def __init__(
        self,
        *,
        metas: Mapping[str, Arguments],
        help: Mapping[str, str],
        names: Callable[[], Collection[str]],
        folder: Callable[[], Path],
        decide: Callable[[str], Classification],
    ) -> None:
        self._metas = metas
        self._help = help
        self._names = names
        self._folder = folder
        self._decide = decide

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        """Everything that could stand at the cursor."""
        del complete_event  # the same is offered with Tab and while typing
        text = document.text_before_cursor
        if match := _META.fullmatch(text):
            sign, name, argument = match.groups()
            yield from self._own(name, argument)
            if (argument is None and sign == ":") or (argument is not None and name in self._metas):
                return
        line = text.lstrip()
        forced = line[0] if line[:1] in ("!", "?") else ""
        yield from self._offered(line.removeprefix(forced), forced)

    def _own(self, name: str, argument: str | None) -> Iterator[Completion]:
        if argument is None:
            for meta in sorted(self._metas):
                if meta.startswith(name):
                    about = self._help.get(meta, "")
                    yield Completion(meta, start_position=-len(name), display_meta=about)
        elif name in self._metas:
            for whole in self._metas[name](argument):
                if whole.lower().startswith(argument.lower()):
                    yield Completion(whole, start_position=-len(argument))

    def _offered(self, line: str, forced: str) -> Iterator[Completion]:
        end = word_at_end(line)
        before = forced + line[: len(line) - len(end.word)]
        if forced != "?" and _names_command(end):
            yield from self._commands(end.word)
        elif self._is_command(before, end.word):
            yield from self._files(end)
        elif spoken := _SPOKEN_PATH.search(line):
            yield from self._spoken(spoken.group())

    def _is_command(self, before: str, word: str) -> bool:
        """What the line is without its last word; one with spaces is in quotes, or no word."""
        if re.search(r"\s", word):
            return self._decide(before + word).kind == "command"
        return before.strip(" !") == "" or self._decide(before).kind == "command"

    def _commands(self, start: str) -> Iterator[Completion]:
        if start:
            for name in sorted(name for name in self._names() if name.startswith(start)):
                yield Completion(name, start_position=-len(start))

    def _files(self, end: WordAtCursor) -> Iterator[Completion]:
        raw = _ASSIGNED.sub("", end.word, count=1) if _ASSIGNED.match(end.word) else end.word
        start, quote = unquote(raw)
        if quote and start.startswith("~"):  # which a shell does not expand
            return
        wants_folders = end.before[:1] != () and end.before[0] in _WANTS_FOLDERS
        for path in list_paths(start, self._folder(), only_folders=wants_folders):
            yield Completion(
                quote_path(path, quote), start_position=-len(raw), display=_base_name(path)
            )

    def _spoken(self, start: str) -> Iterator[Completion]:
        for path in list_paths(start, self._folder()):
            yield Completion(path, start_position=-len(start), display=_base_name(path))


def _names_command(end: WordAtCursor) -> bool:
    """Whether the word names a command: first in its part, or behind `sudo`, `which` and so on."""
    if end.is_target or "/" in end.word or _ASSIGNED.match(end.word):
        return False
    if end.before and end.before[0] in vocabulary.TAKES_COMMANDS:
        return not end.word.startswith("-")
    return all(word in _BEFORE_COMMANDS for word in end.before)


def _base_name(path: str) -> str:
    """The name alone: a list of files needs no folder before each."""
    return path.rstrip("/").rpartition("/")[2] + ("/" if path.endswith("/") else "")


def list_paths(start: str, folder: Path, *, only_folders: bool = False) -> Iterator[str]:
    """Paths that begin so, as a shell in that folder finds them; folders end in a slash.

    Hidden ones are named only where the start asks for them with a dot.
    """
    if start == "~":
        yield "~/"
        return
    head, slash, tail = start.rpartition("/")
    for name, is_folder in sorted(_entries(folder, head + slash)):
        is_asked = name.startswith(tail) if tail else not name.startswith(".")
        if is_asked and name.isprintable() and (is_folder or not only_folders):
            yield f"{head}{slash}{name}" + ("/" if is_folder else "")


def _entries(folder: Path, inside: str) -> list[tuple[str, bool]]:
    try:
        with os.scandir(folder / Path(inside).expanduser()) as found:
            return [(entry.name, entry.is_dir()) for entry in found]
    except (OSError, ValueError, RuntimeError):  # not there, not ours, no name, no such user
        return []


def unquote(raw: str) -> tuple[str, str]:
    """What a shell reads in a word, and the quote that is still open at its end."""
    text, quote, escaped = [], "", False
    for char in raw:
        if escaped:
            text.append(char)
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif char == quote:
            quote = ""
        elif char in "\"'" and not quote:
            quote = char
        else:
            text.append(char)
    return "".join(text), quote


def quote_path(path: str, quote: str) -> str:
    """A path as it is to be typed; inside of a quote that is open it stays in quotes."""
    if not quote:
        return _SPECIAL.sub(r"\\\1", path)
    end = "" if path.endswith("/") else quote
    if quote == "'":
        return "'" + path.replace("'", "'\\''") + end
    return '"' + _SPECIAL_IN_QUOTES.sub(r"\\\1", path) + end


class ProgramNames:
    """Programs on PATH, found once for each PATH."""

    def __init__(self, path: Callable[[], str]) -> None:
        self._path = path
        self._found: tuple[str, frozenset[str]] | None = None
        self._folders: dict[str, tuple[int, frozenset[str]]] = {}

    def __call__(self) -> frozenset[str]:
        """All their names; looks for them where nobody has yet."""
        path, found = self._path(), self._found
        if found is None or found[0] != path:
            found = self._found = path, self._look(path)
        return found[1]

    def is_command(self, name: str) -> bool:
        """Whether there is such a program; never waits until all have been found."""
        path, found = self._path(), self._found
        if found is not None and found[0] == path:
            return name in found[1]
        return "/" not in name and shutil.which(name, path=path) is not None

    def refresh(self) -> Thread:
        """Look again in the background, in folders that have changed; until then all stays."""
        looking = Thread(target=self._look_again, name="programs", daemon=True)
        looking.start()
        return looking

    def _look_again(self) -> None:
        path = self._path()
        self._found = path, self._look(path)

    def _look(self, path: str) -> frozenset[str]:
        folders = dict.fromkeys(folder for folder in path.split(os.pathsep) if folder)
        return frozenset().union(*map(self._in_folder, folders))

    def _in_folder(self, folder: str) -> frozenset[str]:
        try:
            changed = Path(folder).stat().st_mtime_ns
            if folder not in self._folders or self._folders[folder][0] != changed:
                self._folders[folder] = changed, _executables(folder)
            return self._folders[folder][1]
        except OSError:  # PATH names folders that are not there
            return frozenset()


def _executables(folder: str) -> frozenset[str]:
    with os.scandir(folder) as found:
        return frozenset(
            entry.name for entry in found if os.access(entry.path, os.X_OK) and not entry.is_dir()
        )
