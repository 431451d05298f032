"""How bash, zsh, fish and POSIX sh are controlled, with the texts of `data/dialects.toml`.

Three lines are sent to run a command. The first one reports "started", evaluates the command with
the terminal as its input, and then settles: it saves the exit code, empties the prompts and
switches tracing off. The second and third are sent after "started". They settle again, because
Ctrl-C, `${x?}` and similar make a shell drop the rest of a line. The second runs the user's prompt
commands, the third reports. None of this prints on the terminal, not even under `set -x` or with a
DEBUG trap: the control code runs in groups with redirected output, and tracing is on only during
the command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from brim.data import load_table

OWN = "__brim_"
"""Prefix of the variables that the control code sets in the shell."""

SH_NAMES = frozenset(load_table("dialects")["sh"]["known_names"].split())
"""Builtins and keywords of every POSIX shell."""
_LISTING = ("bash", "zsh", "fish")
"""Shells that list names and variables in a form without quotes."""
_PLACEHOLDER = re.compile(r"@(\w+)@")
_ADDS_TO_PROMPT = re.compile(r"PROMPT_COMMAND|(?:^|[\s;&|({])(?:\.|source|eval)\s")


@dataclass(frozen=True, slots=True)
class ShellPaths:
    """The paths that the control code of a shell uses."""

    reports: Path
    """The named pipe for reports."""
    tty: str
    """The path of its terminal."""
    home: Path
    """A temporary folder for its start files."""
    folder: Path
    """Its first working directory."""


@dataclass(frozen=True, slots=True)
class CommandStatus:
    """The status of a finished command, as the shell reports it."""

    code: int = 0
    flags: str = ""
    jobs: str = ""
    """Stopped jobs, if the exit code suggests that the command was stopped."""
    folder: str = ""
    traps: str = ""

    @property
    def prefix(self) -> str:
        """What restores flags and traps for the next command."""
        flags = "".join(flag for flag in "xv" if flag in self.flags)
        parts = [f"set -{flags}"] if flags else []
        if " DEBUG" in self.traps:
            parts.append(self.traps.strip())
        return "; ".join(parts) + "; " if parts else ""


class ShellDialect:
    """The language of one kind of shell."""

    def __init__(self, name: str) -> None:
        """`name` is bash, zsh, fish, or any other POSIX shell."""
        table = load_table("dialects")
        self.name = name
        self._texts: dict[str, Any] = {**table["sh"], **table.get(name, {})}
        self.incomplete_errors: str = self._texts["incomplete_errors"]
        """A pattern for the errors of a shell about an incomplete command."""
        self.launcher = f't=$1; shift; exec "$@" {self._texts["files"]}'
        """Opening the terminal makes it the controlling terminal of the new session."""

    def arguments(self, home: Path, *, with_users: bool) -> list[str]:
        """Return the arguments that start it; only fish reads its user's file by itself."""
        without = ["--no-config"] if self.name == "fish" and not with_users else []
        return without + [_insert(text, home) for text in self._texts["arguments"]]

    def environment(self, home: Path) -> dict[str, str]:
        return {name: _insert(text, home) for name, text in self._texts["environment"].items()}

    def files(
        self, paths: ShellPaths, token: str, environment: Mapping[str, str], *, with_users: bool
    ) -> dict[str, str]:
        """Return its start files: the user's own file, then the report "started"."""
        begin = self.begin(paths, token)
        if self.name == "zsh":
            return self._zsh_files(paths, begin, environment.get("ZDOTDIR"), with_users=with_users)
        theirs = environment.get("ENV")
        users = ""
        if self.name == "fish":
            return {"rc": begin}
        if self.name == "bash":
            users = self._source("~/.bashrc", paths)
        elif theirs:
            users = f"ENV={quote(theirs)}\n{self._source(quote(theirs), paths)}"
        return {"rc": (users if with_users else "") + begin}

    def _zsh_files(
        self, paths: ShellPaths, begin: str, theirs: str | None, *, with_users: bool
    ) -> dict[str, str]:
        back = f"ZDOTDIR={quote(theirs)}" if theirs else "\\builtin unset ZDOTDIR"
        if not with_users:
            return {".zshrc": f"{back}\n{begin}"}
        path = "${ZDOTDIR:-$HOME}/"
        first = f"{back}\n{self._source(path + '.zshenv', paths)}"
        keep = f"{OWN}folder=${{ZDOTDIR-}}\nZDOTDIR={quote(str(paths.home))}\n"
        again = f'ZDOTDIR=${OWN}folder\n[ -n "$ZDOTDIR" ] || \\builtin unset ZDOTDIR\n'
        users = self._source(path + ".zshrc", paths)
        return {".zshenv": first + keep, ".zshrc": again + users + begin}

    def begin(self, paths: ShellPaths, token: str) -> str:
        """Return the end of the start; sent as a line if the user's start file did not finish."""
        return self._fill("begin", self._values(paths, token)) + "\n"

    def run(
        self, command: str, paths: ShellPaths, token: str, carried: CommandStatus, stdin: str
    ) -> str:
        before = "before_prompt_change" if _ADDS_TO_PROMPT.search(command) else "before"
        last_code = self._fill("last_code", {"code": str(carried.code)}) if carried.code else ""
        values = {
            **self._values(paths, token),
            "before": self._fill(before, {}),
            "last_code": last_code,
            "command": self.quote(carried.prefix + command),
            "stdin": self.quote(stdin),
        }
        # The leading space keeps the line out of a history that ignores such lines.
        return f" {self._fill('run', values)}\n"

    def after(self, paths: ShellPaths, token: str) -> str:
        """Return the second and the third line."""
        values = self._values(paths, token)
        settled, prompting = self._fill("settled", values), self._fill("prompting", values)
        return f" {settled}{prompting}\n {settled}; {self._fill('report', values)}\n"

    def rescue(self, paths: ShellPaths, token: str) -> str:
        """Return lines that report without settling, if the third line was lost."""
        values = self._values(paths, token)
        return f" {self._fill('rescue', values)}\n {self._fill('report', values)}\n"

    def query(self, name: str, paths: ShellPaths, token: str) -> str:
        """Return a line that reports names, aliases or variables, or what a script prints."""
        body = self._fill(name, {}) if name in self._texts else name
        values = {**self._values(paths, token), "body": body}
        return f" {self._fill('query', values)}\n"

    def read_names(self, answer: str) -> frozenset[str]:
        if self.name in _LISTING:
            return frozenset(answer.split())
        return SH_NAMES | frozenset(self.read_aliases(answer))

    def read_aliases(self, answer: str) -> dict[str, str]:
        return _parse_pairs(answer) if self.name == "zsh" else _parse_assignments(answer)

    def read_variables(self, answer: str) -> dict[str, str]:
        return _parse_pairs(answer) if self.name in _LISTING else _parse_assignments(answer)

    def _source(self, path: str, paths: ShellPaths) -> str:
        return self._fill("source", {**self._values(paths, ""), "path": path}) + "\n"

    def _values(self, paths: ShellPaths, token: str) -> dict[str, str]:
        """Return what the texts insert, in words of this shell."""
        return {
            "reports": f"{self._texts['into']}{self.quote(str(paths.reports))}",
            "tty": self.quote(paths.tty),
            "folder": self.quote(str(paths.folder)),
            "token": token,
        }

    def quote(self, text: str) -> str:
        """Return a text as one word of this shell."""
        if self.name != "fish":
            return quote(text)
        escaped = text.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'".replace("\n", "'\\n'")

    def _fill(self, name: str, values: Mapping[str, str]) -> str:
        """Return a text in one line, with its placeholders replaced."""
        text = str(self._texts[name]).strip("\n").replace("\n", " ")
        return _PLACEHOLDER.sub(
            lambda found: values[found[1]] if found[1] in values else self._fill(found[1], values),
            text,
        )


def _insert(text: str, home: Path) -> str:
    return text.replace("@home@", str(home)).replace("@rc@", str(home / "rc"))


def _parse_assignments(answer: str) -> dict[str, str]:
    """Parse `name='value'`, with or without the word `alias` before it."""
    try:
        words = shlex.split(answer)
    except ValueError:
        return {}
    pairs = (word.partition("=") for word in words if "=" in word)
    return {name: value for name, _, value in pairs}


def _parse_pairs(answer: str) -> dict[str, str]:
    """Parse name, zero byte, value, zero byte, and so on."""
    fields = answer.split("\0")
    return dict(zip(fields[::2], fields[1::2], strict=False))
