"""Conversations on disk, written as they happen."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from brim.errors import StoreError
from brim.storage.events import ConversationEvent

if TYPE_CHECKING:
    import sqlite3

    from brim.storage.database import Database

TITLE_LENGTH: Final = 72
"""Characters of the first words that a conversation is listed by."""
OUTPUTS: Final = "outputs"
LOCKS: Final = "locks"
_COLUMNS: Final = "id, folder, model, title, begun, changed, turns"


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """A conversation as it is listed."""

    id: str
    folder: str
    model: str
    title: str
    begun: float
    changed: float
    turns: int


class ConversationStore:
    """All conversations of a user."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._locks: dict[str, int] = {}

    @property
    def folder(self) -> Path:
        """Where it all lies."""
        return self._database.folder

    # One conversation

    def begin(self, folder: Path, model: str) -> str:
        """A new conversation, held by this process; gives its name."""
        now = self._clock()
        day = datetime.fromtimestamp(now).astimezone().strftime("%Y%m%d-%H%M")
        name = f"{day}-{secrets.token_hex(3)}"
        self._database.write(
            "INSERT INTO sessions (id, folder, model, begun, changed) VALUES (?, ?, ?, ?, ?)",
            *(name, str(folder), model, now, now),
        )
        self.hold(name)
        return name

    def record(
        self, name: str, events: Sequence[ConversationEvent], state: Mapping[str, Any] | None = None
    ) -> None:
        """Write what happened, and the state that it led to, both or nothing."""
        now = self._clock()
        with self._database.writing() as base:
            there = base.execute("UPDATE sessions SET changed = ? WHERE id = ?", (now, name))
            if not there.rowcount:
                raise StoreError(f"{name} was removed meanwhile; :reset begins a new conversation")
            (last,) = base.execute(
                "SELECT COALESCE(MAX(number), 0) FROM events WHERE session = ?", (name,)
            ).fetchone()
            for number, event in enumerate(events, last + 1):
                values = name, number, now, event.kind, _to_json(event.data)
                base.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", values)
                _update_listing(base, name, event)
            if state is not None:
                base.execute(
                    "UPDATE sessions SET state = ?, draft = NULL WHERE id = ?",
                    (_to_json(state), name),
                )

    def rename(self, name: str, title: str) -> None:
        """List a conversation by another title."""
        self._database.write(
            "UPDATE sessions SET title = ? WHERE id = ?", _replace_surrogates(title), name
        )

    def draft(self, name: str, text: str) -> None:
        """What an answer that still comes says so far; the next state takes its place."""
        self._database.write(
            "UPDATE sessions SET draft = ? WHERE id = ?", _replace_surrogates(text), name
        )

    def events(self, name: str) -> list[ConversationEvent]:
        rows = self._database.rows(
            "SELECT kind, data, time FROM events WHERE session = ? ORDER BY number", name
        )
        return [
            ConversationEvent(row["kind"], json.loads(row["data"]), row["time"]) for row in rows
        ]

    def state(self, name: str) -> tuple[dict[str, Any] | None, str | None]:
        """The last state, and the answer that was on its way when its reader died."""
        rows = self._database.rows("SELECT state, draft FROM sessions WHERE id = ?", name)
        if not rows:
            raise StoreError(f"there is no conversation {name}")
        state = rows[0]["state"]
        return (None if state is None else json.loads(state)), rows[0]["draft"]

    def outputs(self, name: str) -> Path:
        """The folder for outputs too long to be said."""
        return self._database.folder / OUTPUTS / name

    # All of them

    def list(
        self, folder: Path | None = None, *, limit: int | None = None
    ) -> list[ConversationInfo]:
        """Those in which something was said, the newest first."""
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM sessions WHERE turns > 0 AND (?1 IS NULL OR folder = ?1) "
            "ORDER BY changed DESC LIMIT ?2",
            *(None if folder is None else str(folder), -1 if limit is None else limit),
        )
        return [ConversationInfo(**row) for row in rows]

    def find(self, name: str) -> ConversationInfo:
        """The conversation of that name, or the only one whose name begins so."""
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM sessions WHERE substr(id, 1, length(?1)) = ?1 "
            "OR substr(id, -length(?1)) = ?1",
            name,
        )
        if name and len(rows) == 1:
            return ConversationInfo(**rows[0])
        if name and rows:
            raise StoreError(f"{len(rows)} conversations begin with {name}; give more of the name")
        names = [saved.id for saved in self.list(limit=200)]
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "`brim sessions list` shows what there is"
        raise StoreError(f"there is no conversation {name}; {hint}")

    def remove(self, name: str) -> None:
        """Forget a conversation and its outputs; what it cost stays in the books."""
        self.hold(name)
        try:
            self._database.write("DELETE FROM sessions WHERE id = ?", name)
            shutil.rmtree(self.outputs(name), ignore_errors=True)
        finally:
            self.release(name)
            self._lock_file(name).unlink(missing_ok=True)

    def retain(self, days: int) -> int:
        """Forget what was not touched for so many days, and what never had a turn."""
        now = self._clock()
        old = self._database.rows(
            "SELECT id FROM sessions WHERE (turns = 0 AND changed < ?) OR (? > 0 AND changed < ?)",
            *(now - 86_400, days, now - days * 86_400),
        )
        removed = 0
        for name in {row["id"] for row in old}.difference(self._locks):
            with suppress(StoreError):  # another shell is in it
                self.remove(name)
                removed += 1
        return removed

    # Whose it is

    def hold(self, name: str) -> None:
        """Let this process alone go on with a conversation, until it ends."""
        if name in self._locks:
            return
        path = self._lock_file(name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        if not _acquire_lock(lock):
            os.close(lock)
            raise StoreError(f"{name} is open in another shell")
        self._locks[name] = lock

    def release(self, name: str) -> None:
        if (lock := self._locks.pop(name, None)) is not None:
            os.close(lock)

    def _lock_file(self, name: str) -> Path:
        return self._database.folder / LOCKS / name


def _acquire_lock(lock: int) -> bool:
    try:
        import fcntl
    except ImportError:  # no such locks here: two shells may be told apart by their users
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _update_listing(base: sqlite3.Connection, name: str, event: ConversationEvent) -> None:
    """Keep what a conversation is listed by."""
    match event.kind:
        case "turn":
            turns = event.data["place"] + 1
            base.execute("UPDATE sessions SET turns = ? WHERE id = ?", (turns, name))
            if title := _make_title(event.data["message"]):
                statement = "UPDATE sessions SET title = ? WHERE id = ? AND title = ''"
                base.execute(statement, (title, name))
        case "back":
            length = event.data["length"]
            base.execute("UPDATE sessions SET turns = ? WHERE id = ?", (length, name))
        case "model":
            base.execute("UPDATE sessions SET model = ? WHERE id = ?", (event.data["name"], name))
        case _:
            pass


def _make_title(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if message.get("role") != "user" or not isinstance(content, str):
        return ""
    words = " ".join(_replace_surrogates(content).split())
    return words if len(words) <= TITLE_LENGTH else words[: TITLE_LENGTH - 1] + "…"


def _to_json(data: Mapping[str, Any]) -> str:
    """As it is, where SQLite can hold that: half a surrogate pair is kept as an escape."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text if text == _replace_surrogates(text) else json.dumps(data, separators=(",", ":"))


def _replace_surrogates(text: str) -> str:
    """The text with a sign in the place of what is half a character."""
    return text.encode("utf-8", "replace").decode()
