"""Conversations on disk: an append-only log of events per conversation.

turn       a message was added: `message`, at index `place`; a user message consumes pending outputs
output     a command output waits for the next user message: `text`
started    a command was started: `command`; its output, or `failed`, follows
rewind     only the first `length` turns remain, and the outputs in `pending` wait again
Other kinds (requests, replies, commands, compactions) are informational.

A turn at an index that exists replaces the turns from there on. So an event that was written twice
counts once, and a rewind that was not recorded is implied by the next turn.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from brim.errors import StoreError
from brim.storage.database import Database

TITLE_LENGTH: Final = 72
"""Characters of the first message that are used as the title."""
OUTPUTS: Final = "outputs"
LOCKS: Final = "locks"
SINGLE: Final = "ask-"
"""Start of the names of sessions that are not saved, whose lock files are temporary."""
_COLUMNS: Final = "id, folder, model, title, created, updated, turns"


@dataclass(frozen=True, slots=True)
class ConversationEvent:
    """Something that happened in a conversation."""

    kind: str
    data: Mapping[str, Any]
    time: float = 0.0

    @classmethod
    def turn(cls, place: int, message: Mapping[str, Any]) -> ConversationEvent:
        return cls("turn", {"place": place, "message": message})

    @classmethod
    def output(cls, text: str) -> ConversationEvent:
        return cls("output", {"text": text})

    @classmethod
    def rewind(cls, length: int, pending: Iterable[str]) -> ConversationEvent:
        return cls("rewind", {"length": length, "pending": list(pending)})


@dataclass(slots=True)
class ConversationState:
    """The messages and the pending outputs after a sequence of events."""

    turns: list[dict[str, Any]] = field(default_factory=list)
    pending_outputs: list[str] = field(default_factory=list)
    running: str | None = None
    """The command that ran last, if its end was not recorded."""


def replay_events(events: Iterable[ConversationEvent]) -> ConversationState:
    """Return the state that the events lead to."""
    state = ConversationState()
    for event in events:
        data = event.data
        if event.kind == "turn":
            state.turns[data["place"] :] = [dict(data["message"])]
            if data["message"]["role"] == "user":
                state.pending_outputs.clear()
        elif event.kind == "output":
            state.pending_outputs.append(data["text"])
            state.running = None
        elif event.kind == "rewind":
            del state.turns[data["length"] :]
            state.pending_outputs[:] = data["pending"]
        elif event.kind in ("started", "failed"):
            state.running = data["command"] if event.kind == "started" else None
    return state


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """A conversation as it is listed."""

    id: str
    folder: str
    model: str
    title: str
    created: float
    updated: float
    turns: int


class ConversationStore:
    """All conversations of a user."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._locks: dict[str, int] = {}

    @property
    def folder(self) -> Path:
        """The folder of the database."""
        return self._database.folder

    # One conversation

    def create(self, folder: Path, model: str) -> str:
        """Create a conversation, lock it for this process and return its name."""
        now = self._clock()
        day = datetime.fromtimestamp(now).astimezone().strftime("%Y%m%d-%H%M")
        name = f"{day}-{secrets.token_hex(3)}"
        self._database.write(
            "INSERT INTO sessions (id, folder, model, created, updated) VALUES (?, ?, ?, ?, ?)",
            *(name, str(folder), model, now, now),
        )
        self.lock(name)
        return name

    def record(
        self, name: str, events: Sequence[ConversationEvent], state: Mapping[str, Any] | None = None
    ) -> None:
        """Append events and the session state that they lead to, in one transaction."""
        now = self._clock()
        with self._database.transaction() as base:
            found = base.execute("UPDATE sessions SET updated = ? WHERE id = ?", (now, name))
            if not found.rowcount:
                raise StoreError(
                    f"Conversation {name} was removed. Start a new conversation with :reset."
                )
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
        """Set the title of a conversation."""
        self._database.write(
            "UPDATE sessions SET title = ? WHERE id = ?", _replace_surrogates(title), name
        )

    def save_draft(self, name: str, text: str) -> None:
        """Store the part of a reply that has arrived; the next state clears it."""
        self._database.write(
            "UPDATE sessions SET draft = ? WHERE id = ?", _replace_surrogates(text), name
        )

    def events(self, name: str) -> list[ConversationEvent]:
        """Return the events of a conversation, oldest first."""
        rows = self._database.rows(
            "SELECT kind, data, time FROM events WHERE session = ? ORDER BY number", name
        )
        return [
            ConversationEvent(row["kind"], json.loads(row["data"]), row["time"]) for row in rows
        ]

    def load_state(self, name: str) -> tuple[dict[str, Any] | None, str | None]:
        """Return the last state, and the draft of a reply that did not finish."""
        rows = self._database.rows("SELECT state, draft FROM sessions WHERE id = ?", name)
        if not rows:
            raise StoreError(f"Unknown conversation: {name}.")
        state = rows[0]["state"]
        return (None if state is None else json.loads(state)), rows[0]["draft"]

    def outputs_folder(self, name: str) -> Path:
        """Return the folder for outputs that are too long for a message."""
        return self._database.folder / OUTPUTS / name

    # All conversations

    def list(
        self, folder: Path | None = None, *, limit: int | None = None
    ) -> list[ConversationInfo]:
        """Return the conversations that have turns, newest first."""
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM sessions WHERE turns > 0 AND (?1 IS NULL OR folder = ?1) "
            "ORDER BY updated DESC LIMIT ?2",
            *(None if folder is None else str(folder), -1 if limit is None else limit),
        )
        return [ConversationInfo(**row) for row in rows]

    def find(self, name: str) -> ConversationInfo:
        """Return the conversation with this name, or with a unique prefix or suffix of it."""
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM sessions WHERE substr(id, 1, length(?1)) = ?1 "
            "OR substr(id, -length(?1)) = ?1",
            name,
        )
        if name and len(rows) == 1:
            return ConversationInfo(**rows[0])
        if name and rows:
            raise StoreError(
                f"Ambiguous conversation name: {name} matches {len(rows)}. Give more of the name."
            )
        names = [info.id for info in self.list(limit=200)]
        near = get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]}?" if near else "List them with `brim sessions list`."
        raise StoreError(f"Unknown conversation: {name}. {hint}")

    def remove(self, name: str) -> None:
        """Delete a conversation and its outputs; its spending stays in the spend log."""
        self.lock(name)
        try:
            self._database.write("DELETE FROM sessions WHERE id = ?", name)
            shutil.rmtree(self.outputs_folder(name), ignore_errors=True)
        finally:
            self.unlock(name)
            self._lock_file(name).unlink(missing_ok=True)

    def prune(self, days: int) -> int:
        """Delete conversations not updated for `days` days, and those without turns."""
        now = self._clock()
        old = self._database.rows(
            "SELECT id FROM sessions WHERE (turns = 0 AND updated < ?) OR (? > 0 AND updated < ?)",
            *(now - 86_400, days, now - days * 86_400),
        )
        removed = 0
        for name in {row["id"] for row in old}.difference(self._locks):
            with suppress(StoreError):  # open in another shell
                self.remove(name)
                removed += 1
        return removed

    # Locks

    def lock(self, name: str) -> None:
        """Reserve a conversation for this process, until `unlock` or the end of the process.

        Raise `StoreError` if another process has locked it.
        """
        if name in self._locks:
            return
        path = self._lock_file(name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        if not _acquire_lock(lock):
            os.close(lock)
            raise StoreError(f"Conversation {name} is open in another shell. Leave that one first.")
        self._locks[name] = lock

    def unlock(self, name: str) -> None:
        if (lock := self._locks.pop(name, None)) is not None:
            if name.startswith(SINGLE):
                self._lock_file(name).unlink(missing_ok=True)
            os.close(lock)

    def _lock_file(self, name: str) -> Path:
        return self._database.folder / LOCKS / name


def _acquire_lock(lock: int) -> bool:
    try:
        import fcntl
    except ImportError:  # this system has no such locks
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _update_listing(base: sqlite3.Connection, name: str, event: ConversationEvent) -> None:
    """Update the columns that `ConversationStore.list` shows."""
    if event.kind in ("turn", "rewind"):
        turns = event.data["place"] + 1 if event.kind == "turn" else event.data["length"]
        base.execute("UPDATE sessions SET turns = ? WHERE id = ?", (turns, name))
    if event.kind == "turn" and (title := _make_title(event.data["message"])):
        statement = "UPDATE sessions SET title = ? WHERE id = ? AND title = ''"
        base.execute(statement, (title, name))
    if event.kind == "model":
        base.execute("UPDATE sessions SET model = ? WHERE id = ?", (event.data["name"], name))


def _make_title(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if message.get("role") != "user" or not isinstance(content, str):
        return ""
    words = " ".join(_replace_surrogates(content).split())
    return words if len(words) <= TITLE_LENGTH else words[: TITLE_LENGTH - 1] + "…"


def _to_json(data: Mapping[str, Any]) -> str:
    """Return JSON that SQLite can store: unpaired surrogates are escaped."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text if text == _replace_surrogates(text) else json.dumps(data, separators=(",", ":"))


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
