"""Runs scripts on a Redis server, over one connection.

Calls that arrive while others are in flight wait and are then pipelined, which costs a fraction of
sending them one by one. Redis runs one command at a time, so more connections would not be faster.

If a connection breaks, it is unknown whether a script ran. Every script is therefore idempotent,
and a call whose connection was lost is repeated once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from redis.asyncio.connection import AbstractConnection

from brim.errors import AccountStoreError, AccountStoreUnavailableError, InputError
from brim.gateway.accounts.reservations import Charge
from brim.gateway.accounts.store import ESCAPING_HINT, check_port, has_unescaped_delimiter

try:
    from redis import exceptions
    from redis.asyncio import ConnectionPool
except ImportError as missing:
    raise InputError("The Redis client is missing: pip install 'brim[redis]'") from missing


DEFAULT_PREFIX: Final = "brim"
TIMEOUT_SECONDS: Final = 5
"""Timeout of a call; `?socket_timeout=` in the URL changes it."""
_SCHEMES: Final = {"valkey": "redis", "valkeys": "rediss"}
_TRANSIENT: Final = re.compile(
    r"\b(LOADING|READONLY|CLUSTERDOWN|MASTERDOWN|OOM|BUSY|MISCONF|NOREPLICAS|TRYAGAIN)\b"
)
"""Error codes that a retry may avoid; errors of scripts contain them in the middle."""
_TRANSIENT_ERRORS: Final = (
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.OutOfMemoryError,
    exceptions.TryAgainError,
)
_ACCESS_DENIED: Final = (
    exceptions.AuthenticationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
    exceptions.AuthorizationError,
)
_CONNECTION_LOST: Final = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class _Command:
    arguments: tuple[str, ...]
    script: str = ""
    """The script that it runs; empty for a plain command."""
    reply: asyncio.Future[Any] = field(default_factory=asyncio.Future)


class ScriptRunner:
    """A server by its URL; `?prefix=` separates the keys of several stores."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self.location = _describe_location(parts)
            options = dict(parse_qsl(parts.query))
            # In braces: a cluster keeps all keys with the same hash tag on one server.
            self.prefix = "{" + options.pop("prefix", DEFAULT_PREFIX) + "}"
            self._timeout = float(options.pop("socket_timeout", TIMEOUT_SECONDS))
            scheme = _SCHEMES.get(parts.scheme, parts.scheme)
            plain = parts._replace(scheme=scheme, query=urlencode(options))
            self._connection = _create_connection(urlunsplit(plain))
        except InputError:
            raise
        except (ValueError, TypeError):
            # Python's message may contain a part of the password, so it is not shown.
            raise InputError(
                "Invalid Redis URL, or an invalid option in it. Write "
                f"redis://user:password@host:6379/0, and {ESCAPING_HINT}."
            ) from None
        self._waiting: list[_Command] = []
        self._sender: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"ScriptRunner({self.location})"

    async def run(self, script: str, *arguments: str) -> Any:
        """Run a script atomically."""
        sha, _ = _load_script(script)
        return await self._submit(_Command(("EVALSHA", sha, "1", self.prefix, *arguments), script))

    async def run_command(self, command: str, name: str, *arguments: str) -> Any:
        """Run a plain command on one of brim's keys."""
        return await self._submit(_Command((command, f"{self.prefix}:{name}", *arguments)))

    async def setting(self, name: str) -> str | None:
        """Return a setting of the server; None if reading it is not allowed."""
        try:
            found = await self._submit(_Command(("CONFIG", "GET", name)))
        except AccountStoreUnavailableError:
            raise
        except AccountStoreError:
            return None
        return str(found[1]) if len(found) == 2 else None

    async def close(self) -> None:
        if (sender := self._sender) is not None:
            await asyncio.wait([sender])
        await self._connection.disconnect()

    # Sending

    async def _submit(self, call: _Command) -> Any:
        self._waiting.append(call)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_waiting())
        return await call.reply

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                calls, self._waiting = self._waiting, []
                await self._send(calls)
        finally:
            self._sender = None

    async def _send(self, calls: list[_Command]) -> None:
        replies: list[Any] = [exceptions.ConnectionError("brim is stopping")] * len(calls)
        try:
            found = await self._exchange_with_retry([call.arguments for call in calls])
            replies = await self._with_scripts(calls, found)
        except (exceptions.RedisError, OSError) as problem:
            await self._connection.disconnect(nowait=True)
            replies = [problem] * len(calls)
        finally:
            self._resolve(calls, replies)

    def _resolve(self, calls: list[_Command], replies: list[Any]) -> None:
        for call, reply in zip(calls, replies, strict=True):
            if call.reply.done():
                continue
            if isinstance(reply, Exception):
                call.reply.set_exception(self._error(reply))
            else:
                call.reply.set_result(reply)

    async def _with_scripts(self, calls: list[_Command], replies: list[Any]) -> list[Any]:
        """Return the replies, after sending the texts of scripts that the server does not have."""
        missing = [
            number
            for number, reply in enumerate(replies)
            if isinstance(reply, exceptions.NoScriptError)
        ]
        if missing:
            texts = [
                ("EVAL", _load_script(calls[number].script)[1], *calls[number].arguments[2:])
                for number in missing
            ]
            for number, reply in zip(missing, await self._exchange_with_retry(texts), strict=True):
                replies[number] = reply
        return replies

    async def _exchange_with_retry(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        """Return replies or errors; if an open connection is broken, reconnect once."""
        try:
            async with asyncio.timeout(self._timeout):
                if self._connection.is_connected:
                    with suppress(exceptions.ConnectionError, OSError):
                        return await self._exchange(commands)
                    await self._connection.disconnect(nowait=True)
                return await self._exchange(commands)
        except TimeoutError:
            await self._connection.disconnect(nowait=True)
            raise exceptions.TimeoutError(f"no reply within {self._timeout:g} s") from None

    async def _exchange(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        connection = self._connection
        await connection.send_packed_command(connection.pack_commands(commands))
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except exceptions.ResponseError as error:
                replies.append(error)
        return replies

    def _error(self, problem: Exception) -> AccountStoreError:
        """Return the exception for an error of the server or the connection."""
        text = str(problem).rstrip(".") or type(problem).__name__
        if isinstance(problem, _ACCESS_DENIED):
            return AccountStoreError(
                f"Redis at {self.location} denied access: {text}. Check user and password."
            )
        if isinstance(problem, _CONNECTION_LOST):
            return AccountStoreUnavailableError(f"Redis at {self.location} is unavailable: {text}")
        if isinstance(problem, _TRANSIENT_ERRORS) or _TRANSIENT.search(text):
            return AccountStoreUnavailableError(f"Redis at {self.location} is not ready: {text}")
        return AccountStoreError(f"Redis at {self.location} rejected a command: {text}")


# Addresses


def _describe_location(parts: SplitResult) -> str:
    """Return host and port, without the password. Raise ValueError if they are invalid."""
    if parts.scheme == "unix":
        return parts.path
    if has_unescaped_delimiter(parts):
        raise ValueError
    check_port(parts.netloc.rpartition(":")[2])
    return f"{parts.hostname or 'localhost'}{f':{parts.port}' if parts.port else ''}"


def _create_connection(url: str) -> AbstractConnection:
    pool = ConnectionPool.from_url(
        url,
        decode_responses=True,
        encoding_errors="replace",
        protocol=2,
        socket_connect_timeout=TIMEOUT_SECONDS,
        # One timeout for a whole exchange costs less than one for each part of it.
        socket_timeout=None,
    )
    return pool.connection_class(**pool.connection_kwargs)


# Scripts


@cache
def _load_script(name: str) -> tuple[str, str]:
    """Return the hash and the text of a script."""
    folder = resources.files("brim.gateway.accounts.redis").joinpath("lua")
    parts = [folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("common", name)]
    text = "\n".join(parts)
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text


# Values as the scripts read and write them


def dump_charge(charge: Charge) -> str:
    return json.dumps(charge.figures, separators=(",", ":"))


def dump_list(names: Iterable[str]) -> str:
    """Return names as JSON whose only brackets are the first and last: scripts match them."""
    inner = json.dumps(tuple(names), ensure_ascii=False, separators=(",", ":"))[1:-1]
    return "[" + inner.replace("[", "\\u005b").replace("]", "\\u005d") + "]"


def pairs(flat: Sequence[str]) -> Iterable[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)
