"""A pool of connections to a PostgreSQL server, with migrations and error translation.

Every operation is one statement, hence its own transaction; nothing is kept on a connection between
two of them. So PgBouncer works, also in transaction mode: since 1.21 it supports prepared
statements (`max_prepared_statements`, enabled by default since 1.24). For an older version, or if
they are disabled, add `?statement_cache_size=0` to the URL: each operation then takes two round
trips. With several hosts (`postgresql://one,two/brim?target_session_attrs=primary`), each new
connection looks for the primary.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from brim.errors import AccountStoreError, AccountStoreUnavailableError, InputError
from brim.gateway.accounts.store import ESCAPING_HINT, check_port, has_unescaped_delimiter

try:
    import asyncpg  # type: ignore[import-untyped]
except ImportError:
    raise InputError("The PostgreSQL driver is missing: pip install 'brim[postgres]'") from None

T = TypeVar("T")

SCHEMA_VERSION: Final = 1
"""The newest schema version; version 1 is in `schema_1.sql`, and so on."""
MAX_CONNECTIONS: Final = 10
CONNECT_SECONDS: Final = 5.0
"""Timeout for opening a connection, or waiting for a free one."""
STATEMENT_SECONDS: Final = 15.0
"""Timeout of one statement; an operation takes about a millisecond."""
REPORT_SECONDS: Final = 120.0
"""Timeout of a sum over the ledger."""
_LOCK: Final = 0x6272696D
"""The advisory lock of migrations, so that one replica runs them and the others wait."""
_CACHE_OPTION: Final = "statement_cache_size"

_CONNECTION_LOST: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # shutting down, starting up, or a cancelled statement
    asyncpg.ReadOnlySQLTransactionError,  # a standby, or a former primary
)
_UNAVAILABLE: Final = (
    *_CONNECTION_LOST,
    asyncpg.InterfaceError,  # closed in the middle
    asyncpg.InternalClientError,
    asyncpg.InsufficientResourcesError,  # too many connections, a full disk
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
)
_ACCESS_DENIED: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)
_PREPARED_STATEMENT_ERRORS: Final = (
    asyncpg.DuplicatePreparedStatementError,
    asyncpg.InvalidSQLStatementNameError,
)


class PostgresPool:
    """A pool of connections, opened on first use and again after a failure."""

    def __init__(self, url: str) -> None:
        self.location = _parse_location(url)
        self._url, self._cache = _split_cache_option(url)
        self._pool: Any = None
        self._opening = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<PostgreSQL at {self.location}>"

    async def open(self) -> None:
        async with self._opening, self._translating_errors():
            if self._pool is None:
                self._pool = await self._open()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await pool.close()
        except (*_UNAVAILABLE, asyncpg.PostgresError):
            pool.terminate()

    async def fetch_rows(
        self, statement: str, *values: object, timeout: float = STATEMENT_SECONDS
    ) -> list[Any]:
        return await self._run(
            lambda connection: connection.fetch(statement, *values, timeout=timeout)
        )

    async def fetch_row(self, statement: str, *values: object) -> Any:
        return await self._run(lambda connection: connection.fetchrow(statement, *values))

    async def fetch_value(self, statement: str, *values: object) -> Any:
        return await self._run(lambda connection: connection.fetchval(statement, *values))

    async def _run(self, query: Callable[[Any], Awaitable[T]]) -> T:
        if self._pool is None:
            await self.open()
        pool = self._pool
        async with (
            self._translating_errors(),
            pool.acquire(timeout=CONNECT_SECONDS) as connection,
        ):
            try:
                return await query(connection)
            except _CONNECTION_LOST:
                # The other connections may be broken too, or lead to the wrong server.
                await pool.expire_connections()
                raise

    async def _open(self) -> Any:
        pool = await self._create_pool()
        try:
            async with pool.acquire(timeout=CONNECT_SECONDS) as connection:
                await _migrate(connection, self.location)
        except BaseException:
            pool.terminate()
            raise
        return pool

    async def _create_pool(self) -> Any:
        try:
            return await asyncpg.create_pool(
                self._url,
                min_size=1,
                max_size=MAX_CONNECTIONS,
                timeout=CONNECT_SECONDS,
                command_timeout=STATEMENT_SECONDS,
                statement_cache_size=self._cache,
                reset=_skip_reset,
            )
        except ValueError:
            raise InputError(_INVALID_URL) from None

    @asynccontextmanager
    async def _translating_errors(self) -> AsyncIterator[None]:
        """Translate the driver's exceptions; none of its messages contains a password."""
        try:
            yield
        except asyncpg.DataError:
            raise
        except _UNAVAILABLE as error:
            raise AccountStoreUnavailableError(
                f"PostgreSQL at {self.location} is unavailable: {_describe_error(error)}."
            ) from None
        except _ACCESS_DENIED as error:
            raise AccountStoreError(
                f"PostgreSQL at {self.location} denied access: {_describe_error(error)}. "
                "Check the user, password and database in the URL of the account store."
            ) from None
        except _PREPARED_STATEMENT_ERRORS:
            raise AccountStoreError(
                f"A proxy in front of PostgreSQL at {self.location} does not support prepared "
                f"statements (PgBouncer before 1.21). Add ?{_CACHE_OPTION}=0 to the store's URL."
            ) from None
        except asyncpg.PostgresError as error:
            raise AccountStoreError(
                f"Cannot use PostgreSQL at {self.location}: {_describe_error(error)}"
            ) from None


