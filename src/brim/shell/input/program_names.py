"""The programs on PATH."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from threading import Thread


class ProgramNames:
    """Names of the programs on PATH."""

    def __init__(self, path: Callable[[], str]) -> None:
        self._path = path
        self._found: tuple[str, frozenset[str]] | None = None

    def __call__(self) -> frozenset[str]:
        """Return all names; scans PATH if it has changed."""
        path, found = self._path(), self._found
        if found is None or found[0] != path:
            found = self._found = path, self._scan(path)
        return found[1]

    def is_command(self, name: str) -> bool:
        """Return whether there is such a program, without scanning all of PATH."""
        path, found = self._path(), self._found
        if found is not None and found[0] == path:
            return name in found[1]
        return "/" not in name and shutil.which(name, path=path) is not None

    def refresh(self) -> Thread:
        """Scan changed folders again, in a thread; the old names stay valid until it is done."""
        thread = Thread(target=self._rescan, name="programs", daemon=True)
        thread.start()
        return thread

    def _rescan(self) -> None:
        path = self._path()
        self._found = path, self._scan(path)

    @staticmethod
    def _scan(path: str) -> frozenset[str]:
        folders = dict.fromkeys(folder for folder in path.split(os.pathsep) if folder)
        return frozenset().union(*map(_list_programs, folders))


def _list_programs(folder: str) -> frozenset[str]:
    try:
        return _scan_folder(folder, Path(folder).stat().st_mtime_ns)
    except OSError:  # PATH may contain missing folders
        return frozenset()


@lru_cache(maxsize=256)
def _scan_folder(folder: str, _changed: int) -> frozenset[str]:
    """Return the executables of a folder, which was last changed at this time."""
    with os.scandir(folder) as found:
        return frozenset(
            entry.name for entry in found if os.access(entry.path, os.X_OK) and not entry.is_dir()
        )
