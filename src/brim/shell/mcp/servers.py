"""MCP servers: connected, asked for their tools, called and let go of.

The shell waits, the protocol does not: a portal runs one task for each server, which alone enters
and leaves its connection. What a server writes to its standard error goes to a log, because the
terminal belongs to the user.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Self

from brim.errors import ConnectionFailedError, InputError
from brim.shell.mcp.mcp_server import McpServer, McpServerState
from brim.shell.mcp.tools import Tool, ToolResult

if TYPE_CHECKING:
    from pathlib import Path

    from brim.config import McpConfig
    from brim.providers.sync import Portal

__all__ = ["McpServerState", "McpServers", "Tool", "ToolResult"]

CONNECT_TIMEOUT: Final = 15.0
"""Seconds until a server has to be there."""
TOOL_TIMEOUT: Final = 600.0
"""Seconds that a tool may take."""


class McpServers:
    """The MCP servers of a shell. Use it as `with`, or call `close`.

    Several threads may connect servers at once.
    """

    def __init__(
        self,
        *,
        log: Path | None = None,
        timeout: float = CONNECT_TIMEOUT,
        patience: float = TOOL_TIMEOUT,
    ) -> None:
        """`log` is the file to which the servers' complaints are added; without it they are lost.

        A server has `timeout` seconds to be there, and a tool `patience` seconds to answer.
        """
        self._log = log
        self._timeout = timeout
        self._patience = patience
        self._servers: dict[str, McpServer] = {}
        self._lock = Lock()
        self._portal: Portal | None = None
        self._listener: logging.Handler | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, name: str, config: McpConfig) -> tuple[Tool, ...]:
        """Start a server, or reach it, and learn its tools; one that is there is started anew."""
        if (fault := config.find_problem()) is not None:
            raise InputError(f"the MCP server {name} {fault}")
        if find_spec("mcp") is None:
            raise InputError("MCP servers need one more package: pip install 'brim[shell]'")
        before = self._servers.get(name)
        server = McpServer(
            name, config, log=self._log, timeout=self._timeout, patience=self._patience
        )
        self._servers[name] = server  # at once: the order is that in which they were asked for
        portal = self._started()
        try:
            if before is not None:
                portal.run(before.close())
            portal.run(server.open())
        except (CancelledError, RuntimeError):  # what the portal says when it is closed meanwhile
            raise ConnectionFailedError(f"{name}: all servers were let go of meanwhile") from None
        return server.tools

    def disconnect(self, name: str) -> None:
        if name not in self._servers:
            there = ", ".join(self._servers) or "none"
            raise InputError(f"no MCP server is called {name}; there is {there}")
        self._started().run(self._servers.pop(name).close())

    def states(self) -> tuple[McpServerState, ...]:
        """Every server that was asked for, in that order, also those that are not there."""
        return tuple(server.state for server in [*self._servers.values()])

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What can be called now, in the order in which the servers came."""
        return tuple(tool for state in self.states() for tool in state.tools)

    def call(self, offered: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool by the name that the model knows. What goes wrong is a result, too.

        Ctrl-C stops the waiting, tells the server so, and is raised; the server stays.
        """
        for server in [*self._servers.values()]:
            for tool in server.tools:
                if tool.offered == offered:
                    return self._started().run(server.call(tool.name, arguments))
        there = ", ".join(tool.offered for tool in self.tools) or "none"
        return ToolResult(f"there is no tool called {offered}; there is {there}", is_error=True)

    def close(self) -> None:
        """Let go of all servers; the processes that were started for them end."""
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

    def _started(self) -> Portal:
        with self._lock:
            if self._portal is None:
                self._portal = self._begun()
            return self._portal

    def _begun(self) -> Portal:
        from brim.providers.sync import Portal

        # Without a handler of its own, the library's complaints would go to the terminal.
        log = self._log
        self._listener = logging.FileHandler(log, delay=True) if log else logging.NullHandler()
        logging.getLogger("mcp").addHandler(self._listener)
        return Portal()


async def _close_all(servers: Sequence[McpServer]) -> None:
    await asyncio.gather(*(server.close() for server in servers))
