"""A PostgreSQL server: reached through a pool, brought up to date, or said to be away.

Every step is one statement, and so its own transaction; nothing is kept on a connection between
two of them. So PgBouncer may stand between, also in transaction mode: from 1.21 on it knows
prepared statements (`max_prepared_statements`, on by default from 1.24). For an older one, or one
where they are off, add `?statement_cache_size=0` to the URL: then each step takes two round trips.
Of several hosts (`postgresql://one,two/brim?target_session_attrs=primary`) the one that takes
writes is looked for at every new connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from brim.errors import AccountStoreError, AccountStoreUnavailableError, InputError
from brim.gateway.accounts.addresses import ESCAPING_HINT, check_port, has_unescaped_delimiter

try:
    import asyncpg  # type: ignore[import-untyped]
except ImportError:
    raise InputError("PostgreSQL needs a driver: pip install 'brim[postgres]'") from None

T = TypeVar("T")
ResultRow = Mapping[str, Any]

SCHEMA_VERSION: Final = 1
"""The newest schema that is known here; each has its file, `postgres_1.sql` and so on."""
MAX_CONNECTIONS: Final = 10
CONNECT_SECONDS: Final = 5.0
"""Seconds for a connection to be made or to become free."""
STATEMENT_SECONDS: Final = 15.0
"""Seconds for one statement; a step takes a thousandth of one."""
REPORT_SECONDS: Final = 120.0
"""Seconds for summing up a ledger."""
_LOCK: Final = 0x6272696D
"""The name of the lock under which one replica changes the schema and the others wait."""
_CACHE_OPTION: Final = "statement_cache_size"

_CONNECTION_LOST: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # shutting down, starting up, a statement was ended
    asyncpg.ReadOnlySQLTransactionError,  # a standby, or a primary until a moment ago
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
    """A pool of connections that is made when it is first needed, and again after a failure."""

    def __init__(self, url: str) -> None:
        self.place = _parse_location(url)
        self._url, self._cache = _split_cache_option(url)
        self._pool: Any = None
        self._opening: asyncio.Task[Any] | None = None

    def __repr__(self) -> str:
        return f"<PostgreSQL at {self.place}>"

    async def open(self) -> None:
        await self._ready()

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await pool.close()
        except (*_UNAVAILABLE, asyncpg.PostgresError):
            pool.terminate()

    async def lines(
        self, statement: str, *values: object, timeout: float = STATEMENT_SECONDS
    ) -> list[ResultRow]:
        return await self._ask(
            lambda connection: connection.fetch(statement, *values, timeout=timeout)
        )

    async def line(self, statement: str, *values: object) -> ResultRow | None:
        return await self._ask(lambda connection: connection.fetchrow(statement, *values))

    async def value(self, statement: str, *values: object) -> Any:
        return await self._ask(lambda connection: connection.fetchval(statement, *values))

    async def _ask(self, question: Callable[[Any], Awaitable[T]]) -> T:
        async with self._telling():
            pool = await self._ready()
            async with pool.acquire(timeout=CONNECT_SECONDS) as connection:
                try:
                    return await question(connection)
                except _CONNECTION_LOST:
                    # The others may be just as dead, or lead to the wrong server.
                    await pool.expire_connections()
                    raise

    async def _ready(self) -> Any:
        """The pool. Whoever comes while it is being made waits for the same try."""
        if self._pool is not None:
            return self._pool
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, opening: asyncio.Task[Any]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._pool = opening.result()

    async def _open(self) -> Any:
        async with self._telling():
            pool = await self._pooled()
        try:
            async with self._telling(), pool.acquire(timeout=CONNECT_SECONDS) as connection:
                await _migrate(connection, self.place)
        except BaseException:
            pool.terminate()
            raise
        return pool

    async def _pooled(self) -> Any:
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
    async def _telling(self) -> AsyncIterator[None]:
        """What goes wrong, in brim's own words: no message of the driver's shows a password."""
        try:
            yield
        except asyncpg.DataError:
            raise
        except _UNAVAILABLE as error:
            raise AccountStoreUnavailableError(
                f"PostgreSQL at {self.place} is away ({_describe_error(error)})"
            ) from None
        except _ACCESS_DENIED as error:
            raise AccountStoreError(
                f"PostgreSQL at {self.place} denied access: {_describe_error(error)}. "
                "Check the user, password and database in the URL of the account store."
            ) from None
        except _PREPARED_STATEMENT_ERRORS:
            raise AccountStoreError(
                f"what stands before PostgreSQL at {self.place} mixes up prepared statements, as "
                f"PgBouncer before 1.21 does; add ?{_CACHE_OPTION}=0 to the URL of the store"
            ) from None
        except asyncpg.PostgresError as error:
            raise AccountStoreError(
                f"PostgreSQL at {self.place} cannot be used: {_describe_error(error)}"
            ) from None


def _describe_error(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error).partition("\n")[0]


async def _skip_reset(_: object) -> None:
    """Nothing was changed on a connection, so nothing is set back: that saves a round trip."""


# The address

_INVALID_URL: Final = (
    "the PostgreSQL URL of the store cannot be read; write "
    f"postgresql://user:password@host/database, and {ESCAPING_HINT}"
)
_HOST: Final = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^:\[\]]*)(?::[0-9]+)?")


def _parse_location(url: str) -> str:
    """The host and the database, which can be shown; the rest may hold a password."""
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
    hosts = hosts or queried.get("host") or "its usual place"
    return hosts + (parts.path if len(parts.path) > 1 else "")


def _split_cache_option(url: str) -> tuple[str, int]:
    """A URL without the one setting that is brim's, and that setting."""
    parts = urlsplit(url)
    settings = parse_qsl(parts.query, keep_blank_values=True)
    size = dict(settings).get(_CACHE_OPTION, "100")
    if not size.isdecimal():
        raise InputError(f"{_CACHE_OPTION} in the URL of the store is a number; 0 prepares nothing")
    rest = urlencode([(name, value) for name, value in settings if name != _CACHE_OPTION])
    return parts._replace(query=rest).geturl(), int(size)


# The schema

# By a look into the catalog: `to_regclass` may not see what was made while the lock was waited for.
_HAS_SCHEMA: Final = (
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
    "ON n.oid = c.relnamespace WHERE n.nspname = 'brim' AND c.relname = 'migrations')"
)


async def _migrate(connection: Any, place: str) -> None:
    # Looked at without the lock: a role without the right to change a schema may use one.
    if await _read_version(connection, place) == SCHEMA_VERSION:
        return
    async with connection.transaction():
        await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
        for number in range(await _read_version(connection, place) + 1, SCHEMA_VERSION + 1):
            script = files("brim.gateway.accounts.postgres").joinpath(f"schema_{number}.sql")
            await connection.execute(script.read_text(encoding="utf-8"))
            await connection.execute("INSERT INTO brim.migrations VALUES ($1)", number)


async def _read_version(connection: Any, place: str) -> int:
    if not await connection.fetchval(_HAS_SCHEMA):
        return 0
    version = int(await connection.fetchval("SELECT max(version) FROM brim.migrations") or 0)
    if version > SCHEMA_VERSION:
        raise AccountStoreError(
            f"the books in PostgreSQL at {place} were written by a newer brim (version {version}, "
            f"this one knows {SCHEMA_VERSION}); upgrade this brim"
        )
    return version
