"""One MCP server: the task that owns its connection, and what is said when it fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO
from urllib.parse import urlsplit

from brim.errors import (
    AuthenticationError,
    BrimError,
    ConnectionFailedError,
    InputError,
    ProviderError,
    ProviderTimeoutError,
)
from brim.shell.mcp.tools import Tool, ToolResult, result_of, tool_of

if TYPE_CHECKING:
    from pathlib import Path

    from mcp import Client

    from brim.config import McpConfig

GRACE: Final = 10.0
"""Seconds for a server to leave; the protocol's own steps to a kill take seven."""
MAX_PAGES: Final = 100
"""The most pages of a list of tools: one that never ends must not hang the shell."""
INHERITED: Final = (
    *("LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "VIRTUAL_ENV"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
)
_CLOSED: Final = -32000
_TIMED_OUT: Final = -32001
_INVALID: Final = -32600
"""What the protocol's library says of a closed connection, a silent and an unwilling server."""


@dataclass(frozen=True, slots=True)
class McpServerState:
    """How a server stands."""

    name: str
    fault: str | None
    """Why it is not connected; None while it is."""
    tools: tuple[Tool, ...]

    @property
    def is_connected(self) -> bool:
        return self.fault is None


class McpServer:
    """One server; everything here but reading its state happens in the portal's loop."""

    def __init__(
        self,
        name: str,
        config: McpConfig,
        *,
        log: Path | None,
        timeout: float,
        patience: float,
    ) -> None:
        self.name = name
        self.tools: tuple[Tool, ...] = ()
        """Kept when the server is gone, so that a call of one can be told why."""
        self._config = config
        self._log = log
        self._timeout = timeout
        self._patience = patience
        self._fault: str | None = "it is not there yet"
        self._client: Client | None = None
        self._owner: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._is_leaving = False
        self._is_stale = False
        self._is_garbled = False
        """Whether it printed what is no message of the protocol."""
        self._status = 200
        """Of the last answer over HTTP."""

    @property
    def state(self) -> McpServerState:
        return McpServerState(self.name, self._fault, () if self._fault else self.tools)

    async def open(self) -> None:
        """Start the task that holds the connection, and wait until it is there."""
        ready: asyncio.Future[BrimError | None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(ready))
        stopped = "it was stopped before it was there"
        try:
            await asyncio.wait([ready], timeout=self._timeout)
            fault = ready.result() if ready.done() else self._silence()
            stopped = self._unnamed(fault) if fault else stopped
            if fault is not None:
                raise fault
        finally:
            if self._fault is not None:
                self._fault = stopped
                await _cancel(self._owner)

    async def close(self) -> None:
        """Leave the connection, where it was entered."""
        self._is_leaving = True
        self._wake.set()
        if self._owner is not None:
            if self._client is not None:
                await asyncio.wait([self._owner], timeout=GRACE)
            await _cancel(self._owner)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        from mcp import MCPError

        if self._client is None:
            return ToolResult(
                f"the MCP server {self.name} is not there: {self._fault}", is_error=True
            )
        try:
            answer = await self._client.call_tool(
                name, dict(arguments), read_timeout_seconds=self._patience
            )
        except MCPError as error:
            return ToolResult(self._refusal(error), is_error=True)
        except Exception as error:  # an answer that the library cannot make sense of
            return ToolResult(f"{name} of {self.name}: {self._plain(error)}", is_error=True)
        return result_of(answer)

    def _refusal(self, error: Any) -> str:
        """What is said of a call that has no result; a closed connection is not used again."""
        if error.code == _TIMED_OUT:
            return f"{self.name} did not answer within {self._patience:g} seconds"
        is_forgotten = error.code == _INVALID and self._status == 404
        if error.code == _CLOSED or is_forgotten:
            self._fault = f"it ended, or hung up{self._hint()}"
            self._is_leaving, self._client = True, None
            self._wake.set()
            return f"the MCP server {self.name} is gone: {self._fault}"
        return f"{self.name} refuses: {self._plain(error)}"

    # The task that owns the connection

    async def _own(self, ready: asyncio.Future[BrimError | None]) -> None:
        fault: BrimError | None = None
        try:
            async with self._connected() as client:
                self.tools = await self._listed(client)
                self._client, self._fault = client, None
                ready.set_result(None)
                await self._attend(client)
        except Exception as error:  # whatever a stranger's program makes the library raise
            fault = self._why(error)
        finally:
            self._client = None
            if self._fault is None:
                self._fault = "it was left" if fault is None else self._unnamed(fault)
            if not ready.done():
                ready.set_result(fault or ProviderError(f"{self.name} ended"))

    async def _attend(self, client: Client) -> None:
        """Stay until it is time to leave; learn the tools anew when they change."""
        listener = asyncio.create_task(self._listen(client))
        try:
            while not self._is_leaving:
                if self._is_stale:
                    self._is_stale = False
                    with suppress(Exception):
                        self.tools = await self._listed(client)
                await self._wake.wait()
                self._wake.clear()
        finally:
            await _cancel(listener)

    async def _listen(self, client: Client) -> None:
        """Servers of the newer protocol say only to those who listen that their tools change."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        with suppress(Exception):  # it cannot be listened to: the tools are those of the start
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._note_change()

    async def _notice(self, message: object) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._note_change()
        elif isinstance(message, Exception):
            self._is_garbled = True

    def _note_change(self) -> None:
        self._is_stale = True
        self._wake.set()

    async def _listed(self, client: Client) -> tuple[Tool, ...]:
        found: dict[str, Tool] = {}
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="refresh")
            for listed in page.tools:
                found.setdefault(listed.name, tool_of(self.name, listed))
            cursor = page.next_cursor
            if cursor is None:
                break
        return tuple(found.values())

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        from mcp import Client, StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        config = self._config
        if config.command is not None:
            program = StdioServerParameters(
                command=config.command,
                args=[*config.args],
                env=_inherited_environment() | dict(config.env),
                encoding_error_handler="replace",
            )
            with self._complaints() as complaints:
                transport = stdio_client(program, errlog=complaints)
                async with Client(transport, message_handler=self._notice) as client:
                    yield client
            return
        async with self._http() as http:
            transport = streamable_http_client(config.url or "", http_client=http)
            async with Client(transport, message_handler=self._notice) as client:
                yield client

    def _complaints(self) -> TextIO:
        """Where its standard error goes; nobody else may read it, as it may hold secrets."""
        try:
            if self._log is not None:
                self._log.parent.mkdir(parents=True, exist_ok=True)
            return open(self._log or os.devnull, "a", encoding="utf-8", opener=_private)
        except OSError as error:
            raise InputError(f"the log {self._log} cannot be written: {error.strerror}") from None

    def _http(self) -> Any:
        import httpx2

        from brim.providers.endpoint import Endpoint
        from brim.providers.network import create_ssl_context, find_proxy

        async def note(response: httpx2.Response) -> None:
            self._status = response.status_code

        address = urlsplit(self._config.url or "")
        proxy = find_proxy(Endpoint(f"{address.scheme}://{address.netloc}"))
        return httpx2.AsyncClient(
            headers=dict(self._config.headers),
            # A tool that takes long is the protocol's affair; this is only for dead lines.
            timeout=httpx2.Timeout(self._timeout, read=self._patience + self._timeout),
            proxy=httpx2.Proxy(proxy.url, headers=dict(proxy.headers)) if proxy else None,
            verify=create_ssl_context(),
            trust_env=False,
            event_hooks={"response": [note]},
        )

    # What went wrong, in words

    def _why(self, error: Exception) -> BrimError:
        """The error that a user sees in place of the library's."""
        import httpx2
        from mcp import MCPError

        cause = _cause(error)
        config, place = self._config, self._place()
        match cause:
            case BrimError():
                return cause
            case FileNotFoundError() if config.command:
                return InputError(f"{self.name}: there is no command {config.command}")
            case OSError() | ValueError() if config.command:
                said = self._plain(cause)
                return InputError(f"{self.name}: {config.command} cannot be started: {said}")
            case httpx2.TransportError():
                return ConnectionFailedError(f"{self.name}: {place} cannot be reached")
            case MCPError() if config.url and self._status in (401, 403):
                return AuthenticationError(
                    f"{self.name}: {place} wants a key, or another one; it goes into "
                    f"mcp.{self.name}.headers",
                    status=self._status,
                )
            case MCPError() if config.url and self._status >= 400:
                return ProviderError(
                    f"{self.name}: {place} answers with status {self._status}; "
                    "is this the whole address of an MCP server?",
                    status=self._status,
                )
            case MCPError() if cause.code == _CLOSED and not self._is_garbled:
                return ConnectionFailedError(f"{self.name}: {place} ended at once{self._hint()}")
            case _ if self._is_garbled:
                return self._silence()
            case _:
                said = self._plain(cause)
                return ProviderError(f"{self.name}: {place} is no MCP server, it seems: {said}")

    def _silence(self) -> BrimError:
        if self._is_garbled:
            return ProviderError(
                f"{self.name}: {self._place()} prints something else than the protocol's messages; "
                "is it an MCP server?"
            )
        return ProviderTimeoutError(
            f"{self.name}: {self._place()} said nothing for {self._timeout:g} seconds{self._hint()}"
        )

    def _unnamed(self, fault: BrimError) -> str:
        """The sentence as it stands beside the server's name."""
        return str(fault).removeprefix(f"{self.name}: ")

    def _place(self) -> str:
        """The program, or the host: an address can hold a secret after it."""
        return self._config.command or urlsplit(self._config.url or "").netloc

    def _hint(self) -> str:
        return f"; {self._log} may say why" if self._log and self._config.command else ""

    def _plain(self, error: BaseException) -> str:
        """One line of what somebody else says, without what was given to it in confidence."""
        said = " ".join((str(error) or type(error).__name__).split())[:300]
        for secret in (*self._config.env.values(), *self._config.headers.values()):
            said = said.replace(secret, "…") if len(secret) > 3 else said
        return said


def _inherited_environment() -> dict[str, str]:
    """What a program needs to find its way, beside what the library hands on (PATH, HOME, …).

    The rest of the environment is not for strangers: the keys of models are in it.
    """
    return {name: value for name in INHERITED if (value := os.environ.get(name)) is not None}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=GRACE)


def _cause(error: BaseException) -> BaseException:
    """The error inside of groups; that a connection was closed is only what followed from it."""
    from mcp import MCPError

    causes = [*_causes(error)]
    return next((cause for cause in causes if not isinstance(cause, MCPError)), causes[0])


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error
