"""The audit log: who changed which keys, caps and settings.

Entries are only added. Each is recorded after its change: if the program is killed in between, the
change has no entry. A secret never appears in one.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

MAX_LISTED_CHANGES: Final = 1_000
"""The most entries that are read in one call."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change."""

    id: str
    time: float
    """Seconds since 1970, on the clock of the program that made the change."""
    actor: str
    """`cli:USER@HOST`, `key:NAME` of an operator key, or `oidc:NAME` of a signed-in person."""
    action: str
    """`key.add`, `key.edit`, `key.revoke`, `caps.set`, `configuration.reload` …"""
    subject: str
    """The key's id, the scope of the caps, or nothing."""
    details: Mapping[str, Any]
    """What changed: a value, or the values before and after."""

    @classmethod
    def create(
        cls, actor: str, action: str, subject: str, details: Mapping[str, Any]
    ) -> AuditEntry:
        return cls(f"a_{secrets.token_hex(8)}", time.time(), actor, action, subject, details)

    @property
    def columns(self) -> tuple[str, float, str, str, str, str]:
        """The fields as stores keep them."""
        details = json.dumps(self.details, separators=(",", ":"))
        return self.id, self.time, self.actor, self.action, self.subject, details

    @classmethod
    def of(cls, columns: Sequence[Any]) -> AuditEntry:
        id, time, actor, action, subject, details = columns
        return cls(id, time, actor, action, subject, json.loads(details))

    def to_dict(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}
