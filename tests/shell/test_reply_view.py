from __future__ import annotations

import io
import re
import subprocess
import sys

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from wcwidth import wcwidth

from brim.shell.render.reply_view import ReplyView, split_finished
from brim.shell.render.sanitize import sanitize
from brim.shell.render.screen import Screen

ALLOWED = re.compile(r"\x1b\[[0-9;]*[mKJA]|\x1b\[\?25[lh]")
"""Sequences that rich may write: colors, erasing, cursor up, cursor visibility."""
LINES = (
    *("", "  ", "words", "more words", "# title", "## ", "---", "===", "***", "- item", "* other"),
    *("1. first", "   continued", "    indented", "\tindented", "> quote", ">", "```", "```python"),
    *("~~~~", "   ```sh", "code()", "| a | b |", "|---|:-:|", "| 1 | 2 |", "a | b", "CMD: ls -l"),
    *(
        "<<<<<<< SEARCH",
        "=======",
        ">>>>>>> REPLACE",
        "CMD:ls",
        " CMD: ls",
        "`````",
        "日本語",
        "🙂 \x1b[2J",
        "\r",
    ),
)
texts = st.one_of(
    st.lists(st.sampled_from(LINES), max_size=14).map("\n".join),
    st.text(max_size=60),
)


class ReplyTerminal:
    """A reply on an emulated terminal, with everything that has scrolled off its screen."""

    def __init__(self, columns: int = 80, rows: int = 24, **environment: str) -> None:
        self.file = io.StringIO()
        self.columns = columns
        self.screen = pyte.HistoryScreen(columns, rows, history=5_000)
        self.stream = pyte.Stream(self.screen)
        self._read = 0
        self.console = Console(
            file=self.file,
            force_terminal=True,
            width=columns,
            height=rows,
            color_system="standard",
            _environ={"TERM": "xterm", **environment},
        )
        self.view = ReplyView(self.console)

    def add(self, text: str, step: int = 3) -> ReplyTerminal:
        for start in range(0, len(text), step):
            self.view.add_text(text[start : start + step])
        return self

    def close(self) -> ReplyTerminal:
        self.view.close()
        written = self.file.getvalue()
        self.stream.feed(written[self._read :].replace("\n", "\r\n"))
        self._read = len(written)
        return self

    @property
    def lines(self) -> list[str]:
        top = ("".join(row[x].data for x in range(self.columns)) for row in self.screen.history.top)
        return [line.rstrip() for line in (*top, *self.screen.display)]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip("\n")


def render(text: str, columns: int = 80, rows: int = 200, **environment: str) -> str:
    return ReplyTerminal(columns, rows, **environment).add(text).close().text


def test_markdown_is_rendered() -> None:
    text = render(
        "Some **bold** `code`, a [link](https://a.example/x).\n\n"
        "1. one\n2. two\n   - nested\n\n> quoted\n\n| a | b |\n|---|--:|\n| 1 | 222 |\n"
    )
    assert text.splitlines()[0] == "Some bold code, a link (https://a.example/x)."
    assert [line.split() for line in text.splitlines()[2:5]] == [
        ["1", "one"],
        ["2", "two"],
        ["•", "nested"],
    ]
    assert "▌ quoted" in text
    assert re.search(r"1 +222", text)


def test_code_is_shown_unchanged_and_in_color() -> None:
    terminal = ReplyTerminal().add("```python\ndef f():\n    return '*a*'\n```\nafter").close()
    assert terminal.lines[:3] == ["def f():", "    return '*a*'", "after"]
    assert terminal.screen.buffer[0][0].fg != terminal.screen.buffer[0][4].fg


def test_a_long_line_of_code_is_not_broken() -> None:
    code = " ".join(f"word{number}" for number in range(40))
    terminal = ReplyTerminal(columns=40).add(f"```\n{code}\n```\n").close()
    assert code in terminal.file.getvalue()


def test_commands_keep_their_own_line_and_their_characters() -> None:
    text = "Do this:\nCMD: ls *.py *.txt __init__\nCMD: `x`\n- an item\nCMD: tail -f a\nthen."
    assert [line.strip() for line in render(text).splitlines()] == [
        "Do this:",
        "CMD: ls *.py *.txt __init__",
        "CMD: `x`",
        "• an item",
        "CMD: tail -f a",
        "then.",
    ]


def test_html_and_generics_are_shown_as_text() -> None:
    assert "a Vec<String> here" in render("a Vec<String> here")
    assert "<details>" in render("<details>\ninner\n</details>\n")


def test_thinking_is_dim_and_separated_by_a_blank_line() -> None:
    terminal = ReplyTerminal()
    for piece in ("Let me ", "see\n\n\nwhat **is**", " there"):
        terminal.view.add_thinking(piece)
    terminal.add("It is 4.").close()
    assert terminal.text == "Let me see\n\nwhat **is** there\n\nIt is 4."
    assert "\x1b[2;3mLet me see" in terminal.file.getvalue()


