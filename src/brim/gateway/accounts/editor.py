"""Changes of keys and caps, each with an entry in the audit log."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from brim.gateway.accounts.audit import AuditEntry
from brim.gateway.accounts.caps import Cap, key_scope
from brim.gateway.accounts.keys import ApiKey, KeyRules
from brim.gateway.accounts.store import AccountStore


def describe_local_user() -> str:
    """Return the actor of a command: the user and the machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = "unknown"
    return f"cli:{user}@{socket.gethostname()}"


class AccountEditor:
    """Changes keys and caps, and records each change with its actor."""

    def __init__(self, store: AccountStore, actor: str) -> None:
        self.store = store
        self._actor = actor

    async def add_key(self, key: ApiKey, hashed: str, caps: Sequence[Cap] = ()) -> None:
        await self.store.add_key(key, hashed, caps)
        details = {
            "name": key.name,
            "project": key.project,
            "operator": key.is_operator,
            "caps": list(map(str, caps)),
            **_compare_rules(KeyRules(), key.rules),
        }
        await self.record("key.add", key.id, details)

    async def revoke(self, name: str) -> ApiKey:
        key = await self.store.revoke(name)
        await self.record("key.revoke", key.id, {"name": key.name})
        return key

    async def rotate(self, name: str, hashed: str, overlap: float) -> ApiKey:
        key = await self.store.rotate(name, hashed, overlap)
        await self.record("key.rotate", key.id, {"name": key.name, "overlap_seconds": overlap})
        return key

    async def set_rules(self, key: ApiKey, rules: KeyRules) -> ApiKey:
        """Replace the rules of this key."""
        changed = await self.store.set_rules(key.id, rules)
        details = {"name": key.name, **_compare_rules(key.rules, rules)}
        await self.record("key.edit", key.id, details)
        return changed

    async def set_caps(self, scope: str, caps: Sequence[Cap]) -> None:
        before = (await self.store.caps()).get(scope, ())
        await self.store.set_caps(scope, caps)
        names = {key_scope(key.id): key.name for key in await self.store.keys()}
        named = {"name": names[scope]} if scope in names else {}
        change = {"before": list(map(str, before)), "after": list(map(str, caps))}
        await self.record("caps.set", scope, {**named, "caps": change})

    async def record(self, action: str, subject: str, details: Mapping[str, Any]) -> None:
        await self.store.add_audit_entry(AuditEntry.create(self._actor, action, subject, details))


def _compare_rules(before: KeyRules, after: KeyRules) -> dict[str, Any]:
    """Return the rules that differ, each with its values before and after, for people."""
    pairs = {
        each.name: (_describe(before, each.name), _describe(after, each.name))
        for each in fields(after)
    }
    return {name: {"before": old, "after": new} for name, (old, new) in pairs.items() if old != new}


def _describe(rules: KeyRules, name: str) -> object:
    """Return the value of a rule; the end of a key as a date and time."""
    if name != "expires" or rules.expires is None:
        return getattr(rules, name)
    return datetime.fromtimestamp(rules.expires, UTC).isoformat(timespec="seconds")
