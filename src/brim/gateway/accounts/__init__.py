"""Keys, caps, reservations and the ledger, in a store that several processes share.

caps          amounts per period, in micro-dollars or tokens; names of counters
keys          API keys, stored as hashes
reservations  the maximum cost of a request before it is sent, and its actual cost
audit, editor  the log of changes; changes of keys and caps that are recorded there
store         the interface of every account store; the use of caps; URLs of stores
sqlite/, postgres/, redis/    the stores: for one machine, or for many

Nothing here depends on the rest of the gateway. Decisions (which cap is reached, how a lease ends)
are made inside the store in one step, because other processes decide at the same time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from brim.config import home_as_tilde
from brim.errors import InputError

if TYPE_CHECKING:
    from brim.gateway.accounts.store import AccountStore

DEFAULT_FILE: Final = "accounts.sqlite3"
_POSTGRES: Final = ("postgresql", "postgres")
_REDIS: Final = ("redis", "rediss", "valkey", "valkeys", "unix")


def file_path(address: str, folder: Path) -> Path | None:
    """Return the file of an address; None if it is the URL of a server."""
    if "://" in address:
        return None
    return Path(address).expanduser() if address else folder / DEFAULT_FILE


def create_store(address: str, folder: Path) -> AccountStore:
    """Return the store at a PostgreSQL or Redis URL, or in a file; by default in `folder`."""
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
        f"Unknown account store: {scheme}://. Use postgresql://, redis://, or the path of a file."
    )


# URLs contain passwords, and Python's error messages about an invalid URL may quote a part of them.


def redact_address(address: str, folder: Path) -> str:
    """Return an address without the user and password."""
    if (file := file_path(address, folder)) is not None:
        return home_as_tilde(file)
    try:
        parts = urlsplit(address)
    except ValueError:
        return f"{address.partition('://')[0]}://…"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
