"""The MCP servers of a shell, with a blocking interface.

A portal runs one task per server, which alone opens and closes its connection. The standard error
of the servers goes to a log, because the terminal belongs to the user.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Self

from brim.config import McpConfig
from brim.errors import ConnectionFailedError, InputError
from brim.providers.sync import Portal

if TYPE_CHECKING:
    from brim.shell.mcp.mcp_server import McpServer
    from brim.shell.mcp.tools import ModelKey, Size, Tool, ToolOffer, ToolResult

CONNECT_TIMEOUT: Final = 15.0
"""Seconds that a server may take to connect."""
TOOL_TIMEOUT: Final = 600.0
"""Seconds that a tool may take."""


class McpServers:
    """The MCP servers of a shell; use it in a `with` statement, or call `close`.

    Several threads may connect servers concurrently.
    """

    def __init__(
        self,
        *,
        log: Path | None = None,
        timeout: float = CONNECT_TIMEOUT,
        tool_timeout: float = TOOL_TIMEOUT,
    ) -> None:
        """Append the servers' standard error to `log`; without it, it is discarded.

        A server has `timeout` seconds to connect, and a tool `tool_timeout` seconds to finish.
        """
        self._log = log
        self._timeout, self._tool_timeout = timeout, tool_timeout
        self._servers: dict[str, McpServer] = {}
        self._lock = Lock()
        self._portal: Portal | None = None
        self._listener: logging.Handler | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, name: str, config: McpConfig) -> tuple[Tool, ...]:
        """Connect a server and return its tools; a server of that name is replaced."""
        if (problem := config.find_problem()) is not None:
            raise InputError(f"MCP server {name} {problem}.")
        if find_spec("mcp") is None:
            raise InputError("MCP servers need the package mcp. Run: pip install 'brim[shell]'")
        before = self._servers.get(name)
        server = self._create(name, config)
        self._servers[name] = server  # now, to keep the order of the calls
        portal = self._get_portal()
        try:
            if before is not None:
                portal.run(before.close())
            portal.run(server.open())
        except (CancelledError, RuntimeError):  # the portal was closed meanwhile
            raise ConnectionFailedError(f"{name}: all servers were closed meanwhile") from None
        return server.known_tools

    def _create(self, name: str, config: McpConfig) -> McpServer:
        from brim.shell.mcp.mcp_server import McpServer

        return McpServer(
            name, config, log=self._log, timeout=self._timeout, tool_timeout=self._tool_timeout
        )

    def disconnect(self, name: str) -> None:
        if name not in self._servers:
            known = ", ".join(self._servers) or "none"
            raise InputError(f"MCP server not connected: {name}. Connected: {known}.")
        self._get_portal().run(self._servers.pop(name).close())

    def states(self) -> tuple[McpServer, ...]:
        """Return every requested server, in that order, connected or not."""
        return (*self._servers.values(),)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of the connected servers, in their order."""
        return tuple(tool for server in self.states() for tool in server.tools)

    def call(self, offered: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool by the name that the model uses; errors are returned as results.

        Ctrl-C cancels the call and is raised; the server stays connected.
        """
        for server in self.states():
            for tool in server.known_tools:
                if tool.offered == offered:
                    return self._get_portal().run(server.call(tool.name, arguments))
        from brim.shell.mcp.tools import ToolResult

        known = ", ".join(tool.offered for tool in self.tools) or "none"
        return ToolResult(f"There is no tool {offered}. Available: {known}.", is_error=True)

    def close(self) -> None:
        """Close all connections, and end the processes that were started for them."""
        servers, self._servers = self._servers, {}
        portal, self._portal = self._portal, None
        listener, self._listener = self._listener, None
        try:
            if portal is not None:
                portal.run(_close_all([*servers.values()]))
                portal.close()
        finally:
            if listener is not None:
                logging.getLogger("mcp").removeHandler(listener)
                listener.close()

    def _get_portal(self) -> Portal:
        with self._lock:
            if self._portal is None:
                self._portal = Portal()
                # Without a handler, the library would log to the terminal.
                log = logging.FileHandler(self._log, delay=True) if self._log else None
                self._listener = log or logging.NullHandler()
                logging.getLogger("mcp").addHandler(self._listener)
            return self._portal


async def _close_all(servers: Sequence[McpServer]) -> None:
    await asyncio.gather(*(server.close() for server in servers))


@dataclass(slots=True)
class ToolOffers:
    """The MCP servers, and which of their tools each model is offered.

    An offer does not change while the tools stay the same, even if the limit of the model moves:
    definitions are at the beginning of a request, which should stay cacheable.
    """

    servers: McpServers
    current: ToolOffer | None = None
    """The offer of the next request; None until a server is connected."""
    _offers: dict[ModelKey, ToolOffer] = field(default_factory=dict)
    _tools: tuple[Tool, ...] = ()

    def choose(self, model: ModelKey, *, room: int, size: Size) -> bool:
        """Choose the offer for a model; return whether it differs from the current one."""
        from brim.shell.mcp.tools import choose_tools

        tools = self.servers.tools
        if tools != self._tools:
            self._offers.clear()
            self._tools = tools
        if model not in self._offers:
            self._offers[model] = choose_tools(tools, room=room, size=size)
        before, self.current = self.current, self._offers[model]
        return self.current is not before