def _describe_error(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error).partition("\n")[0]


async def _skip_reset(_: object) -> None:
    """Skip the reset of a connection: nothing is set on it, and this saves a round trip."""


# The address

_INVALID_URL: Final = (
    "Invalid PostgreSQL URL of the account store. Write "
    f"postgresql://user:password@host/database, and {ESCAPING_HINT}."
)
_HOST: Final = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^:\[\]]*)(?::[0-9]+)?")


def _parse_location(url: str) -> str:
    """Return host and database for messages; the rest may contain a password."""
    try:
        parts = urlsplit(url)
        queried = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        raise InputError(_INVALID_URL) from None
    _, _, hosts = parts.netloc.rpartition("@")
    if has_unescaped_delimiter(parts) or not all(map(_HOST.fullmatch, hosts.split(","))):
        raise InputError(_INVALID_URL)
    ports = [host.rpartition(":")[2] for host in hosts.split(",") if not host.endswith("]")]
    for port in [*ports, *queried.get("port", "").split(",")]:
        check_port(port)
    hosts = hosts or queried.get("host") or "the default host"
    return hosts + (parts.path if len(parts.path) > 1 else "")


def _split_cache_option(url: str) -> tuple[str, int]:
    """Return the URL without brim's own option, and the value of that option."""
    parts = urlsplit(url)
    settings = parse_qsl(parts.query, keep_blank_values=True)
    size = dict(settings).get(_CACHE_OPTION, "100")
    if not size.isdecimal():
        raise InputError(
            f"Invalid {_CACHE_OPTION} in the store's URL: not a number. 0 disables it."
        )
    rest = urlencode([(name, value) for name, value in settings if name != _CACHE_OPTION])
    return parts._replace(query=rest).geturl(), int(size)


# The schema

# In the catalog: `to_regclass` may not see a schema created while this waited for the lock.
_HAS_SCHEMA: Final = (
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
    "ON n.oid = c.relnamespace WHERE n.nspname = 'brim' AND c.relname = 'migrations')"
)


async def _migrate(connection: Any, location: str) -> None:
    # First without the lock: a role that must not create a schema can use an existing one.
    if await _read_version(connection, location) == SCHEMA_VERSION:
        return
    async with connection.transaction():
        await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
        for number in range(await _read_version(connection, location) + 1, SCHEMA_VERSION + 1):
            script = files("brim.gateway.accounts.postgres").joinpath(f"schema_{number}.sql")
            await connection.execute(script.read_text(encoding="utf-8"))
            await connection.execute("INSERT INTO brim.migrations VALUES ($1)", number)


async def _read_version(connection: Any, location: str) -> int:
    if not await connection.fetchval(_HAS_SCHEMA):
        return 0
    version = int(await connection.fetchval("SELECT max(version) FROM brim.migrations") or 0)
    if version > SCHEMA_VERSION:
        raise AccountStoreError(
            f"The schema in PostgreSQL at {location} is newer than this brim: version {version}, "
            f"supported {SCHEMA_VERSION}. Upgrade brim."
        )
    return version
