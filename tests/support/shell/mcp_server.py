"""A small MCP server for tests: over stdio, or over HTTP on a given port."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("tests", log_level="ERROR")


def complain(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Always fail."""
    raise ToolError("the reason of the failure")


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
async def slow(seconds: float) -> str:
    """Take some time."""
    complain("begun")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        complain("cancelled")
        raise
    return "done"


@server.tool()
def big(size: int) -> str:
    """Return a long text."""
    return "x" * size


@server.tool("structured", structured_output=True)
def return_structured() -> dict[str, Any]:
    """Return structured content."""
    return {"colour": "grün", "sizes": [1, 2]}


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """Show a picture."""
    return ["before", Image(data=b"\x00" * 12_000, format="png")]


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def variable(name: str) -> str:
    """Return an environment variable."""
    complain(f"asked for {name}")
    return os.environ.get(name, "nothing")


@server.tool()
def header(name: str, context: Context[Any, Any]) -> str:
    """Return a request header."""
    return str((context.headers or {}).get(name.lower(), "nothing"))


@server.tool()
async def grow(context: Context[Any, Any]) -> str:
    """Offer one more tool."""
    server.add_tool(lambda: "new", name="grown", description="A new tool.")
    await context.notify_tools_changed()
    return "grown"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
