"""Tools and results of MCP servers, as a model sees them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock
    from mcp.types import Tool as ListedTool

LONGEST_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a server, as offered to a model."""

    server: str
    name: str
    """The server's own name for it."""
    offered: str
    """The name that the model sees."""
    definition: Mapping[str, Any]
    """In the format of OpenAI's chat completions."""
    is_read_only: bool = False
    is_destructive: bool | None = None
    """Hints of the server; never a permission."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    text: str
    is_error: bool = False


def tool_of(server: str, listed: ListedTool) -> Tool:
    """Convert a tool from a server's list."""
    hints = listed.annotations
    offered = offered_name(server, listed.name)
    function = {
        "name": offered,
        "description": listed.description or listed.title or "",
        # Some providers reject an object without properties.
        "parameters": {"type": "object", "properties": {}} | listed.input_schema,
    }
    return Tool(
        server,
        listed.name,
        offered,
        {"type": "function", "function": function},
        is_read_only=bool(hints and hints.read_only_hint),
        is_destructive=hints.destructive_hint if hints else None,
    )


def offered_name(server: str, name: str) -> str:
    """Return SERVER__NAME in the characters that all providers accept, stable for each tool.

    If that is ambiguous or loses characters, a digest is appended.
    """
    whole = f"{server}__{name}"
    clean = re.sub(r"[^a-zA-Z0-9_-]", "_", whole)
    is_plain = clean == whole and "__" not in f"{server}_" and len(whole) <= LONGEST_NAME
    if is_plain:
        return whole
    digest = hashlib.sha256(json.dumps([server, name]).encode()).hexdigest()[:8]
    return f"{clean[: LONGEST_NAME - 9]}_{digest}"


def result_of(answer: CallToolResult) -> ToolResult:
    """Convert a result: text unchanged, media by kind and size, else structured content."""
    texts = [text for block in answer.content if (text := _block_text(block))]
    if answer.structured_content is not None and not any(map(_is_text, answer.content)):
        texts.append(json.dumps(answer.structured_content, ensure_ascii=False))
    nothing = "[failed without a message]" if answer.is_error else "[no output]"
    return ToolResult("\n".join(texts) or nothing, answer.is_error)


def _is_text(block: ContentBlock) -> bool:
    return block.type == "text" and bool(block.text)


def _block_text(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}, {_size(block.data)}]"
        case "resource_link":
            return f"[resource {block.uri}]"
        case "resource":
            resource = block.resource
            text = getattr(resource, "text", None)
            return text or f"[resource {resource.uri}, {_size(getattr(resource, 'blob', ''))}]"


def _size(base64: str) -> str:
    size = len(base64) * 3 // 4
    return f"{size} bytes" if size < 1_000 else f"{round(size / 1_000)} kB"
