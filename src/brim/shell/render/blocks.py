"""Blocks: an answer cut into the pieces that can be shown for good, while it still comes.

Only whole lines decide, so it does not matter in which pieces a text arrives. Every character
belongs to one block, in order: joined, the blocks are the text. A line of fenced code is a block
by itself, so that code appears line by line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

Kind = Literal[
    "blank",
    "paragraph",
    "heading",
    "item",
    "quote",
    "table",
    "rule",
    "command",
    "fence",
    "code",
    "fence end",
]

COMMAND: Final = "CMD: "
"""What a line begins with that the model wants to be run."""

_FENCE = re.compile(r"( *)(`{3,}|~{3,})[ \t]*([^`\n]*?)\s*")
_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t].*)?\s*")
_RULE = re.compile(r" {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})\s*")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)\s*")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S.*\s*")
_QUOTE = re.compile(r" {0,3}>.*\s*")
_DELIMITERS = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*")
_INDENTED = re.compile(r"(?: {4}|\t).*\s*")


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of an answer, with its line ends."""

    kind: Kind
    text: str
    language: str = ""
    """Of a fence and of the code in it, as the answer names it."""
    indent: int = 0
    """Columns that a fence stands in from the left; its code stands there too."""


@dataclass(frozen=True, slots=True)
class State:
    """What has to be known of the lines before."""

    open: Block | None = None
    """A block that further lines may belong to."""
    fence: str = ""
    """The marks that opened the fence that the next line stands in."""
    language: str = ""
    indent: int = 0
    in_list: bool = False
    """Indented text goes on with a list; elsewhere it is code."""


class Splitter:
    """Takes in an answer as it comes."""

    def __init__(self) -> None:
        self._state = State()
        self._line = ""

    def feed(self, piece: str) -> list[Block]:
        """The blocks that are finished now."""
        found: list[Block] = []
        *lines, self._line = (self._line + piece).split("\n")
        for line in lines:
            self._state, done = after(self._state, f"{line}\n")
            found += done
        return found

    @property
    def rest(self) -> str:
        """What is in no finished block yet."""
        return (self._state.open.text if self._state.open else "") + self._line

    @property
    def sure(self) -> int:
        """How much of the rest belongs to one block, whatever comes: the next line may not."""
        return len(self._state.open.text if self._state.open else self._line)

    def preview(self) -> list[Block]:
        """The blocks that the rest would be, were this the end."""
        if not self._line:
            return [self._state.open] if self._state.open else []
        state, found = after(self._state, self._line)
        return [*found, state.open] if state.open else found

    def close(self) -> list[Block]:
        """The last blocks: the text is at its end."""
        found = self.preview()
        self._state, self._line = State(), ""
        return found


def split(text: str) -> list[Block]:
    """The blocks of a whole text."""
    splitter = Splitter()
    return splitter.feed(text) + splitter.close()


def after(state: State, line: str) -> tuple[State, list[Block]]:
    """What one more line changes, and the blocks that it finishes."""
    if state.fence:
        return _fenced(state, line)
    kind = _kind(line, state)
    if kind == "paragraph":
        return _text(state, line)
    if kind == "rule" and _underlines(state, line):
        return _headed(state, line)
    done = [state.open] if state.open else []
    if kind == "item":
        return State(Block("item", line), in_list=True), done
    if kind == "quote":
        if state.open and state.open.kind == "quote":
            return replace(state, open=_longer(state.open, line)), []
        return State(Block("quote", line)), done
    if kind == "fence":
        return _opened(state, line, done)
    in_list = state.in_list and kind in ("blank", "code")
    return State(in_list=in_list), [*done, Block(kind, line)]


def _kind(line: str, state: State) -> Kind:
    """What a line is, seen by itself; `paragraph` for what depends on its neighbours."""
    if not line.strip():
        return "blank"
    if line.startswith(COMMAND):
        return "command"
    if _is_code(line, state):
        return "code"
    for kind, pattern in _LINES:
        if pattern.fullmatch(line):
            return kind
    return "paragraph"


_LINES: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("fence", _FENCE),
    ("heading", _HEADING),
    ("rule", _RULE),
    ("item", _ITEM),
    ("quote", _QUOTE),
)


def _is_code(line: str, state: State) -> bool:
    """Whether a line is code only because it is indented."""
    return state.open is None and not state.in_list and bool(_INDENTED.fullmatch(line))


def _fenced(state: State, line: str) -> tuple[State, list[Block]]:
    mark = line.strip()
    if mark and set(mark) == {state.fence[0]} and len(mark) >= len(state.fence):
        end = Block("fence end", line, state.language, state.indent)
        return State(in_list=state.in_list), [end]
    return state, [Block("code", line, state.language, state.indent)]


def _opened(state: State, line: str, done: list[Block]) -> tuple[State, list[Block]]:
    found = _FENCE.fullmatch(line)
    assert found
    indent, language = len(found[1]), found[3].split(" ")[0]
    inside = State(fence=found[2], language=language, indent=indent, in_list=state.in_list)
    return inside, [*done, Block("fence", line, language, indent)]


def _text(state: State, line: str) -> tuple[State, list[Block]]:
    """A line of words: goes on with the block before, or begins a paragraph."""
    before = state.open
    if before is None:
        in_list = state.in_list and line[0] in " \t"
        return State(Block("paragraph", line), in_list=in_list), []
    if before.kind == "table" and "|" not in line:
        return State(Block("paragraph", line)), [before]
    if before.kind == "item" and line[0] not in " \t":
        return State(Block("paragraph", line)), [before]
    if before.kind == "paragraph" and _underlines(state, line):
        return _headed(state, line)
    if before.kind == "paragraph" and "|" in line and _DELIMITERS.fullmatch(line):
        return _tabled(state, before, line)
    return replace(state, open=_longer(before, line)), []


def _underlines(state: State, line: str) -> bool:
    """Whether a line makes the one line above it a heading."""
    above = state.open
    is_one_line = above is not None and above.kind == "paragraph" and above.text.count("\n") == 1
    return is_one_line and bool(_UNDERLINE.fullmatch(line))


def _headed(state: State, line: str) -> tuple[State, list[Block]]:
    assert state.open
    return State(), [Block("heading", state.open.text + line)]


def _tabled(state: State, before: Block, line: str) -> tuple[State, list[Block]]:
    """The last line of a paragraph was the head of a table, if it has columns."""
    *above, head = before.text.splitlines(keepends=True)
    if "|" not in head:
        return replace(state, open=_longer(before, line)), []
    done = [Block("paragraph", "".join(above))] if above else []
    return State(Block("table", head + line)), done


def _longer(block: Block, line: str) -> Block:
    return replace(block, text=block.text + line)
