"""Tools of MCP servers: connected, listed, called, and offered as far as they fit."""

from __future__ import annotations

from brim.shell.mcp.server import State
from brim.shell.mcp.servers import Servers
from brim.shell.mcp.tools import Result, Tool

__all__ = ["Result", "Servers", "State", "Tool"]
