"""Tools and results of MCP servers, as a model sees them, and which of them are offered to it."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from brim.fitting.text_tables import format_count

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
    has_text = any(block.type == "text" and block.text for block in answer.content)
    if answer.structured_content is not None and not has_text:
        texts.append(json.dumps(answer.structured_content, ensure_ascii=False))
    nothing = "[failed without a message]" if answer.is_error else "[no output]"
    return ToolResult("\n".join(texts) or nothing, answer.is_error)


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


Size = Callable[[Sequence[Mapping[str, Any]]], int]
"""Tokens of several definitions together, which may differ from the sum of their sizes."""
ModelKey = tuple[str, int]
"""Name and window of a model."""


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that fit, and those that do not."""

    offered: tuple[Tool, ...]
    sizes: Mapping[str, int]
    """Tokens of the offered tools by server; their sum is the size of all definitions."""
    left_out: tuple[str, ...]
    """Names and sizes of servers and tools that do not fit."""

    @property
    def definitions(self) -> list[Mapping[str, Any]]:
        return _definitions(self.offered)

    @property
    def by_server(self) -> dict[str, Sequence[Mapping[str, Any]]]:
        """The definitions of the offered tools, by server."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for tool in self.offered:
            found.setdefault(tool.server, []).append(tool.definition)
        return {**found}


def choose_tools(tools: Sequence[Tool], *, room: int, size: Size) -> ToolOffer:
    """Offer whole servers in order; the first one that does not fit is offered tool by tool.

    A later server is still offered if it fits as a whole.
    """
    offered: list[Tool] = []
    sizes: Tally[str] = Tally()
    left_out: list[str] = []

    def added_size(own: Sequence[Tool]) -> int:
        return size(_definitions([*offered, *own])) - sizes.total()

    def add(own: Sequence[Tool]) -> bool:
        """Add tools of one server if they fit; return whether they did."""
        added = added_size(own)
        if sizes.total() + added > room:
            return False
        offered.extend(own)
        sizes[own[0].server] += added
        return True

    is_divided = False
    for server, group in groupby(tools, key=lambda tool: tool.server):
        own = list(group)
        if add(own):
            continue
        if is_divided:
            many = format_count(len(own), "tool")
            left_out.append(f"{server} ({many}, {added_size(own):,} tokens)")
        else:
            is_divided = True
            rest = [tool for tool in own if not add([tool])]
            left_out += [f"{tool.offered} ({added_size([tool]):,} tokens)" for tool in rest]
    return ToolOffer(tuple(offered), sizes, tuple(left_out))


def _definitions(tools: Sequence[Tool]) -> list[Mapping[str, Any]]:
    return [tool.definition for tool in tools]
