"""Facts for the model and settings for brim, kept across runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brim.errors import InputError
from brim.session.system_prompt import Fact
from brim.storage.database import Database


@dataclass(frozen=True, slots=True)
class FactStore:
    """Facts by number, and settings by name."""

    database: Database
    clock: Callable[[], float] = time.time

    def add(self, kind: str, text: str) -> int:
        """Store a fact and return its number."""
        if not text.strip():
            raise InputError("The fact is empty. Give its text.")
        with self.database.transaction() as base:
            values = kind, " ".join(text.split()), self.clock()
            added = base.execute("INSERT INTO facts (kind, text, time) VALUES (?, ?, ?)", values)
            return added.lastrowid or 0

    def all(self) -> dict[int, Fact]:
        rows = self.database.rows("SELECT id, kind, text FROM facts ORDER BY id")
        return {row["id"]: Fact(row["kind"], row["text"]) for row in rows}

    def forget(self, number: int) -> Fact:
        """Delete a fact and return it."""
        known = self.all()
        if number not in known:
            raise InputError(f"Unknown fact: {number}. List the facts with :memory list.")
        self.database.write("DELETE FROM facts WHERE id = ?", number)
        return known[number]

    def clear(self) -> int:
        """Delete all facts and return their number."""
        return self.database.write("DELETE FROM facts")

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a saved setting, or the default."""
        rows = self.database.rows("SELECT value FROM settings WHERE name = ?", name)
        return json.loads(rows[0]["value"]) if rows else default

    def save_setting(self, name: str, value: Any) -> None:
        self.database.write(
            "INSERT INTO settings (name, value) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            *(name, json.dumps(value)),
        )
