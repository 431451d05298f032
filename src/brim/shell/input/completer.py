"""Tab completion: meta commands and their arguments, commands and what the shell offers, files.

What is completed depends on how the line is classified without the word at the cursor, because an
incomplete file name is not a file yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from brim.shell.input.classification import Classification
from brim.shell.input.simple_commands import BEFORE_COMMANDS, WORDS, WordAtCursor, word_at_end

Arguments = Callable[[str], Iterable[str]]
"""Returns the possible arguments of a meta command, given what is typed so far."""

_WANTS_FOLDERS: Final = frozenset(("cd", "pushd", "rmdir"))
_VARIABLE: Final = re.compile(r"(?<![\\'])\$\{?(\w*)\Z")
_META: Final = re.compile(r"\s*([:/])([^\s/]*)(?:\s+(.*))?", re.DOTALL)
_ASSIGNED: Final = re.compile(r"(?:--?[\w-]+|[A-Za-z_]\w*)=")
_SPECIAL: Final = re.compile(r"([^\w@%+=:,./~-])")
_SPECIAL_IN_QUOTES: Final = re.compile(r'(["\\$`])')
_SPOKEN_PATH: Final = re.compile(r"(?:^|(?<=[\s(]))(?:@(\S*)|(?:\.{1,2}|~[\w-]*)?/\S*)\Z")


@dataclass(frozen=True, slots=True, eq=False)
class ShellCompleter(Completer):
    """Completes at brim's prompt."""

    metas: Mapping[str, Arguments]
    help: Mapping[str, str]
    names: Callable[[], Collection[str]]
    folder: Callable[[], Path]
    classify: Callable[[str], Classification]
    programmed: Callable[[Sequence[str]], Iterable[str]] = lambda _words: ()
    """Returns what the user's shell offers for the last word of a command."""
    variables: Callable[[], Iterable[str]] = tuple
    has_colors: bool = False

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        """Yield everything that could complete the word at the cursor."""
        del complete_event  # Tab and typing offer the same
        text = document.text_before_cursor
        if match := _META.fullmatch(text):
            sign, name, argument = match.groups()
            yield from self._complete_meta(name, argument)
            if (argument is None and sign == ":") or (argument is not None and name in self.metas):
                return
        line = text.lstrip()
        forced = line[0] if line[:1] in ("!", "?") else ""
        yield from self._complete_line(line.removeprefix(forced), forced)

    def _complete_meta(self, name: str, argument: str | None) -> Iterator[Completion]:
        if argument is None:
            for meta in sorted(self.metas):
                if meta.startswith(name):
                    about = self.help.get(meta, "")
                    yield Completion(meta, start_position=-len(name), display_meta=about)
        elif name in self.metas:
            for whole in self.metas[name](argument):
                if whole.lower().startswith(argument.lower()):
                    yield Completion(whole, start_position=-len(argument))

    def _complete_line(self, line: str, forced: str) -> Iterator[Completion]:
        end = word_at_end(line)
        before = forced + line[: len(line) - len(end.word)]
        spoken = _SPOKEN_PATH.search(line)
        is_attached = spoken is not None and spoken[1] is not None
        if not is_attached and forced != "?" and _names_command(end):
            for name in sorted(self.names()) if end.word else ():
                if name.startswith(end.word):
                    yield Completion(name, start_position=-len(end.word))
        elif not is_attached and self._is_command(before, end.word):
            if variable := _VARIABLE.search(end.word):
                yield from self._complete_variable(variable[1])
            else:
                yield from self._complete_argument(end)
        elif spoken:
            for path in list_paths(start := spoken[spoken.lastindex or 0], self.folder()):
                yield Completion(path, start_position=-len(start), display=_base_name(path))

    def _is_command(self, before: str, word: str) -> bool:
        """Return whether the line is a command without its last word, unless that is quoted."""
        if re.search(r"\s", word):
            return self.classify(before + word).kind == "command"
        return before.strip(" !") == "" or self.classify(before).kind == "command"

    def _complete_variable(self, start: str) -> Iterator[Completion]:
        for name in sorted(name for name in self.variables() if name.startswith(start)):
            yield Completion(name, start_position=-len(start), display=f"${name}")

    def _complete_argument(self, end: WordAtCursor) -> Iterator[Completion]:
        """Yield what the user's shell offers; files have brim's own look."""
        offered = [] if end.is_target else list(self.programmed((*end.before, end.word)))
        folder = self.folder()
        if not all((folder / Path(each).expanduser()).exists() for each in offered):
            for each in offered:
                space = "" if each.endswith(("=", "/", ":")) else " "
                yield Completion(each + space, start_position=-len(end.word), display=each)
        else:
            yield from self._complete_file(end)

    def _complete_file(self, end: WordAtCursor) -> Iterator[Completion]:
        raw = _ASSIGNED.sub("", end.word, count=1) if _ASSIGNED.match(end.word) else end.word
        start, quote = unquote(raw)
        if quote and start.startswith("~"):  # a shell does not expand it
            return
        wants_folders = end.before[:1] != () and end.before[0] in _WANTS_FOLDERS
        for path in list_paths(start, self.folder(), only_folders=wants_folders):
            yield Completion(
                quote_path(path, quote),
                start_position=-len(raw),
                display=[(self._find_style(path), _base_name(path))],
            )

    def _find_style(self, path: str) -> str:
        """Return the color of a path, as `ls` shows it."""
        whole = self.folder() / Path(path).expanduser()
        if not self.has_colors:
            return ""
        if whole.is_symlink():
            return "fg:ansicyan"
        if path.endswith("/"):
            return "fg:ansiblue"
        return "fg:ansigreen" if os.access(whole, os.X_OK) else ""


def _names_command(end: WordAtCursor) -> bool:
    """Return whether the word is a command's name: the first one, or after `sudo`, `which` etc."""
    if end.is_target or "/" in end.word or _ASSIGNED.match(end.word):
        return False
    if end.before and end.before[0] in WORDS["takes_commands"]:
        return not end.word.startswith("-")
    return all(word in BEFORE_COMMANDS for word in end.before)


def _base_name(path: str) -> str:
    """Return the last component: a list of files does not repeat the folder."""
    return path.rstrip("/").rpartition("/")[2] + ("/" if path.endswith("/") else "")


def list_paths(start: str, folder: Path, *, only_folders: bool = False) -> Iterator[str]:
    """Yield the paths that start with `start`, relative to a folder; folders end with a slash.

    Hidden files are listed only if the last component starts with a dot.
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
    except (OSError, ValueError, RuntimeError):  # not readable, invalid, or an unknown user
        return []


def unquote(raw: str) -> tuple[str, str]:
    """Return a word without its quoting, and the quote that is still open at its end."""
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
    """Quote a path for the shell, with the quote that is open, if any."""
    if not quote:
        return _SPECIAL.sub(r"\\\1", path)
    end = "" if path.endswith("/") else quote
    if quote == "'":
        return "'" + path.replace("'", "'\\''") + end
    return '"' + _SPECIAL_IN_QUOTES.sub(r"\\\1", path) + end
