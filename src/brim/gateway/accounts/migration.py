"""Copy an account store to another one, for example from SQLite to PostgreSQL.

Keys, secrets, caps, the ledger and the audit log are copied. Everything is added by its id, so an
interrupted copy can be started again. Counters are summed from the ledger, so they are not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from brim.errors import InputError
from brim.gateway.accounts.keys import ApiKey, SecretRecord
from brim.gateway.accounts.reservations import GroupBy, LedgerRow
from brim.gateway.accounts.store import AccountStore

_BATCH: Final = 500
_ALL_ENTRIES: Final = 1_000_000
"""More entries than an audit log has: one is made for each change by a person."""
_GROUPS: Final[tuple[GroupBy, ...]] = (
    "day",
    "key",
    "project",
    "user",
    "model",
    "upstream",
    "state",
)


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a copied store has, as counted in the target."""

    keys: int
    scopes: int
    """Scopes with caps."""
    rows: int
    micro_dollars: int
    tokens: int


async def copy_store(source: AccountStore, target: AccountStore) -> CopyReport:
    """Copy everything from a store that no gateway uses, and compare both afterwards.

    Raise `InputError` if requests are in flight, if the target has other keys or rows, or if the
    stores differ afterwards.
    """
    await source.sweep()
    if running := await source.running():
        raise InputError(
            f"The source has {running:,} requests in flight. Stop its gateways, and wait until the "
            "leases of killed ones have expired (gateway.lease_seconds)."
        )
    keys = await source.keys()
    known = {key.id for key in keys}
    if strangers := [key.name for key in await target.keys() if key.id not in known]:
        raise InputError(
            f"The target has keys that the source does not have: {', '.join(strangers[:5])}. "
            "Copy to an empty store."
        )
    await target.load_keys(keys, await source.dump_secrets())
    for scope, caps in (await source.caps()).items():
        await target.set_caps(scope, caps)
    await _copy_rows(source, target)
    await target.load_pruned(await source.dump_pruned())
    await _copy_audit_log(source, target)
    return await _compare(source, target)


async def _copy_rows(source: AccountStore, target: AccountStore) -> None:
    batch: list[LedgerRow] = []
    async for row in source.rows():
        batch.append(row)
        if len(batch) == _BATCH:
            await target.load_rows(batch)
            batch = []
    if batch:
        await target.load_rows(batch)


async def _copy_audit_log(source: AccountStore, target: AccountStore) -> None:
    known = {entry.id for entry in await target.audit_entries(_ALL_ENTRIES)}
    for entry in reversed(await source.audit_entries(_ALL_ENTRIES)):
        if entry.id not in known:
            await target.add_audit_entry(entry)


async def _compare(source: AccountStore, target: AccountStore) -> CopyReport:
    """Return what the target has. Raise `InputError` if it is not what the source has."""
    differing = [
        name
        for name, left, right in (
            ("keys", await _list_keys(source), await _list_keys(target)),
            ("secrets", await _list_secrets(source), await _list_secrets(target)),
            ("caps", await source.caps(), await target.caps()),
            ("sums of pruned rows", await source.dump_pruned(), await target.dump_pruned()),
            ("sums of the ledger", await source.totals(_GROUPS), await target.totals(_GROUPS)),
        )
        if left != right
    ]
    if differing:
        raise InputError(
            f"The copy differs from its source in: {', '.join(differing)}. Was a gateway running? "
            "Stop it, and copy again, to an empty store."
        )
    return await _report(target)


# Stores keep times with different precision.


async def _list_keys(store: AccountStore) -> list[ApiKey]:
    return [replace(key, revoked=_round(key.revoked)) for key in await store.keys()]


async def _list_secrets(store: AccountStore) -> list[SecretRecord]:
    return [one._replace(expires=_round(one.expires)) for one in await store.dump_secrets()]


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


async def _report(store: AccountStore) -> CopyReport:
    rows: Sequence[tuple[int, int, int]] = [
        (row.total.calls, int(row.total.cost * 1_000_000), row.total.tokens)
        for row in await store.totals(())
    ]
    calls, cost, tokens = rows[0] if rows else (0, 0, 0)
    return CopyReport(len(await store.keys()), len(await store.caps()), calls, cost, tokens)
