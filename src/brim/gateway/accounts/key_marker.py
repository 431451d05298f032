"""A reminder that a file of books had keys.

A file that is gone looks like one that never was, and without keys everybody is let in. So what is
remembered is kept elsewhere, with what the gateway learned.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARKER_FILE: Final = "accounts.required"

log = logging.getLogger("brim.gateway")


@dataclass(frozen=True, slots=True)
class KeyMarker:
    """Knows of one file whether it ever had keys; whoever means to go back removes the reminder."""

    folder: Path
    books: Path

    @property
    def path(self) -> Path:
        return self.folder / MARKER_FILE

    def is_set(self) -> bool:
        try:
            lines = self.path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except FileNotFoundError:
            return False
        except OSError:  # something is there, and may have said so
            return True
        return self._line in lines

    def set(self) -> None:
        """Write it down; a gateway that cannot do that serves all the same."""
        if self.is_set():
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self.path.open("a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(f"{self._line}\n")
        except OSError as error:
            told = {"file": str(self.path), "why": error.strerror or str(error)}
            log.warning("not remembered that there are keys", extra={"told": told})

    @property
    def _line(self) -> str:
        """The file's path, in which no sign ends the line."""
        return os.fspath(self.books.absolute()).replace("\n", "\\n")
