"""The file system under the words of a command: read only, with bounds."""

from __future__ import annotations

import glob
import os
import re
import subprocess
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from brim.shell.risk.syntax import display, is_known, is_pattern, plain
from brim.shell.risk.table import load_names, load_patterns

MOST_MATCHES: Final = 64
LARGEST_READ: Final = 65_536


@dataclass(frozen=True, slots=True)
class Places:
    """Where a command runs, and what is there."""

    folders: tuple[Path, ...]
    """The folders in which a relative name may be: `cd` adds one."""
    home: Path
    project: Path | None = None
    """The folder in which a model may have written programs."""
    since: float | None = None
    """When the conversation began; files that changed later may be the model's."""
    is_remote: bool = False
    is_lost: bool = False
    """Whether `cd` went to a folder that is known only at run time."""
    lost_variable: str = ""
    """The empty variable that made `cd` go to the home folder."""

    def enter(self, word: str, empties: tuple[str, ...]) -> Places:
        """Return the places after `cd word`."""
        if empties and not word:
            at_home = (*self.folders, self.home)
            return replace(self, folders=at_home, lost_variable=empties[0])
        if not is_known(word) or is_pattern(word) or word == "-":
            return replace(self, is_lost=self.is_lost or word != "-")
        added = tuple(Path(os.path.normpath(folder / word)) for folder in self.folders)
        return replace(self, folders=tuple(dict.fromkeys((*self.folders, *added)))[:16])

    def paths(self, word: str) -> list[Path] | None:
        """Return where a name may be; None if that cannot be seen from here."""
        text = plain(word)
        is_lost = self.is_lost and not text.startswith("/")
        if is_lost or self.is_remote or not is_known(text):
            return None
        return [Path(os.path.normpath(folder / text)) for folder in self.folders]

    def matches(self, word: str) -> list[str]:
        """Return the names that a pattern stands for; itself if there is none."""
        if not is_pattern(word) or self.is_remote or not is_known(word):
            return [word]
        found: list[str] = []
        for folder in self.folders:
            with suppress(OSError, ValueError):
                found += islice(glob.iglob(plain(word), root_dir=folder), MOST_MATCHES)  # noqa: PTH207 relative names are wanted
        return found or [word]

    def exists(self, word: str) -> bool:
        return any(map(os.path.lexists, self.paths(word) or ()))

    def has_setting(self, patterns: Collection[str]) -> bool:
        """Return whether the folder, or one above it, has a file of these names."""
        above = {path for folder in self.folders for path in (folder, *folder.parents)}
        return any(self.is_lost or any(folder.glob(p)) for folder in above for p in patterns)

    def has_option_file(self) -> bool:
        """Return whether a pattern such as `*` can become an option, because of a file's name."""
        files = (path for folder in self.folders if folder.is_dir() for path in folder.iterdir())
        return any(path.name.startswith("-") for path in files)

    def is_folder(self, word: str) -> bool:
        return any(map(os.path.isdir, self.paths(word) or ()))

    def has_content(self, word: str) -> bool:
        """Return whether a file has content, or cannot be seen."""
        paths = self.paths(word)
        if paths is None:
            return True
        return any(os.path.lexists(p) and (not p.is_file() or p.stat().st_size) for p in paths)

    def is_wide(self, word: str) -> bool:
        """Return whether a name is a whole tree: a root, a home, the folder itself or above."""
        text = plain(word)
        if re.fullmatch(r"(\.|\.\.|/|~)?/?(\.\.?/?)*\*?(\.\*)?", text) and text:
            return True
        whole = {Path("/"), self.home, self.home.parent, *self.folders}
        whole |= {parent for folder in self.folders for parent in folder.parents}
        return any(path in whole for path in self.paths(text.rstrip("*") or ".") or ())

    def read(self, word: str) -> str | None:
        """Return the text of a file; None if it does not exist or is not text."""
        for path in self.paths(word) or ():
            with suppress(OSError):
                if path.is_file():
                    with path.open("rb") as opened:
                        data = opened.read(LARGEST_READ + 1)
                    return None if b"\0" in data else data.decode("utf-8", "replace")
        return None

    def has_changed(self, word: str) -> bool:
        """Return whether a file may have been changed in this conversation."""
        paths = self.paths(word)
        if self.since is None or paths is None:
            return True
        # Nothing but the kernel sets these times: of the name, and of what it links to.
        reads = (read for path in paths if path.exists() for read in (path.lstat, path.stat))
        return any(read().st_ctime >= self.since for read in reads)

    def is_own_program(self, path: str) -> bool:
        """Return whether a program lies in the project, so that a model may have written it."""
        project = self.project and self.project.resolve()
        return project is not None and Path(path).resolve().is_relative_to(project)

    def why_overwritten(self, word: str, *, appends: bool = False) -> str | None:
        """Return why writing to this file needs a yes; None if nothing is lost."""
        name = os.path.normpath(plain(word)) if word else ""
        if load_patterns()["sinks"].fullmatch(name):
            return None
        for why, pattern in load_patterns("writes").items():
            if pattern.search(name):
                return why.format(display(word))
        if appends:
            return None
        if load_patterns()["startup_files"].search(name):
            return f"replaces {display(word)}"
        if not is_known(word) or is_pattern(word):
            return "overwrites a file that is known only at run time"
        verb = "may overwrite" if self.paths(word) is None else "overwrites"
        return f"{verb} {display(word)}" if self.has_content(word) else None

    def has_plain_repository(self, folder: str) -> bool:
        """Return whether no setting, hook or submodule of a git repository runs a program."""
        paths = () if self.is_lost or is_pattern(folder) else self.paths(folder) or ()
        found = [path for path in paths if path.is_dir()]
        is_absent = self.project is not None and not any(self.is_own_program(str(p)) for p in paths)
        return bool(found or (paths and is_absent)) and all(map(_is_plain_repository, found))


def _is_plain_repository(folder: Path) -> bool:
    settings = _git(folder, "config", "--local", "--list", "--name-only")
    hooks = _git(folder, "rev-parse", "--git-path", "hooks")
    files = _git(folder, "ls-files", "--stage")
    if settings is None or hooks is None or files is None or "160000 " in files:
        return False
    runs = load_patterns()["git_runs"].search
    refs = _git(folder, "for-each-ref", "--format=%(refname:lstrip=2)")
    has_options = refs is None or re.search(r"(?m)^[-@]|/[-@]", refs)
    if has_options or any(runs(key) for key in settings.splitlines() if key != "core.hookspath"):
        return False
    return not any((folder / hooks.strip() / name).exists() for name in load_names()["git_hooks"])


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, None if it fails; none of these subcommands runs another program."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments], cwd=folder, env=environment, timeout=5,
            capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout
