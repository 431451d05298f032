"""Tools of MCP servers: connect, list, call, and offer those that fit."""

from __future__ import annotations

from brim.shell.mcp.mcp_server import McpServer
from brim.shell.mcp.servers import McpServers
from brim.shell.mcp.tools import Tool, ToolResult

__all__ = ["McpServer", "McpServers", "Tool", "ToolResult"]
