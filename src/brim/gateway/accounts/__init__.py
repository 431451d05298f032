"""Who may spend what, and what was spent: keys, caps, claims and a ledger that processes share.

caps       how much, in which time; whole micro-dollars and names of counters
keys       who: stored as a hash, shown once
claims     what is set aside before a request is sent, and what it came to
bounds     claims as every store can keep them
books      what every store does
standing   every cap, with what counts against it now
addresses  URLs of stores: what is wrong with them, and what can be shown
sqlite_books, postgres_books, redis_books     the stores: one machine, or many

Nothing here knows the gateway. What is decided (which cap is full, what becomes of a lease) is
decided inside of the store, in one step, because other processes decide at the same time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from brim.errors import InputError

if TYPE_CHECKING:
    from brim.gateway.accounts.store import AccountStore

DEFAULT_FILE: Final = "accounts.sqlite3"
_POSTGRES: Final = ("postgresql", "postgres")
_REDIS: Final = ("redis", "rediss", "valkey", "valkeys", "unix")


def file_path(address: str, folder: Path) -> Path | None:
    """The file that an address means; None where it is a server's."""
    if "://" in address:
        return None
    return Path(address).expanduser() if address else folder / DEFAULT_FILE


def create_store(address: str, folder: Path) -> AccountStore:
    """The books at a PostgreSQL or Redis address or in a file; by default in one of `folder`."""
    if (file := file_path(address, folder)) is not None:
        from brim.gateway.accounts.sqlite.store import SqliteAccountStore

        return SqliteAccountStore(file)
    scheme = address.partition("://")[0].lower()
    if scheme in _POSTGRES:
        from brim.gateway.accounts.postgres.store import PostgresAccountStore

        return PostgresAccountStore(address)
    if scheme in _REDIS:
        from brim.gateway.accounts.redis.store import RedisAccountStore

        return RedisAccountStore(address)
    raise InputError(
        f"{scheme}:// is no store that brim knows; there are postgresql://, redis://, or the path "
        "of a file"
    )
