"""Shows a reply while it is streamed: finished blocks as Markdown, the open one in a live region.

A finished block is printed once and never touched again. Only the block that still grows is drawn
again. If it becomes as tall as the screen, its complete lines are printed for good.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from brim.shell.render.sanitize import sanitize

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.live import Live
    from rich.markdown import Markdown

COMMAND: Final = "CMD: "
"""Lines with this prefix propose a command; they are shown unchanged."""
REFRESH_RATE: Final = 12
"""Refreshes of the live region per second."""
CODE_THEME: Final = "ansi_dark"
"""The terminal's own colors."""
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)\n?")

EDIT: Final = "SEARCH"
"""Instead of a fence: a search/replace block, which ends where it says."""
_EDIT: Final = re.compile(r"<{5,9} ?SEARCH")
_EDIT_END: Final = re.compile(r">{5,9} ?REPLACE")


class ReplyView:
    """The view of one reply; the caller must close it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_plain = not console.is_terminal or console.is_dumb_terminal
        self._live: Live | None = None
        self._text = ""
        """The part of the reply that is not printed yet."""
        self._thinking = ""
        """The incomplete last line of the thinking."""
        self._needs_gap = False
        """Whether a blank line is due before the next block."""
        self._is_line_open = False

    def add_thinking(self, piece: str) -> None:
        """Add thinking, which is shown dim and without Markdown."""
        if self._is_plain:
            self._pass_through(piece, is_thinking=True)
            return
        self._finish_text()
        *lines, self._thinking = (self._thinking + piece).split("\n")
        for line in lines:
            self._print_thinking(line)
        self._draw()

    def add_text(self, piece: str) -> None:
        """Add a piece of the reply."""
        if self._is_plain:
            self._pass_through(piece, is_thinking=False)
            return
        self._finish_thinking()
        self._text += piece
        line = len(self._text) - self._text.rfind("\n") - 1
        if "\n" in piece or line <= len(COMMAND) + len(piece):  # a block can end only here
            finished, self._text = split_finished(self._text)
            for block in finished:
                self._print(block)
        if "\n" in piece or line > self._console.size.width:
            self._flush_tall()
        self._draw()

    def close(self) -> None:
        """Print the rest, whether the reply is complete or was stopped."""
        if self._is_plain:
            self._end_line()
            return
        try:
            self._finish_thinking()
            self._finish_text()
        finally:
            if self._live is not None:
                self._live.stop()

    # A terminal

    def _draw(self) -> None:
        """Show the open block, or the open line of thinking, in the live region."""
        if self._live is None:
            from rich.live import Live

            self._live = Live(
                console=self._console,
                refresh_per_second=REFRESH_RATE,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
        if self._thinking:
            self._live.update(Text(sanitize(self._thinking), "dim italic"))
        else:
            self._live.update(render_block(self._text) if self._text.strip() else Text(end=""))

    def _flush_tall(self) -> None:
        """Print the complete lines of a block that no longer fits on the screen."""
        height = self._console.size.height
        if self._text.count("\n") + len(self._text) // self._console.size.width < height // 2:
            return
        rows = self._console.render_lines(render_block(self._text), pad=False)
        if len(rows) < height - 1:
            return
        done, rest = _split_tall(self._text)
        self._text = rest
        self._print(done)

    def _print(self, block: str) -> None:
        """Print a finished block above the live region."""
        if not block.strip():
            self._needs_gap = True
            return
        self._clear_live()
        if self._needs_gap:
            self._console.print()
        is_whole_line = block.startswith(COMMAND) or bool(_FENCE.match(block))
        self._console.print(render_block(block), soft_wrap=is_whole_line, highlight=False)
        self._needs_gap = block.endswith("\n\n")

    def _clear_live(self) -> None:
        if self._live is not None:
            self._live.update(Text(end=""), refresh=True)

    def _finish_text(self) -> None:
        text, self._text = self._text, ""
        if text:
            finished, rest = split_finished(text)
            for block in (*finished, rest):
                self._print(block)

    def _print_thinking(self, line: str) -> None:
        self._clear_live()
        if line.strip():
            if self._needs_gap:
                self._console.print()
            self._console.print(Text(sanitize(line.removesuffix("\r")), "dim italic"))
        self._needs_gap = not line.strip()

    def _finish_thinking(self) -> None:
        """End the thinking; a blank line separates it from the reply."""
        if self._thinking:
            line, self._thinking = self._thinking, ""
            self._print_thinking(line)
            self._needs_gap = True

    # No terminal, or one that can only print

    def _pass_through(self, piece: str, *, is_thinking: bool) -> None:
        """Write the text unchanged; to a dumb terminal without control characters."""
        if self._is_line_open and is_thinking != bool(self._thinking):
            self._end_line()
        self._thinking = "thinking" if is_thinking else ""
        piece, self._text = self._text + piece, ""
        if self._console.is_terminal:
            if piece.endswith("\r"):  # may be the first half of a line ending
                piece, self._text = piece[:-1], "\r"
            piece = sanitize(piece)
        self._write(piece)

    def _end_line(self) -> None:
        if self._is_line_open:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._console.file.write(text)
            self._console.file.flush()
            self._is_line_open = not text.endswith("\n")


# Blocks


def split_finished(text: str) -> tuple[list[str], str]:
    """Split a text into its finished blocks and the open rest; joined they are the text.

    A block ends before a line that is not indented and follows a blank line, before and after a
    command, and after a fence or a search/replace block. An incomplete last line belongs to the
    rest.
    """
    blocks: list[str] = []
    block, fence, is_blank = "", "", False
    for line in _LINE.findall(text):
        is_complete = line.endswith("\n")
        mark = _FENCE.fullmatch(line)
        starts_edit = not fence and _EDIT.match(line) is not None
        starts_fence = (mark is not None and not fence) or starts_edit
        is_new = (is_blank and not line[:1].isspace()) or line.startswith(COMMAND) or starts_fence
        if is_new and not fence and block:
            blocks.append(block)
            block = ""
        block += line
        is_blank = not line.strip() and not fence
        if starts_fence:
            fence = mark[1] if mark else EDIT
        elif (
            (fence == EDIT and _EDIT_END.match(line))
            or (fence and mark and mark[1].startswith(fence) and not mark[2].strip())
            or (line.startswith(COMMAND) and not fence)
        ):
            fence = ""
            if is_complete:
                blocks.append(block)
                block = ""
    return blocks, block


def _split_tall(text: str) -> tuple[str, str]:
    """Split a tall block after its last complete line; a fence is closed and opened again."""
    fence = _FENCE.match(text)
    place = text.rfind("\n") + 1
    if fence is not None:
        if place <= fence.end():
            return "", text
        return f"{text[:place]}{fence[1]}\n", fence[0] + text[place:]
    place = place or text.rfind(" ") + 1 or len(text)
    return text[:place], text[place:]


def render_block(block: str) -> RenderableType:
    """Return a block as Markdown, as code, or as a command."""
    text = sanitize(block).rstrip("\n")
    if text.startswith(COMMAND):
        return Text.assemble((COMMAND, "dim"), (text.removeprefix(COMMAND), "bold green"))
    from rich.syntax import Syntax

    if _EDIT.match(text):
        return Syntax(text, "text", theme=CODE_THEME, background_color="default")
    if (fence := _FENCE.match(text + "\n")) is not None:
        lines = text.split("\n")[1:]
        if lines and lines[-1].strip().startswith(fence[1]):
            del lines[-1]
        language = (fence[2].split() or ["text"])[0].lower()
        return Syntax("\n".join(lines), language, theme=CODE_THEME, background_color="default")
    from rich.markdown import Markdown

    markdown = Markdown(text, code_theme=CODE_THEME, hyperlinks=False)
    for token in markdown.parsed:
        _sanitize_token(token)
    return _Trimmed(markdown)


@dataclass(frozen=True, slots=True)
class _Trimmed:
    """Markdown without the blank lines that rich puts around some blocks."""

    markdown: Markdown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        rows = console.render_lines(self.markdown, options, pad=False)
        while rows and not _row_text(rows[0]):
            del rows[0]
        while rows and not _row_text(rows[-1]):
            del rows[-1]
        for row in rows:
            yield from row
            yield Segment.line()


def _row_text(row: list[Segment]) -> str:
    return "".join(segment.text for segment in row).strip()


def _sanitize_token(token: Token) -> None:
    """Sanitize what the parser has decoded (`&#27;`), and show HTML as text."""
    token.content = sanitize(token.content)
    if token.type == "html_inline":
        token.type = "text"
    elif token.type == "html_block":
        token.type, token.tag = "code_block", "code"
    for child in token.children or ():
        _sanitize_token(child)
