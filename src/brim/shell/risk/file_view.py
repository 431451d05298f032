"""The file system under the words of a command: read only, with bounds."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from brim.shell.risk.syntax import PIPE, display, is_known, is_pattern, plain

MOST_ENTRIES: Final = 2_000
"""Directory entries that a pattern is matched against."""
MOST_MATCHES: Final = 64
LARGEST_READ: Final = 65_536
SINKS: Final = frozenset((
    "/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/tty", "/dev/zero", "/dev/full",
    "/dev/random", "/dev/urandom", "/dev/ptmx",
))  # fmt: skip
"""Devices on which a write destroys nothing."""
_SINK_FOLDERS: Final = (
    "/dev/fd/",
    "/dev/tcp/",
    "/dev/udp/",
    "/dev/pts/",
    "/dev/shm/",
    "/proc/self/fd/",
)
_HOME: Final = re.compile(r"/(?:home|Users)/[^/]+|/root")
_KERNEL: Final = ("/dev/", "/proc/", "/sys/")


@dataclass(frozen=True, slots=True)
class FileView:
    """A read-only view of the file system from the command's working folder."""

    folders: tuple[Path, ...]
    home: Path | None = None
    arrivals: frozenset[str] = frozenset()
    is_remote: bool = False

    def paths(self, word: str) -> tuple[str, ...] | None:
        """Return the paths that a word may name; None if they are unknown."""
        if self.is_remote or not is_known(word):
            return None
        text = plain(word)
        if text.startswith("/"):
            return (os.path.normpath(text),)
        if not self.folders:
            return None
        return tuple(os.path.normpath(folder / text) for folder in self.folders)

    def holds(self, word: str) -> bool:
        """Return whether overwriting this could lose data; True if that is unknown."""
        if is_sink(word):
            return False
        places = self.paths(word)
        if places is None:
            return True
        if is_pattern(word):
            return any(self.holds(name) for name in self.matches(word))
        return any(self._arrived(place) or _has_content(place) for place in places)

    def is_folder(self, word: str) -> bool:
        places = self.paths(word) or ()
        return any(_is_folder(place) for place in places)

    def exists(self, word: str) -> bool:
        """Return whether the file exists; True if that is unknown."""
        places = self.paths(word)
        if places is None:
            return True
        if is_pattern(word):
            return bool(self.matches(word))
        return any(self._arrived(place) or _status(place) is not None for place in places)

    def matches(self, word: str) -> tuple[str, ...]:
        """Return the first files that match a pattern in the last part of the path."""
        folder, _, name = word.rpartition("/")
        if is_pattern(folder):
            return (folder,) if not self.folders else self._deep(folder)
        start = plain(folder) + "/" if folder or word.startswith("/") else ""
        places = self.paths(start or ".") or ()
        found = (e for place in places for e in _entries(place) if _is_match(e, plain(name)))
        return tuple(start + entry for entry in islice(found, MOST_MATCHES))

    def _deep(self, folder: str) -> tuple[str, ...]:
        """Return the folder before the first wildcard: matching deeper would be unbounded work."""
        return (plain(folder).split("*")[0].rpartition("/")[0] or ".",)

    def text(self, word: str) -> str | None:
        """Return the text of a file; None if it is too large or cannot be read."""
        for place in self.paths(word) or ():
            try:
                status = os.stat(place)  # noqa: PTH116
                if stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST_READ:
                    return Path(place).read_text("utf-8", "replace")
            except (OSError, ValueError):
                continue
        return None

    def is_wide(self, word: str) -> bool:
        """Return whether this is a whole tree: root, home, working folder or system folder."""
        if not is_known(word):
            return True
        text = plain(word).rstrip("/") or "/"
        name = text.rpartition("/")[2]
        if name in ("*", ".", "..", ".*", "**", "{,.}*") or not text.strip("/"):
            return True
        if _HOME.fullmatch(text):
            return True
        places = self.paths(word) or ()
        here = [str(folder) for folder in (*self.folders, self.home) if folder]
        return any(place.count("/") < 2 or _is_above(place, here) for place in places)

    def _arrived(self, place: str) -> bool:
        return any(place == name or place.startswith(name + "/") for name in self.arrivals)


def _is_above(place: str, folders: list[str]) -> bool:
    return any(folder == place or folder.startswith(place + "/") for folder in folders)


def is_sink(word: str) -> bool:
    return word in SINKS or word.startswith(_SINK_FOLDERS)


def is_kernel(word: str) -> bool:
    """Return whether the word names a device or a kernel setting."""
    return not is_sink(word) and os.path.normpath(word).replace("//", "/").startswith(_KERNEL)


def _is_sound(place: str) -> bool:
    return "\0" not in place and len(place) < 4096


def _status(place: str) -> os.stat_result | None:
    if not _is_sound(place):
        return None
    try:
        return os.stat(place)  # noqa: PTH116
    except (OSError, ValueError):
        return None


def _is_folder(place: str) -> bool:
    status = _status(place)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _has_content(place: str) -> bool:
    status = _status(place)
    if status is None:
        return False
    return not stat.S_ISREG(status.st_mode) or status.st_size > 0


def _entries(place: str) -> Iterator[str]:
    try:
        with os.scandir(place) as entries:
            yield from (entry.name for entry in islice(entries, MOST_ENTRIES))
    except (OSError, ValueError):
        return


def _is_match(name: str, pattern: str) -> bool:
    return (name[0] != "." or pattern[:1] == ".") and fnmatch.fnmatchcase(name, pattern)


_ACCESS_FILES: Final = re.compile(
    r"(^|/)(\.ssh/(authorized_keys2?|config|rc)|etc/(passwd|shadow|group|gshadow|sudoers(\.d/.*)?"
    r"|crontab|cron\.[a-z]+/.*|ld\.so\.preload|fstab|hosts|rc\.local|pam\.d/.*|ssh/.*"
    r"|profile(\.d/.*)?|systemd/system/.*)|\.config/(autostart|systemd/user)/.*"
    r"|Library/LaunchAgents/.*)$|^/var/spool/cron|(^|/)\.git/hooks/"
)
"""Files that grant access, or that make something run automatically."""
_STARTUP_FILES: Final = re.compile(
    r"(^|/)\.(bashrc|zshrc|profile|bash_profile|bash_login|bash_logout|zprofile|zshenv|zlogin"
    r"|kshrc|cshrc|tcshrc|inputrc|xinitrc|bash_aliases|gitconfig|netrc|npmrc|pypirc)$"
    r"|(^|/)config\.fish$"
)


def is_start_file(word: str) -> bool:
    """Return whether a shell runs this file when it starts."""
    name = plain(word)
    return bool(_STARTUP_FILES.search(name)) and not name.endswith(
        ("config", "netrc", "npmrc", "pypirc")
    )


def why_overwritten(word: str, files: FileView, *, appends: bool = False) -> str | None:
    """Return why writing to this file needs a yes; None if nothing is lost."""
    name = plain(word)
    if PIPE in word or is_sink(name):
        return None
    if is_kernel(name):
        return f"writes to the device {display(word)}"
    if _ACCESS_FILES.search(name):
        return f"changes {display(word)}, which controls access or runs automatically"
    if appends:
        return None
    if _STARTUP_FILES.search(name):
        return f"replaces {display(word)}"
    if not is_known(word):
        return "overwrites a file that is known only at run time"
    if not files.holds(word):
        return None
    if files.paths(word) is None:
        return f"may overwrite {display(word)}, which is not visible from here"
    return f"overwrites {display(word)}"
