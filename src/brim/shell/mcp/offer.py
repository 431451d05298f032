"""Which tools are offered: their definitions take room in every request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brim.shell.mcp.tools import Tool

Size = Callable[[Sequence[Mapping[str, Any]]], int]
"""Tokens that definitions take together, which need not be the sum of what each takes alone."""


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """What fits, and what does not."""

    offered: tuple[Tool, ...]
    sizes: Mapping[str, int]
    """Tokens of what is offered, by server; together, what all of it takes."""
    left_out: tuple[str, ...]
    """Servers and tools that do not fit, by name, with their tokens."""

    @property
    def definitions(self) -> list[Mapping[str, Any]]:
        return _definitions(self.offered)


def choose_tools(tools: Sequence[Tool], *, room: int, size: Size) -> ToolOffer:
    """Whole servers, in the order in which they came; the first that does not fit, tool by tool.

    A later one is still offered if it fits whole.
    """
    filling = _Filling(room, size)
    left_out: list[str] = []
    is_divided = False
    for server, group in groupby(tools, key=lambda tool: tool.server):
        own = list(group)
        if filling.take(own):
            continue
        if is_divided:
            many = "1 tool" if len(own) == 1 else f"{len(own)} tools"
            left_out.append(f"{server} ({many}, {filling.extra(own):,} tokens)")
        else:
            is_divided = True
            left_out += [_describe(tool, filling) for tool in own if not filling.take([tool])]
    return ToolOffer(tuple(filling.offered), filling.sizes, tuple(left_out))


class _Filling:
    """The room, and what is in it so far."""

    def __init__(self, room: int, size: Size) -> None:
        self.offered: list[Tool] = []
        self.sizes: dict[str, int] = {}
        self._room = room
        self._size = size
        self._taken = 0

    def take(self, tools: Sequence[Tool]) -> bool:
        """Put in tools of one server, if they fit."""
        extra = self.extra(tools)
        if self._taken + extra > self._room:
            return False
        server = tools[0].server
        self.offered += tools
        self.sizes[server] = self.sizes.get(server, 0) + extra
        self._taken += extra
        return True

    def extra(self, tools: Sequence[Tool]) -> int:
        """What these would add."""
        return self._size(_definitions([*self.offered, *tools])) - self._taken


def _describe(tool: Tool, filling: _Filling) -> str:
    return f"{tool.offered} ({filling.extra([tool]):,} tokens)"


def _definitions(tools: Sequence[Tool]) -> list[Mapping[str, Any]]:
    return [tool.definition for tool in tools]
