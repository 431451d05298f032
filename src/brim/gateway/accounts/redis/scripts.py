"""Calls to a Redis server: scripts that are run whole, over one connection.

Calls that come while others are under way wait for these and then go out together, which costs a
fraction of one after the other. Redis does one thing at a time anyway, so more connections would
not make it faster.

A connection that breaks in the middle leaves open whether a script was run. Every script may
therefore come twice, and a call whose connection was lost is made once more.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from brim.errors import AccountStoreError, AccountStoreUnavailableError, InputError
from brim.gateway.accounts.addresses import ESCAPING_HINT, check_port, has_unescaped_delimiter

try:
    from redis import exceptions
    from redis.asyncio import ConnectionPool
except ImportError as missing:
    raise InputError(
        "redis:// needs a package that is not installed: pip install 'brim[redis]'"
    ) from missing

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

DEFAULT_PREFIX: Final = "brim"
TIMEOUT_SECONDS: Final = 5
"""How long an answer is waited for; `?socket_timeout=` in the URL changes it."""
_SCHEMES: Final = {"valkey": "redis", "valkeys": "rediss"}
_TRANSIENT: Final = re.compile(
    r"\b(LOADING|READONLY|CLUSTERDOWN|MASTERDOWN|OOM|BUSY|MISCONF|NOREPLICAS|TRYAGAIN)\b"
)
"""Answers that a later try may not get. A script's errors have them somewhere in their middle."""
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
    words: tuple[str, ...]
    script: str = ""
    """The step that it runs, if it runs one."""
    answer: asyncio.Future[Any] = field(default_factory=asyncio.Future)