def test_nothing_in_a_reply_can_control_the_terminal() -> None:
    hostile = (
        "a \x1b[2J\x1b]0;title\x07 b \x9b31m &#27;[2J &#x9b;m `\x1b[H` \x08 \u202e\r\nnext\rline\n"
        "[x](https://a.example/\x1b[2J)\n```\x1b[2J\n\x1b[2J\x00\n```\n"
        "| \x1b[2J | b |\n|--|--|\n\nCMD: rm \x1b[8mx\n# \x1b[2J\n- \x1b[1A\n> \x7f\ud800"
    )
    terminal = ReplyTerminal()
    terminal.view.add_thinking(hostile)
    terminal.add(hostile).close()
    written = ALLOWED.sub("", terminal.file.getvalue()).replace("\r", "")
    assert not re.search(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", written)
    assert "CMD: rm ␛[8mx" in terminal.text
    assert terminal.screen.title == ""


def is_drawable(text: str) -> bool:
    """Return whether the emulator draws every character of a text in its own cell."""
    return all(wcwidth(character) > 0 for character in sanitize(text) if character not in "\n\t")


@given(texts.filter(is_drawable), st.integers(1, 9), st.sampled_from((20, 33, 80)))
def test_the_pieces_of_a_stream_do_not_change_the_result(
    text: str, step: int, columns: int
) -> None:
    whole = ReplyTerminal(columns, 400).add(text, len(text) or 1).close()
    assert ReplyTerminal(columns, 400).add(text, step).close().text == whole.text


@given(texts, st.integers(0, 200))
def test_finished_blocks_and_the_rest_are_the_text(text: str, place: int) -> None:
    finished, rest = split_finished(text[:place])
    assert "".join(finished) + rest == text[:place]
    assert split_finished(text)[0][: len(finished)] == finished


words = st.lists(st.sampled_from(("word", "a", "日本語", "longerword", "🙂", "e,")), max_size=40)


@given(st.lists(words.map(" ".join), max_size=4).map("\n\n".join), st.integers(1, 9))
def test_on_a_small_screen_nothing_is_lost_or_repeated(text: str, step: int) -> None:
    terminal = ReplyTerminal(20, 5).add(text, step).close()
    assert "".join(terminal.text.split()) == "".join(text.split())


def test_a_block_taller_than_the_screen_is_printed_once() -> None:
    code = "".join(f"line{number}()\n" for number in range(100))
    terminal = ReplyTerminal(40, 10).add(f"```python\n{code}```\n").close()
    assert terminal.text == code.rstrip("\n")


def test_finished_blocks_are_never_written_again() -> None:
    terminal = ReplyTerminal(30, 10)
    for number in range(40):
        terminal.add(f"paragraph {number} with some words in it\n\n", step=100)
    written = ALLOWED.sub("", terminal.close().file.getvalue())
    for number in range(39):
        assert written.count(f"paragraph {number} with") <= 3


@pytest.mark.parametrize(
    "text", ["some **bo", "```py\nx = '", "| a |\n|--|\n| 1", "1. on", "", "\n\n", "CMD: l"]
)
def test_a_reply_stopped_in_the_middle_leaves_a_clean_line(text: str) -> None:
    terminal = ReplyTerminal(30, 10).add(text).close()
    assert terminal.screen.cursor.x == 0
    assert not terminal.screen.cursor.hidden
    assert terminal.screen.cursor.attrs.fg == "default"
    assert not terminal.screen.cursor.attrs.bold


def test_without_a_terminal_the_text_is_unchanged() -> None:
    text = "# A\n\n**b** \x1b[1m\r\n| a |\n"
    file = io.StringIO()
    view = ReplyView(Console(file=file))
    for character in text:
        view.add_text(character)
    view.close()
    assert file.getvalue() == text


def test_without_a_terminal_thinking_has_its_own_lines() -> None:
    file = io.StringIO()
    view = ReplyView(Console(file=file))
    for piece in ("hm", ", so"):
        view.add_thinking(piece)
    view.add_text("4")
    view.add_text("2")
    view.close()
    assert file.getvalue() == "hm, so\n42\n"


def test_a_dumb_terminal_gets_sanitized_plain_text() -> None:
    terminal = ReplyTerminal(TERM="dumb").add("# A **b**\r\nc \x1b[2J", step=1).close()
    assert terminal.file.getvalue() == "# A **b**\nc ␛[2J\n"


def test_without_colors_no_color_is_written() -> None:
    terminal = ReplyTerminal(NO_COLOR="1").add("`x` **b**\n```python\ndef f(): 1\n```\n").close()
    assert terminal.lines[:2] == ["x b", "def f(): 1"]
    assert not re.search(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|4[0-7])m", terminal.file.getvalue())


def test_characters_that_the_encoding_lacks_are_replaced() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    console = Console(file=file, force_terminal=True, width=40, height=10)
    view = Screen(console).open_reply()
    view.add_text("日本 ok\n")
    view.close()
    file.flush()
    assert b"?? ok" in raw.getvalue()


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, brim.shell.render.reply_view as m\n"
        "heavy = {'rich.markdown', 'rich.syntax', 'pygments', 'markdown_it'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_search_and_replace_block_is_shown_as_it_is() -> None:
    lines = ["<<<<<<< SEARCH", "    return 1", "=======", "    return *2*", ">>>>>>> REPLACE"]
    text = render("\n".join(["So:", "", "src/b.py", *lines, "Then *more*."]))
    assert [line for line in text.split("\n") if line] == ["So:", "src/b.py", *lines, "Then more."]
