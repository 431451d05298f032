"""The state of a shell at one point of a command: variables, functions, folder."""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brim.shell.risk.syntax import MAYBE, UNKNOWN

if TYPE_CHECKING:
    from tree_sitter import Node

Value = tuple[str, ...]
"""The items of an array; a plain variable is an array of one."""
RUN_TIME: Final = frozenset((
    "?", "$", "!", "-", "_", "#", "0", "RANDOM", "SRANDOM", "SECONDS", "LINENO", "BASHPID", "PPID",
    "EPOCHSECONDS", "EPOCHREALTIME", "REPLY", "SHELL", "BASH", "EDITOR", "VISUAL", "PAGER", "PATH",
    "HOSTNAME", "USER", "LOGNAME", "UID", "EUID", "TMPDIR", "BASH_COMMAND", "FUNCNAME", "DIRSTACK",
    "PIPESTATUS", "BASH_SOURCE", "BASH_ARGV", "BASH_VERSION", "OSTYPE", "HOSTTYPE", "MACHTYPE",
    "COLUMNS", "LINES", "TERM", "LANG", "BASH_REMATCH", "OPTARG", "OPTIND", "MAPFILE", "COPROC",
))  # fmt: skip
"""Variables that the shell sets itself."""
MOST_FOLDERS: Final = 4
LONGEST_MAYBE: Final = 500


@dataclass(slots=True)
class ShellState:
    """The state of one shell; a subshell works on a copy."""

    variables: dict[str, Value]
    aliases: dict[str, str]
    folders: tuple[Path, ...]
    """The possible working folders; empty if unknown."""
    home: Path | None
    functions: dict[str, Node] = field(default_factory=dict)
    params: tuple[str, ...] | None = None
    """The values of $1, $2 …; None if unknown."""
    written: dict[str, str] = field(default_factory=dict)
    """The files that this command writes, with their content."""
    arrivals: set[str] = field(default_factory=set)
    """The paths to which this command has moved or linked existing files."""
    running: frozenset[str] = frozenset()
    """The functions that are on the call stack."""
    previous: tuple[Path, ...] = ()
    """The folders that `cd -` returns to."""
    stayed: tuple[Path, ...] = ()
    """The working folders if the last `cd` fails."""
    made: set[str] = field(default_factory=set)
    """The folders that this command creates."""
    lost: str = ""
    """The empty variable that made a `cd` go to the home folder."""
    is_remote: bool = False
    is_open: bool = False
    """Whether any variable may be set, because a file was sourced."""

    def copy(self) -> ShellState:
        return replace(
            self,
            variables=dict(self.variables),
            aliases=dict(self.aliases),
            functions=dict(self.functions),
        )

    def elsewhere(self) -> ShellState:
        """Return the state of a shell on another machine: everything is unknown."""
        there = replace(self.copy(), variables={}, aliases={}, functions={}, folders=(), home=None)
        there.is_remote = True
        return there

    def value(self, name: str) -> Value | None:
        """Return the items of a variable; None if it is not set."""
        if name.isdigit() and name != "0":
            return self._param(int(name))
        if name in ("@", "*"):
            return (UNKNOWN,) if self.params is None else self.params
        if name == "PWD":
            return (str(self.folders[0]),) if len(self.folders) == 1 else (UNKNOWN,)
        if name == "IFS" and name not in self.variables:
            return (" \t\n",)
        if name == "HOME" and name not in self.variables:
            return (str(self.home) if self.home else UNKNOWN,)
        if name in self.variables:
            return self.variables[name]
        return (UNKNOWN,) if name in RUN_TIME or self.is_remote or self.is_open else None

    def _param(self, number: int) -> Value | None:
        if self.params is None:
            return (UNKNOWN,)
        return (self.params[number - 1],) if number <= len(self.params) else None

    @contextmanager
    def maybe(self) -> Iterator[None]:
        """Wrap code that may not run: values that it changes are uncertain afterwards."""
        variables, folders, params = dict(self.variables), self.folders, self.params
        yield
        for name in variables.keys() | self.variables.keys():
            if self.variables.get(name) != variables.get(name):
                either = _either(variables.get(name), self.variables.get(name))
                self.variables[name] = (either,)
        if self.params != params:
            self.params = None
        if self.folders != folders:
            self.folders = _all_of(folders, self.folders)

    def go(self, path: str) -> None:
        """Change the folder; if it does not exist, the shell may stay where it is."""
        self.lost, self.previous = "", self.folders
        self.folders = tuple(Path(_flat(folder, path)) for folder in self.folders)
        is_there = all(str(f) in self.made or os.path.isdir(f) for f in self.folders)  # noqa: PTH112
        self.stayed = () if is_there else self.previous

    def settle(self) -> None:
        """Account for the next command running even if the last `cd` failed."""
        if self.stayed:
            self.folders = _all_of(self.stayed, self.folders)
            self.stayed = ()

    def wander(self) -> None:
        """Change to an unknown folder."""
        self.lost, self.folders = "", ()


def _all_of(some: tuple[Path, ...], others: tuple[Path, ...]) -> tuple[Path, ...]:
    both = tuple(dict.fromkeys(some + others))
    return both if some and others and len(both) <= MOST_FOLDERS else ()


def _either(before: Value | None, after: Value | None) -> str:
    """Return a value that is one of two: uncertain, with both candidates recorded."""
    texts = [text for value in (before, after) for text in value or ()]
    if len(texts) > (before is not None) + (after is not None):
        return UNKNOWN
    if len("".join(texts)) > LONGEST_MAYBE or any(UNKNOWN in text for text in texts):
        return UNKNOWN
    words = dict.fromkeys(word.lstrip(MAYBE) for text in texts for word in text.split())
    return " ".join(MAYBE + word for word in words) or UNKNOWN


def _flat(folder: Path, path: str) -> str:
    return os.path.normpath(folder / path)
