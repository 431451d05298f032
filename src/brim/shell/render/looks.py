"""How a block of an answer looks when it is finished: rich text, made from its Markdown.

Line breaks stay where the answer has them. Links show where they lead. Where there are no
colours, signs take their place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from rich.text import Text

from brim.shell.render.sanitize import sanitize

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from rich.console import Console, RenderableType

    from brim.shell.render.blocks import Block

RULE: Final = 48
"""Columns of the lines around code, where there is room."""
NARROWEST: Final = 9
"""Columns that each column of a table needs, lest its rows be told one after the other."""
_ITEM = re.compile(r"([ \t]*)([-*+]|\d+[.)])[ \t]+(.*)", re.DOTALL)
_TASKS: Final = {"[ ] ": "☐", "[x] ": "☑", "[X] ": "☑"}
_STYLES: Final = {"strong": "bold", "em": "italic", "s": "strike", "link": "underline"}
_CELL_END = re.compile(r"(?<!\\)\|")


class Looks:
    """Draws blocks for a screen, as wide as they may be."""

    def __init__(self, console: Console, width: int) -> None:
        self.console = console
        self.width = width
        self.colors = not console.no_color and console.color_system is not None

    def of(self, block: Block, code: Text | None = None) -> RenderableType:
        """The block in its final form; `code` is a line of code with its colours."""
        text = sanitize(block.text)
        match block.kind:
            case "heading":
                return self._heading(text)
            case "item":
                return self._item(text)
            case "quote":
                return self._quote(text)
            case "table":
                return self._table(text)
            case "rule":
                return Text("─" * min(RULE, self.width), "dim")
            case "command":
                return _command(text)
            case "fence" | "fence end":
                return self._fence(block)
            case "code":
                return code or plain_code(block)
            case _:
                return self._paragraph(text)

    def words(self, text: str, style: str = "") -> Text:
        """Text with emphasis, code, links."""
        (inline,) = _parser().parseInline(text.strip())
        return self._styled(inline.children or [], style)

    def _styled(self, tokens: Sequence[Token], style: str) -> Text:
        text, open_, links = Text(style=style), [], []
        for token in tokens:
            name = token.type.rpartition("_")[0]
            if token.nesting == 1:
                open_.append(_STYLES.get(name, ""))
                links.append((str(token.attrs.get("href", "")), len(text)))
            elif token.nesting == -1 and open_:
                open_.pop()
                text.append(*_target(*links.pop(), text))
            else:
                text.append(*self._piece(token, " ".join(open_)))
        return text

    def _piece(self, token: Token, style: str) -> tuple[str, str]:
        # What was harmless as a name (`&#27;`) is read by the parser as what it names.
        content = sanitize(token.content)
        match token.type:
            case "softbreak" | "hardbreak":
                return "\n", ""
            case "code_inline":
                shown = content if self.colors else f"`{content}`"
                return shown, f"{style} cyan".strip()
            case "image":
                source = sanitize(str(token.attrs.get("src", "")))
                return f"[image: {content}] ({source})", style
            case _:
                return content, style

    def _paragraph(self, text: str) -> RenderableType:
        indent = len(text) - len(text.lstrip(" \t"))
        lines = "\n".join(line.strip() for line in text.splitlines())
        return self._moved(" " * indent, self.words(lines))

    def _heading(self, text: str) -> Text:
        line = text.strip().splitlines()[0]
        marks = len(line) - len(line.lstrip("#"))
        title = line.strip("#").strip() if marks else line
        styles = {0: "bold magenta", 1: "bold underline magenta", 2: "bold magenta"}
        return self.words(title, styles.get(marks, "bold"))

    def _item(self, text: str) -> RenderableType:
        found = _ITEM.match(text)
        if found is None:
            return self._paragraph(text)
        indent, mark, said = found.groups()
        lines = "\n".join(line.strip() for line in said.splitlines())
        sign = mark if mark[0].isdigit() else "•"
        if lines[:4] in _TASKS:
            sign, lines = _TASKS[lines[:4]], lines[4:]
        return self._moved(f"{indent.expandtabs(4)}{sign} ", self.words(lines), "cyan")

    def _quote(self, text: str) -> RenderableType:
        lines = [re.sub(r"^\s*> ?", "", line) for line in text.splitlines()]
        return self._moved("▌ ", self.words("\n".join(lines), "italic"), "dim", repeat=True)

    def _moved(
        self, mark: str, words: Text, style: str = "", *, repeat: bool = False
    ) -> RenderableType:
        """Words to the right of a mark, which stands beside the first line or beside all."""
        from rich.console import Group

        mark = mark[-max(2, self.width // 3) :]
        if not mark:
            return words
        room = max(2, self.width - len(mark))
        lines = words.wrap(self.console, room, overflow="fold") or [Text()]
        blank = " " * len(mark)
        marks = [mark, *[mark if repeat else blank] * (len(lines) - 1)]
        return Group(
            *(Text.assemble((m, style)) + line for m, line in zip(marks, lines, strict=True))
        )

    def _fence(self, block: Block) -> Text:
        width = min(RULE, self.width)
        name = sanitize(block.language) if block.kind == "fence" else ""
        line = f"── {name} " if name else ""
        return Text(line + "─" * max(0, width - len(line)), "dim", no_wrap=True, overflow="crop")

    def _table(self, text: str) -> RenderableType:
        head, _, *rows = [_cells(line) for line in text.splitlines()]
        columns = len(head)
        rows = [(row + [""] * columns)[:columns] for row in rows]
        if columns * NARROWEST > self.width and columns > 1:
            return self._told(head, rows)
        from rich import box
        from rich.table import Table

        sides = _sides(text.splitlines()[1], columns)
        table = Table(box=box.ROUNDED, border_style="dim", header_style="bold")
        for cell, side in zip(head, sides, strict=True):
            table.add_column(self.words(cell), justify=side, overflow="fold")  # type: ignore[arg-type]
        for row in rows:
            table.add_row(*map(self.words, row))
        return table

    def _told(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
        """A table for a narrow screen: a line for each cell, a line between rows."""
        from rich.console import Group

        lines: list[Text] = []
        for row in rows:
            named = zip(head, row, strict=True)
            lines += [self.words(name, "bold") + ": " + self.words(cell) for name, cell in named]
            lines.append(Text("──", "dim"))
        return Group(*lines) if lines else self.words(" | ".join(head), "bold")


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough")


def _target(address: str, start: int, text: Text) -> tuple[str, str]:
    """Where a link leads, unless its words say it."""
    address = sanitize(address)
    if not address or text.plain[start:] == address:
        return "", ""
    return f" ({address})", "dim"


def _command(text: str) -> Text:
    line = text.rstrip("\n")
    return Text.assemble((line[:5], "dim"), (line[5:], "bold green"), no_wrap=True)


def plain_code(block: Block) -> Text:
    """A line of code without colours."""
    return Text(code_line(block), no_wrap=True)


def raw(block: Block) -> Text:
    """A block as it stands in the answer."""
    is_code = block.kind == "code"
    return Text(code_line(block) if is_code else sanitize(block.text.rstrip("\n")))


def code_line(block: Block) -> str:
    """A line of code as it is shown: as far to the right as it stands inside of its fence."""
    line = sanitize(block.text).rstrip("\n")
    inside = line[: block.indent].lstrip(" ") + line[block.indent :]
    return inside.expandtabs(4)


def _cells(line: str) -> list[str]:
    line = line.strip().removeprefix("|")
    if line.endswith("|") and not line.endswith("\\|"):
        line = line[:-1]
    return [cell.replace("\\|", "|").strip() for cell in _CELL_END.split(line)]


def _sides(line: str, columns: int) -> list[str]:
    """On which side the cells of each column stand."""
    sides = []
    for cell in _cells(line):
        ends = cell.startswith(":"), cell.endswith(":")
        sides.append("center" if all(ends) else "right" if ends[1] else "left")
    return (sides + ["left"] * columns)[:columns]
