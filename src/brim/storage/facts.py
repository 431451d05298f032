"""What the user wants remembered across runs: facts for the model, and choices for brim."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from brim.errors import InputError
from brim.session.system_prompt import Fact

if TYPE_CHECKING:
    from brim.storage.database import Database


class FactStore:
    """Facts by number, and choices by name."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def add(self, kind: str, text: str) -> int:
        """Remember something; gives its number."""
        if not text.strip():
            raise InputError("there is nothing to remember; say what")
        with self._database.writing() as base:
            values = kind, " ".join(text.split()), self._clock()
            added = base.execute("INSERT INTO facts (kind, text, time) VALUES (?, ?, ?)", values)
            return added.lastrowid or 0

    def all(self) -> dict[int, Fact]:
        rows = self._database.rows("SELECT id, kind, text FROM facts ORDER BY id")
        return {row["id"]: Fact(row["kind"], row["text"]) for row in rows}

    def forget(self, number: int) -> Fact:
        known = self.all()
        if number not in known:
            raise InputError(f"there is no fact {number}; :memory list shows what there is")
        self._database.write("DELETE FROM facts WHERE id = ?", number)
        return known[number]

    def clear(self) -> int:
        """Forget all of them; says how many there were."""
        return self._database.write("DELETE FROM facts")

    def choice(self, name: str, default: Any = None) -> Any:
        """What was chosen, in this run or an earlier one."""
        rows = self._database.rows("SELECT value FROM choices WHERE name = ?", name)
        return json.loads(rows[0]["value"]) if rows else default

    def choose(self, name: str, value: Any) -> None:
        self._database.write(
            "INSERT INTO choices (name, value) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            *(name, json.dumps(value)),
        )
