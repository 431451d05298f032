"""The project files that the user has trusted, each with its content at that time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal


def system_folder(kind: Literal["config", "state"], environment: Mapping[str, str]) -> Path:
    """Return the folder for the user's files of this kind."""
    try:
        import platformdirs
    except ImportError:
        plain = {"config": "~/.config", "state": "~/.local/state"}[kind]
        named = environment.get(f"XDG_{kind.upper()}_HOME")
        return Path(named or plain).expanduser() / "brim"
    if kind == "config":
        return platformdirs.user_config_path("brim")
    return platformdirs.user_state_path("brim")


def digest(data: bytes) -> str:
    """Return the digest that identifies the content of a file."""
    return hashlib.sha256(data).hexdigest()


class Trust:
    """The project files that the user has trusted, each with its content at that time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Trust:
        """Return the user's record, in the folder `BRIM_STATE` or the default state folder."""
        named = environment.get("BRIM_STATE")
        folder = Path(named).expanduser() if named else system_folder("state", environment)
        return cls(folder / "trusted.json")

    def is_trusted(self, path: Path, digest: str) -> bool:
        """Return whether the user trusted this content at this path."""
        return self._known().get(str(path.resolve())) == digest

    def trust(self, path: Path, digest: str) -> None:
        self._write({**self._known(), str(path.resolve()): digest})

    def revoke(self, path: Path) -> bool:
        """Remove a project file; return whether it was trusted."""
        known = self._known()
        if known.pop(str(path.resolve()), None) is None:
            return False
        self._write(known)
        return True

    def _known(self) -> dict[str, str]:
        """Return the trusted digests by path; nothing is trusted if the record cannot be read."""
        try:
            known = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}

    def _write(self, known: Mapping[str, str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        part.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                json.dump(known, file, indent=2)
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)
