"""Tools of MCP servers: connected, listed, called, and offered as far as they fit."""

from __future__ import annotations

from brim.shell.mcp.mcp_server import McpServerState
from brim.shell.mcp.servers import McpServers
from brim.shell.mcp.tools import Tool, ToolResult

__all__ = ["McpServerState", "McpServers", "Tool", "ToolResult"]
