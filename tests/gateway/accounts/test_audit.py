"""The audit log, in every store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.errors import InputError
from brim.gateway.accounts.audit import AuditEntry
from brim.gateway.accounts.caps import ALL, Cap
from brim.gateway.accounts.editor import AccountEditor
from brim.gateway.accounts.keys import create_key, hash_secret
from brim.gateway.accounts.store import AccountStore

pytestmark = pytest.mark.anyio


async def test_every_change_is_recorded_with_its_actor(blank: AccountStore) -> None:
    editor = AccountEditor(blank, "key:boss")
    key, secret = create_key("größe".replace("ö", "o").replace("ß", "s"), "web")
    await editor.add_key(key, hash_secret(secret), [Cap(5_000_000, "dollars", "day")])
    await editor.set_rules(key, replace(key.rules, note="for ü\0", models=("gpt-4o*",)))
    await editor.set_caps(ALL, [Cap(7)])
    await editor.set_caps(ALL, [])
    await editor.revoke(key.name)
    entries = await blank.audit_entries(10)
    assert [each.action for each in entries] == [
        "key.revoke",
        "caps.set",
        "caps.set",
        "key.edit",
        "key.add",
    ]
    assert {each.actor for each in entries} == {"key:boss"}
    _, lifted, _, edited, added = entries
    assert lifted.details == {"caps": {"before": ["$0.000007"], "after": []}}
    assert edited.details["note"] == {"before": "", "after": "for ü\0"}
    assert edited.details["models"] == {"before": [], "after": ["gpt-4o*"]}
    assert added.details["caps"] == ["$5/day"]
    assert secret not in str(entries)


async def test_a_change_that_fails_is_not_recorded(blank: AccountStore) -> None:
    with pytest.raises(InputError, match="No active key"):
        await AccountEditor(blank, "cli:root@here").revoke("anna")
    assert await blank.audit_entries(10) == []


async def test_an_entry_that_is_written_twice_is_there_once(blank: AccountStore) -> None:
    entry = AuditEntry.create("cli:root@here", "key.revoke", "k_1", {"name": "anna"})
    other = AuditEntry.create("cli:root@here", "key.revoke", "k_2", {"name": "ben"})
    for each in (entry, entry, replace(other, time=entry.time + 1)):
        await blank.add_audit_entry(each)
    assert await blank.audit_entries(1) == [replace(other, time=entry.time + 1)]
    assert len(await blank.audit_entries(10)) == 2