class ScriptRunner:
    """One server, by its URL. `?prefix=` in it sets its names apart from those of another brim."""

    def __init__(self, url: str) -> None:
        try:
            address = _Address.read(url)
            self._connection = _create_connection(address.url)
        except InputError:
            raise
        except (ValueError, TypeError):
            # What Python says of it may hold a part of the password, so it is not repeated.
            raise InputError(
                "the Redis URL, or an option after its ?, cannot be read; write "
                f"redis://user:password@host:6379/0, and {ESCAPING_HINT}"
            ) from None
        self.place, self.prefix = address.place, address.prefix
        self._patience = address.patience
        self._waiting: list[_Command] = []
        self._sender: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"RedisCalls({self.place})"

    async def run(self, script: str, *words: str) -> Any:
        """Run a step, whole or not at all."""
        sha, _ = _load_script(script)
        return await self._answer(_Command(("EVALSHA", sha, "1", self.prefix, *words), script))

    async def ask(self, command: str, name: str, *words: str) -> Any:
        """Give a plain command about one of brim's names."""
        return await self._answer(_Command((command, f"{self.prefix}:{name}", *words)))

    async def setting(self, name: str) -> str | None:
        """A setting of the server; None where it does not tell."""
        try:
            found = await self._answer(_Command(("CONFIG", "GET", name)))
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

    async def _answer(self, call: _Command) -> Any:
        self._waiting.append(call)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_waiting())
        return await call.answer

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                calls, self._waiting = self._waiting, []
                await self._send(calls)
        finally:
            self._sender = None

    async def _send(self, calls: list[_Command]) -> None:
        answers: list[Any] = [exceptions.ConnectionError("brim stops")] * len(calls)
        try:
            found = await self._exchange_twice([call.words for call in calls])
            answers = await self._with_scripts(calls, found)
        except (exceptions.RedisError, OSError) as problem:
            await self._connection.disconnect(nowait=True)
            answers = [problem] * len(calls)
        finally:
            self._give(calls, answers)

    def _give(self, calls: list[_Command], answers: list[Any]) -> None:
        for call, answer in zip(calls, answers, strict=True):
            if call.answer.done():
                continue
            if isinstance(answer, Exception):
                call.answer.set_exception(self._error(answer))
            else:
                call.answer.set_result(answer)

    async def _with_scripts(self, calls: list[_Command], answers: list[Any]) -> list[Any]:
        """The answers, once the server was given the texts of scripts that it does not have."""
        missing = [
            number
            for number, answer in enumerate(answers)
            if isinstance(answer, exceptions.NoScriptError)
        ]
        if missing:
            texts = [_as_eval(calls[number]) for number in missing]
            for number, answer in zip(missing, await self._exchange_twice(texts), strict=True):
                answers[number] = answer
        return answers

    async def _exchange_twice(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        """Answers or errors; a connection that was open before may be dead, and is made anew."""
        try:
            async with asyncio.timeout(self._patience):
                if self._connection.is_connected:
                    with suppress(exceptions.ConnectionError, OSError):
                        return await self._exchange(commands)
                    await self._connection.disconnect(nowait=True)
                return await self._exchange(commands)
        except TimeoutError:
            await self._connection.disconnect(nowait=True)
            raise exceptions.TimeoutError(f"no answer in {self._patience:g} s") from None

    async def _exchange(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        connection = self._connection
        await connection.send_packed_command(connection.pack_commands(commands))
        answers: list[Any] = []
        for _ in commands:
            try:
                answers.append(await connection.read_response())
            except exceptions.ResponseError as refused:
                answers.append(refused)
        return answers

    def _error(self, problem: Exception) -> AccountStoreError:
        """What a server's error, or its silence, means for the books."""
        said = str(problem) or type(problem).__name__
        if isinstance(problem, _ACCESS_DENIED):
            return AccountStoreError(
                f"Redis at {self.place} refuses the user or the password in its URL: {said}"
            )
        if isinstance(problem, _CONNECTION_LOST):
            return AccountStoreUnavailableError(f"Redis at {self.place} cannot be reached: {said}")
        if isinstance(problem, _TRANSIENT_ERRORS) or _TRANSIENT.search(said):
            return AccountStoreUnavailableError(
                f"Redis at {self.place} cannot keep books now: {said}"
            )
        return AccountStoreError(f"Redis at {self.place} refuses what brim needs: {said}")


# Addresses


@dataclass(frozen=True, slots=True)
class _Address:
    place: str
    """Who is meant, without the password."""
    prefix: str
    patience: float
    url: str
    """What the client is given."""

    @classmethod
    def read(cls, url: str) -> _Address:
        parts = urlsplit(url)
        if parts.scheme != "unix":
            if has_unescaped_delimiter(parts):
                raise ValueError
            check_port(parts.netloc.rpartition(":")[2])
        port = f":{parts.port}" if parts.port else ""
        place = parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}{port}"
        options = dict(parse_qsl(parts.query))
        # In braces: a cluster keeps all names with the same word in braces on one server.
        prefix = "{" + options.pop("prefix", DEFAULT_PREFIX) + "}"
        patience = float(options.pop("socket_timeout", TIMEOUT_SECONDS))
        scheme = _SCHEMES.get(parts.scheme, parts.scheme)
        plain = urlunsplit(parts._replace(scheme=scheme, query=urlencode(options)))
        return cls(place, prefix, patience, plain)


def _create_connection(url: str) -> AbstractConnection:
    pool = ConnectionPool.from_url(
        url,
        decode_responses=True,
        encoding_errors="replace",
        protocol=2,
        socket_connect_timeout=TIMEOUT_SECONDS,
        # One clock over a whole exchange costs a fraction of one over each part of it.
        socket_timeout=None,
    )
    return pool.connection_class(**pool.connection_kwargs)


# Scripts


@cache
def _load_script(name: str) -> tuple[str, str]:
    """A step's script: its hash, by which a server knows it, and its text."""
    folder = resources.files("brim.gateway.accounts.redis").joinpath("lua")
    text = "\n".join(
        folder.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in ("books", name)
    )
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text


def _as_eval(call: _Command) -> tuple[str, ...]:
    _, text = _load_script(call.script)
    return ("EVAL", text, *call.words[2:])
