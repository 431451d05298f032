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

from brim.errors import BooksAwayError, BooksError, InputError
from brim.gateway.accounts.addresses import ESCAPES, check_port, is_cut

try:
    import asyncpg  # type: ignore[import-untyped]
except ImportError:
    raise InputError("PostgreSQL needs a driver: pip install 'brim[postgres]'") from None

T = TypeVar("T")
Line = Mapping[str, Any]

VERSION: Final = 1
"""The newest schema that is known here; each has its file, `postgres_1.sql` and so on."""
CONNECTIONS: Final = 10
PATIENCE: Final = 5.0
"""Seconds for a connection to be made or to become free."""
LONGEST: Final = 15.0
"""Seconds for one statement; a step takes a thousandth of one."""
REPORT: Final = 120.0
"""Seconds for summing up a ledger."""
_LOCK: Final = 0x6272696D
"""The name of the lock under which one replica changes the schema and the others wait."""
_CACHE: Final = "statement_cache_size"

_LOST: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # shutting down, starting up, a statement was ended
    asyncpg.ReadOnlySQLTransactionError,  # a standby, or a primary until a moment ago
)
_AWAY: Final = (
    *_LOST,
    asyncpg.InterfaceError,  # closed in the middle
    asyncpg.InternalClientError,
    asyncpg.InsufficientResourcesError,  # too many connections, a full disk
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
)
_REFUSED: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)
_MIXED_UP: Final = (
    asyncpg.DuplicatePreparedStatementError,
    asyncpg.InvalidSQLStatementNameError,
)


class Server:
    """A pool of connections that is made when it is first needed, and again after a failure."""

    def __init__(self, url: str) -> None:
        self.place = _place(url)
        self._url, self._cache = _without_cache(url)
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
            async with asyncio.timeout(PATIENCE):
                await pool.close()
        except (*_AWAY, asyncpg.PostgresError):
            pool.terminate()

    async def lines(self, statement: str, *values: object, timeout: float = LONGEST) -> list[Line]:
        return await self._ask(
            lambda connection: connection.fetch(statement, *values, timeout=timeout)
        )

    async def line(self, statement: str, *values: object) -> Line | None:
        return await self._ask(lambda connection: connection.fetchrow(statement, *values))

    async def value(self, statement: str, *values: object) -> Any:
        return await self._ask(lambda connection: connection.fetchval(statement, *values))

    async def _ask(self, question: Callable[[Any], Awaitable[T]]) -> T:
        async with self._telling():
            pool = await self._ready()
            async with pool.acquire(timeout=PATIENCE) as connection:
                try:
                    return await question(connection)
                except _LOST:
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
            async with self._telling(), pool.acquire(timeout=PATIENCE) as connection:
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
                max_size=CONNECTIONS,
                timeout=PATIENCE,
                command_timeout=LONGEST,
                statement_cache_size=self._cache,
                reset=_as_it_is,
            )
        except ValueError:
            raise InputError(_UNREADABLE) from None

    @asynccontextmanager
    async def _telling(self) -> AsyncIterator[None]:
        """What goes wrong, in brim's own words: no message of the driver's shows a password."""
        try:
            yield
        except asyncpg.DataError:
            raise
        except _AWAY as error:
            raise BooksAwayError(f"PostgreSQL at {self.place} is away ({_reason(error)})") from None
        except _REFUSED as error:
            raise BooksError(
                f"PostgreSQL at {self.place} refuses: {_reason(error)}. Look at the user, the "
                "password and the database in the URL of the store."
            ) from None
        except _MIXED_UP:
            raise BooksError(
                f"what stands before PostgreSQL at {self.place} mixes up prepared statements, as "
                f"PgBouncer before 1.21 does; add ?{_CACHE}=0 to the URL of the store"
            ) from None
        except asyncpg.PostgresError as error:
            raise BooksError(
                f"PostgreSQL at {self.place} cannot be used: {_reason(error)}"
            ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error).partition("\n")[0]


async def _as_it_is(_: object) -> None:
    """Nothing was changed on a connection, so nothing is set back: that saves a round trip."""


# The address

_UNREADABLE: Final = (
    "the PostgreSQL URL of the store cannot be read; write "
    f"postgresql://user:password@host/database, and {ESCAPES}"
)
_HOST: Final = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^:\[\]]*)(?::[0-9]+)?")


def _place(url: str) -> str:
    """The host and the database, which can be shown; the rest may hold a password."""
    try:
        parts = urlsplit(url)
        queried = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        raise InputError(_UNREADABLE) from None
    _, _, hosts = parts.netloc.rpartition("@")
    if is_cut(parts) or not all(map(_HOST.fullmatch, hosts.split(","))):
        raise InputError(_UNREADABLE)
    ports = [host.rpartition(":")[2] for host in hosts.split(",") if not host.endswith("]")]
    for port in [*ports, *queried.get("port", "").split(",")]:
        check_port(port)
    hosts = hosts or queried.get("host") or "its usual place"
    return hosts + (parts.path if len(parts.path) > 1 else "")


def _without_cache(url: str) -> tuple[str, int]:
    """A URL without the one setting that is brim's, and that setting."""
    parts = urlsplit(url)
    settings = parse_qsl(parts.query, keep_blank_values=True)
    size = dict(settings).get(_CACHE, "100")
    if not size.isdecimal():
        raise InputError(f"{_CACHE} in the URL of the store is a number; 0 prepares nothing")
    rest = urlencode([(name, value) for name, value in settings if name != _CACHE])
    return parts._replace(query=rest).geturl(), int(size)


# The schema

# By a look into the catalog: `to_regclass` may not see what was made while the lock was waited for.
_HAS_SCHEMA: Final = (
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
    "ON n.oid = c.relnamespace WHERE n.nspname = 'brim' AND c.relname = 'migrations')"
)


async def _migrate(connection: Any, place: str) -> None:
    # Looked at without the lock: a role without the right to change a schema may use one.
    if await _version(connection, place) == VERSION:
        return
    async with connection.transaction():
        await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
        for number in range(await _version(connection, place) + 1, VERSION + 1):
            script = files("brim.gateway.accounts.postgres").joinpath(f"schema_{number}.sql")
            await connection.execute(script.read_text(encoding="utf-8"))
            await connection.execute("INSERT INTO brim.migrations VALUES ($1)", number)


async def _version(connection: Any, place: str) -> int:
    if not await connection.fetchval(_HAS_SCHEMA):
        return 0
    version = int(await connection.fetchval("SELECT max(version) FROM brim.migrations") or 0)
    if version > VERSION:
        raise BooksError(
            f"the books in PostgreSQL at {place} were written by a newer brim (version {version}, "
            f"this one knows {VERSION}); upgrade this brim"
        )
    return version
