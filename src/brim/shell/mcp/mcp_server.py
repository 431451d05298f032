"""One MCP server: the task that owns its connection, and its errors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO
from urllib.parse import urlsplit

from brim.config import McpConfig, open_private
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
    from mcp import Client

GRACE: Final = 10.0
"""Seconds for a server to exit; the protocol's own steps until a kill take seven."""
MAX_PAGES: Final = 100
"""Maximum pages of a tool list: an endless one must not hang the shell."""
INHERITED: Final = (
    *("LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "VIRTUAL_ENV"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
)
"""Variables that programs need besides those that the library passes (PATH, HOME, …). The rest of
the environment is not passed: it contains API keys."""
_CLOSED: Final = -32000
_TIMED_OUT: Final = -32001
_INVALID: Final = -32600
"""Error codes of the library for a closed connection, a timeout and an invalid request."""


@dataclass(slots=True, eq=False)
class McpServer:
    """One server; everything except reading its state runs in the portal's event loop."""

    name: str
    config: McpConfig
    _: KW_ONLY
    log: Path | None
    timeout: float
    tool_timeout: float
    error: str | None = "it is not connected yet"
    """Why it is not connected; None if it is."""
    known_tools: tuple[Tool, ...] = ()
    """Kept after the server has ended, so that a call can report why."""
    _client: Client | None = None
    _owner: asyncio.Task[None] | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _is_leaving: bool = False
    _is_stale: bool = False
    _has_other_output: bool = False
    """Whether it printed something other than messages of the protocol."""
    _status: int = 200
    """Status of the last HTTP response."""

    @property
    def is_connected(self) -> bool:
        return self.error is None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that can be called now."""
        return self.known_tools if self.is_connected else ()

    async def open(self) -> None:
        """Start the task that owns the connection, and wait until it is open."""
        ready: asyncio.Future[BrimError | None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._run(ready))
        stopped = "it was stopped before it was connected"
        try:
            await asyncio.wait([ready], timeout=self.timeout)
            problem = ready.result() if ready.done() else self._name_error(*self._explain_silence())
            stopped = self._remove_name(problem) if problem else stopped
            if problem is not None:
                raise problem
        finally:
            if self.error is not None:
                self.error = stopped
                await _cancel(self._owner)

    async def close(self) -> None:
        """Close the connection in the task that opened it."""
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
                f"the MCP server {self.name} is not connected: {self.error}", is_error=True
            )
        try:
            answer = await self._client.call_tool(
                name, dict(arguments), read_timeout_seconds=self.tool_timeout
            )
        except MCPError as error:
            return ToolResult(self._call_error(error), is_error=True)
        except Exception as error:  # a response that the library cannot parse
            return ToolResult(f"{name} of {self.name}: {self._redact(error)}", is_error=True)
        return result_of(answer)

    def _call_error(self, error: Any) -> str:
        """Describe why a call has no result; a closed connection is not used again."""
        if error.code == _TIMED_OUT:
            return f"{self.name} did not respond within {self.tool_timeout:g} seconds"
        is_session_lost = error.code == _INVALID and self._status == 404
        if error.code == _CLOSED or is_session_lost:
            self.error = f"it ended or closed the connection{self._hint()}"
            self._is_leaving, self._client = True, None
            self._wake.set()
            return f"the MCP server {self.name} was disconnected: {self.error}"
        return f"{self.name} returned an error: {self._redact(error)}"

    # The task that owns the connection

    async def _run(self, ready: asyncio.Future[BrimError | None]) -> None:
        problem: BrimError | None = None
        try:
            async with self._connect() as client:
                self.known_tools = await self._list_tools(client)
                self._client, self.error = client, None
                ready.set_result(None)
                await self._keep_open(client)
        except Exception as error:  # anything that the library raises because of the server
            cause = _cause(error)
            if not isinstance(cause, BrimError):
                cause = self._name_error(*self._explain(cause))
            problem = cause
        finally:
            self._client = None
            if self.error is None:
                self.error = "it was closed" if problem is None else self._remove_name(problem)
            if not ready.done():
                ready.set_result(problem or ProviderError(f"{self.name} ended"))

    async def _keep_open(self, client: Client) -> None:
        """Keep the connection until it is closed; list the tools again when they change."""
        listener = asyncio.create_task(self._listen(client))
        try:
            while not self._is_leaving:
                if self._is_stale:
                    self._is_stale = False
                    with suppress(Exception):
                        self.known_tools = await self._list_tools(client)
                await self._wake.wait()
                self._wake.clear()
        finally:
            await _cancel(listener)

    async def _listen(self, client: Client) -> None:
        """Subscribe to tool changes, as newer versions of the protocol require."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        with suppress(Exception):  # not supported: the tools stay those of the start
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._note_change()

    async def _handle_message(self, message: object) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._note_change()
        elif isinstance(message, Exception):
            self._has_other_output = True

    def _note_change(self) -> None:
        self._is_stale = True
        self._wake.set()

    async def _list_tools(self, client: Client) -> tuple[Tool, ...]:
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
    async def _connect(self) -> AsyncIterator[Client]:
        from mcp import Client, StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        config = self.config
        if config.command is not None:
            inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
            program = StdioServerParameters(
                command=config.command,
                args=[*config.args],
                env=inherited | dict(config.env),
                encoding_error_handler="replace",
            )
            with self._open_log() as log:
                transport = stdio_client(program, errlog=log)
                async with Client(transport, message_handler=self._handle_message) as client:
                    yield client
            return
        async with self._http() as http:
            transport = streamable_http_client(config.url or "", http_client=http)
            async with Client(transport, message_handler=self._handle_message) as client:
                yield client

    def _open_log(self) -> TextIO:
        """Open the log for its standard error; it may contain secrets, so it is private."""
        try:
            if self.log is not None:
                self.log.parent.mkdir(parents=True, exist_ok=True)
            return open(self.log or os.devnull, "a", encoding="utf-8", opener=open_private)
        except OSError as error:
            raise InputError(f"The log cannot be written: {self.log}: {error.strerror}.") from None

    def _http(self) -> Any:
        import httpx2

        from brim.providers.endpoint import Endpoint
        from brim.providers.network import create_ssl_context, find_proxy

        async def note(response: httpx2.Response) -> None:
            self._status = response.status_code

        address = urlsplit(self.config.url or "")
        proxy = find_proxy(Endpoint(f"{address.scheme}://{address.netloc}"))
        return httpx2.AsyncClient(
            headers=dict(self.config.headers),
            # The protocol limits the time of tools; this only detects dead connections.
            timeout=httpx2.Timeout(self.timeout, read=self.tool_timeout + self.timeout),
            proxy=httpx2.Proxy(proxy.url, headers=dict(proxy.headers)) if proxy else None,
            verify=create_ssl_context(),
            trust_env=False,
            event_hooks={"response": [note]},
        )

    # Errors

    def _name_error(self, kind: type[BrimError], text: str) -> BrimError:
        problem = kind(f"{self.name}: {text}")
        if isinstance(problem, ProviderError) and self._status >= 400:
            problem.status = self._status
        return problem

    def _explain(self, cause: BaseException) -> tuple[type[BrimError], str]:
        import httpx2
        from mcp import MCPError

        config, place = self.config, self._place()
        match cause:
            case FileNotFoundError() if config.command:
                hint = ". Put its arguments in `args`." if " " in config.command else ""
                return InputError, f"command not found: {config.command}{hint}"
            case OSError() | ValueError() if config.command:
                return InputError, f"{config.command} cannot be started: {self._redact(cause)}"
            case httpx2.TransportError():
                return ConnectionFailedError, f"{place} cannot be reached"
            case MCPError() if config.url and self._status in (401, 403):
                advice = f"Set it in mcp.{self.name}.headers"
                return AuthenticationError, f"{place} rejected the key. {advice}"
            case MCPError() if config.url and self._status >= 400:
                advice = "Check that the URL is that of an MCP server."
                return ProviderError, f"{place} responded with status {self._status}. {advice}"
            case MCPError() if cause.code == _CLOSED and not self._has_other_output:
                return ConnectionFailedError, f"{place} ended immediately{self._hint()}"
            case _ if self._has_other_output:
                return self._explain_silence()
            case _:
                reason = self._redact(cause)
                return ProviderError, f"{place} does not seem to be an MCP server: {reason}"

    def _explain_silence(self) -> tuple[type[BrimError], str]:
        place = self._place()
        if self._has_other_output:
            advice = "Check that it is an MCP server."
            return ProviderError, f"{place} prints something other than MCP messages. {advice}"
        text = f"{place} timed out after {self.timeout:g} seconds{self._hint()}"
        return ProviderTimeoutError, text

    def _remove_name(self, problem: BrimError) -> str:
        """Return the message without the server's name."""
        return str(problem).removeprefix(f"{self.name}: ")

    def _place(self) -> str:
        """Return the program or the host; the rest of a URL may contain a secret."""
        return self.config.command or urlsplit(self.config.url or "").netloc

    def _hint(self) -> str:
        return f"; see {self.log}" if self.log and self.config.command else ""

    def _redact(self, error: BaseException) -> str:
        """Return one line of a server's message, without the configured secrets."""
        text = " ".join((str(error) or type(error).__name__).split())[:300]
        for secret in (*self.config.env.values(), *self.config.headers.values()):
            text = text.replace(secret, "…") if len(secret) > 3 else text
        return text


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=GRACE)


def _cause(error: BaseException) -> BaseException:
    """Return the root error inside groups; a closed connection is only its consequence."""
    from mcp import MCPError

    causes = [*_causes(error)]
    return next((cause for cause in causes if not isinstance(cause, MCPError)), causes[0])


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error
