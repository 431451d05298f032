"""Which overlays their user has agreed to, each as it was then."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal


def system_folder(kind: Literal["config", "state"], environment: Mapping[str, str]) -> Path:
    """Where the system keeps such files of its user."""
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
    """What a file is recognised by."""
    return hashlib.sha256(data).hexdigest()


class Trust:
    """Which overlays their user has agreed to, each as it was then."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Trust:
        """That of the user; `BRIM_STATE` names another folder for it."""
        named = environment.get("BRIM_STATE")
        folder = Path(named).expanduser() if named else system_folder("state", environment)
        return cls(folder / "trusted.json")

    def is_trusted(self, path: Path, digest: str) -> bool:
        """Whether this very content was agreed to, at this place."""
        return self._known().get(str(path.resolve())) == digest

    def trust(self, path: Path, digest: str) -> None:
        self._write({**self._known(), str(path.resolve()): digest})

    def revoke(self, path: Path) -> bool:
        """Forget an overlay; says whether there was anything to forget."""
        known = self._known()
        if known.pop(str(path.resolve()), None) is None:
            return False
        self._write(known)
        return True

    def _known(self) -> dict[str, str]:
        """A file that cannot be read trusts nothing."""
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
