"""AnswerScreen: an answer as it comes, rendered as Markdown, on a terminal.

What is finished (a paragraph, an item, a line of code, a table) is written once and stays. The
block that still grows is shown as far as it came and written anew where it changed. A block that
is taller than the screen, or that the screen changed its width under, is not touched any more:
the rest of it follows as plain text. Nothing is written twice, and nothing is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from brim.shell.render.blocks import Block, Splitter
from brim.shell.render.sanitize import sanitize
from brim.shell.render.tail import Tail

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from brim.shell.render.code_colors import CodeColors

_WHOLE: Final = ("code", "command")
"""Lines that are copied from the screen: left to the terminal to wrap."""


class AnswerScreen:
    """Shows one answer."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_plain = not console.is_terminal or console.is_dumb_terminal
        self._tail = Tail(console)
        self._answer = Splitter()
        self._due: list[Block] = []
        """Finished blocks that are not shown yet."""
        self._thought = ""
        """The line of thinking that is not at its end."""
        self._code: CodeColors | None = None
        self._last: Literal["nothing", "blank", "thought", "row"] = "nothing"

    def think(self, piece: str) -> None:
        """Thinking as it comes: dim, and otherwise as it is."""
        if not piece:
            return
        if self._is_plain:
            self._pass_on(piece, "thought")
            return
        self._end_answer()
        if self._last == "row":
            self._settle_blank()
        *lines, self._thought = (self._thought + piece).split("\n")
        for line in lines:
            self._settle_thought(line.removesuffix("\r"))
        if self._thought:
            rows = [] if self._tail.is_let_go else self._dim(self._thought, "dim italic")
            self._tail.show(rows, self._thought, len(self._thought))

    def say(self, piece: str) -> None:
        """The answer as it comes."""
        if not piece:
            return
        if self._is_plain:
            self._pass_on(piece, "row")
            return
        self._end_thinking()
        self._due += self._answer.feed(piece)
        self._settle_due()
        self._show_rest()

    def end(self, *, note: str | None = None) -> None:
        """The answer is at its end, or was stopped; the cursor stands where a line begins."""
        if self._tail.is_torn:
            self._tail.mend()
        if self._is_plain:
            self._end_plain(note)
            return
        self._end_thinking()
        self._end_answer()
        if note:
            self._tail.settle(self._dim(note, "dim"))

    # Without a terminal that can be painted on

    def _pass_on(self, piece: str, kind: Literal["thought", "row"]) -> None:
        """The text as it is; for a dumb terminal without what could harm it."""
        if self._last not in ("nothing", kind):
            self._tail.end_row()
        self._last = kind
        if self._console.is_terminal:
            piece, self._thought = self._thought + piece, ""
            if piece.endswith("\r"):  # it may be the half of a line's end
                piece, self._thought = piece[:-1], "\r"
            piece = sanitize(piece)
        self._tail.write(piece)

    def _end_plain(self, note: str | None) -> None:
        self._tail.end_row()
        if note:
            self._tail.write(f"{sanitize(note)}\n")

    # Thinking

    def _dim(self, line: str, style: str) -> list[str]:
        from rich.text import Text

        return self._tail.rows(Text(sanitize(line), style))

    def _settle_thought(self, line: str) -> None:
        if line.strip():
            self._tail.settle(self._dim(line, "dim italic"), line)
            self._last = "thought"
        else:
            self._settle_blank()

    def _end_thinking(self) -> None:
        """The answer stands apart from the thinking before it."""
        if self._thought:
            line, self._thought = self._thought, ""
            self._settle_thought(line)
        if self._last == "thought":
            self._settle_blank()

    # The answer

    def _end_answer(self) -> None:
        """What was said so far is all, or thinking comes between."""
        self._due += self._answer.close()
        self._settle_due()
        if self._code is not None:
            self._settle(Block("fence end", ""))

    def _settle_due(self) -> None:
        while self._due:
            self._settle(self._due[0])
            del self._due[0]  # not before: who is interrupted here has lost nothing

    def _settle(self, block: Block) -> None:
        """A finished block, in its final form."""
        if block.kind == "blank":
            self._settle_blank(block.text)
            return
        self._tail.settle(self._rows_of(block, self._line_of_code(block)), block.text)
        self._last = "row"

    def _settle_blank(self, source: str = "") -> None:
        """One blank row, however many there are; none at the beginning."""
        if self._last in ("row", "thought"):
            self._tail.settle([""], source)
            self._last = "blank"
        else:
            self._tail.settle([], source)

    def _line_of_code(self, block: Block) -> Text | None:
        """A line of code with its colours; remembers which code the next one is part of."""
        if block.kind == "fence":
            from brim.shell.render.code_colors import CodeColors

            self._code = CodeColors(block.language)
        elif block.kind == "fence end":
            self._code = None
        elif block.kind == "code" and self._code is not None:
            from brim.shell.render.looks import code_line

            return self._code.line(code_line(block))
        return None

    def _rows_of(self, block: Block, code: Text | None = None) -> list[str]:
        from brim.shell.render.looks import Looks

        drawn = Looks(self._console, self._tail.width).of(block, code)
        return self._tail.rows(drawn, whole=block.kind in _WHOLE)

    def _show_rest(self) -> None:
        """What is not finished, as it would look, were this the end."""
        blocks = [] if self._tail.is_let_go else self._answer.preview()
        rows = [row for block in blocks for row in self._growing(block)]
        self._tail.show(rows, self._answer.rest, self._answer.sure)

    def _growing(self, block: Block) -> list[str]:
        """A block that is not at its end: a table has no form yet, and code no colours."""
        if block.kind == "blank":
            return []
        if block.kind not in ("table", *_WHOLE):
            return self._rows_of(block)
        from brim.shell.render.looks import raw

        return self._tail.rows(raw(block))
