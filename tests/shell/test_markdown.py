from __future__ import annotations

import io
import re
import subprocess
import sys
from itertools import pairwise

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from wcwidth import wcwidth

from brim.shell.render.markdown import AnswerScreen
from brim.shell.render.sanitize import sanitize
from tests.shell.test_blocks import texts

OWN = re.compile(r"\x1b\[[0-9;]*[mKJA]")
"""All that may reach the terminal beside text: colours, erasing, going up."""


class Terminal:
    """A real terminal's screen with what has left it, and an answer on it."""

    def __init__(self, columns: int = 80, rows: int = 24, **settings: object) -> None:
        self.file = io.StringIO()
        self.read = 0
        self.columns = columns
        self.screen = pyte.HistoryScreen(columns, rows, history=5_000)
        self.stream = pyte.Stream(self.screen)
        self.console = Console(
            file=self.file,
            force_terminal=True,
            width=columns,
            height=rows,
            color_system="standard",
            _environ={"TERM": "xterm", **settings},  # type: ignore[dict-item]
        )
        self.answer = AnswerScreen(self.console)

    def say(self, text: str, step: int = 3) -> Terminal:
        for start in range(0, len(text), step):
            self.answer.say(text[start : start + step])
            self.update()
        return self

    def end(self, note: str | None = None) -> Terminal:
        self.answer.end(note=note)
        return self.update()

    def update(self) -> Terminal:
        written = self.file.getvalue()
        self.stream.feed(written[self.read :].replace("\n", "\r\n"))
        self.read = len(written)
        return self

    def resize(self, columns: int, rows: int) -> None:
        self.console.size = (columns, rows)
        self.screen.resize(rows, columns)

    @property
    def lines(self) -> list[str]:
        """Everything that can be read, scrolling back."""
        left = [
            "".join(line[column].data for column in range(self.columns))
            for line in self.screen.history.top
        ]
        return [line.rstrip() for line in (*left, *self.screen.display)]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip("\n")


def shown(text: str, columns: int = 80, rows: int = 200, **settings: object) -> str:
    return Terminal(columns, rows, **settings).say(text).end().text


def test_an_answer_in_its_final_form() -> None:
    text = (
        "# A *title*\n\nSome **bold** `code`, a [link](https://a.example/x).\nSecond line.\n\n\n"
        "1. one\n2. two\n   - under `it`\n- [x] done\n\n> said\n\n***\nend"
    )
    assert shown(text) == (
        "A title\n\nSome bold code, a link (https://a.example/x).\nSecond line.\n\n"
        "1. one\n2. two\n   • under it\n☑ done\n\n▌ said\n\n" + "─" * 48 + "\nend"
    )


def test_code_is_shown_as_it_is_with_colours() -> None:
    text = '```python\ndef f():\n    """all *this*\n    is text # here"""\n\treturn 1\n```\nafter'
    terminal = Terminal().say(text).end()
    assert terminal.lines[1:5] == [
        "def f():",
        '    """all *this*',
        '    is text # here"""',
        "    return 1",
    ]
    assert terminal.lines[0].startswith("── python ──")
    row = terminal.screen.buffer[1]
    assert row[0].fg != row[4].fg
    assert {terminal.screen.buffer[3][column].fg for column in range(4, 18)} == {
        terminal.screen.buffer[2][6].fg  # the third line is still in the text, and no comment
    }


def test_a_long_text_in_code_keeps_its_colour() -> None:
    body = "".join(f"line {number} of a text\n" for number in range(300))
    code = f'```python\nx = 1\n"""\n{body}"""\ny = 2\n```\n'
    terminal = Terminal(80, 400)
    terminal.answer.say(code)
    buffer = terminal.end().screen.buffer
    assert terminal.lines[150].startswith("line 147")
    assert {buffer[row][0].fg for row in (3, 100, 200, 302)} == {buffer[3][0].fg}
    assert terminal.lines[304] == "y = 2"
    assert [buffer[304][place].fg for place in (0, 4)] == [buffer[1][place].fg for place in (0, 4)]


def test_only_the_mark_of_an_item_has_its_colour() -> None:
    row = Terminal().say("- an item").end().screen.buffer[0]
    assert (row[0].fg, row[2].fg) == ("cyan", "default")


def test_a_line_of_code_is_there_before_the_next_one_comes() -> None:
    terminal = Terminal().say("```\nfirst\nsec")
    assert terminal.text.endswith("first\nsec")


def test_a_table_is_raw_until_it_is_whole() -> None:
    terminal = Terminal().say("| a | b |\n|---|--:|\n| 1 | 日本 |\n| 3")
    assert terminal.lines[:4] == ["| a | b |", "|---|--:|", "| 1 | 日本 |", "| 3"]
    assert shown("| a | b |\n|---|--:|\n| 1 | 222 |\n| 3") == (
        "╭───┬─────╮\n│ a │   b │\n├───┼─────┤\n│ 1 │ 222 │\n│ 3 │     │\n╰───┴─────╯"
    )


def test_a_table_for_a_narrow_screen_is_told_row_by_row() -> None:
    table = "| name | size | remark |\n|---|---|---|\n| a | 1 | x |\n"
    assert shown(table, columns=20) == "name: a\nsize: 1\nremark: x\n──"


def test_commands_keep_a_line_of_their_own() -> None:
    text = "Do this:\nCMD: ls *.py *.txt __init__\nCMD: `x`\n- an item\nCMD: tail -f a\nthen."
    assert shown(text).splitlines() == [
        "Do this:",
        "CMD: ls *.py *.txt __init__",
        "CMD: `x`",
        "• an item",
        "CMD: tail -f a",
        "then.",
    ]
    assert Terminal().say("Do this:\nCMD: ls *.py *").text == "Do this:\nCMD: ls *.py *"


def test_thinking_is_dim_and_stands_apart() -> None:
    terminal = Terminal()
    for piece in ("Let me ", "see\n\n\nwhat **is**", " there"):
        terminal.answer.think(piece)
    terminal.say("It is 4.").end()
    assert terminal.text == "Let me see\n\nwhat **is** there\n\nIt is 4."
    assert "\x1b[2;3mLet me see" in terminal.file.getvalue()


def test_thinking_between_two_parts_of_an_answer() -> None:
    terminal = Terminal().say("First **this**.")
    terminal.answer.think("Hm.")
    terminal.say("Then that.\n```\ncode")
    terminal.answer.think("So.")
    terminal.say("end").end()
    said = [line for line in terminal.text.splitlines() if not line.startswith("──")]
    assert said == ["First this.", "", "Hm.", "", "Then that.", "code", "", "So.", "", "end"]


def test_nothing_that_controls_a_terminal_comes_through() -> None:
    evil = (
        "a \x1b[2J\x1b]0;title\x07 b \x9b31m &#27;[2J &#x9b;m `\x1b[H` \x08 \u202e\r\nnext\rline\n"
        "[x](https://a.example/\x1b[2J)\n```\x1b[2J\n\x1b[2J\x00\n```\n"
        "| \x1b[2J | b |\n|--|--|\n\nCMD: rm \x1b[8mx\n# \x1b[2J\n- \x1b[1A\n> \x7f\ud800"
    )
    terminal = Terminal()
    terminal.answer.think(evil)
    terminal.say(evil).end(note="\x1b[2J")
    written = OWN.sub("", terminal.file.getvalue())
    assert terminal.text.count("␍") == 2  # one in the thinking
    assert not re.search(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", written)
    assert "CMD: rm ␛[8mx" in terminal.text
    assert terminal.screen.title == ""


@given(st.text())
def test_harmless_text_stays_as_it_is(text: str) -> None:
    made = sanitize(text)
    assert sanitize(made) == made
    if text.isprintable():
        assert made == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\td", "a\nb␍c\td"),
        ("\x1b[2J\x00\x7f", "␛[2J␀␡"),
        ("\x9b\x85", "\\x9b\\x85"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("\u200b\ufeff\U000e0041", "\\u200b\\ufeff\\U000e0041"),
        ("\ud800", "\\ud800"),
        ("👨‍👩‍👧 ❤️ é 日本", "👨‍👩‍👧 ❤️ é 日本"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(text: str, expected: str) -> None:
    assert sanitize(text) == expected


@given(st.text())
def test_harmless_text_has_no_control_in_it(text: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", sanitize(text))


def is_drawn(text: str) -> bool:
    """Whether the terminal of these tests draws all of a text; joiners end what it draws."""
    return all(wcwidth(sign) > 0 for sign in sanitize(text) if sign not in "\n\t")


@given(texts.filter(is_drawn), st.integers(1, 9), st.sampled_from((20, 33, 80)))
@settings(max_examples=60)
def test_the_pieces_it_came_in_do_not_show(text: str, step: int, columns: int) -> None:
    whole = Terminal(columns, 400)
    whole.answer.say(text)
    assert Terminal(columns, 400).say(text, step).end().text == whole.end().text


words = st.lists(st.sampled_from(("word", "a", "日本語", "longerword", "🙂", "e,")), max_size=40)


@given(st.lists(words.map(" ".join), max_size=4).map("\n".join), st.integers(1, 9))
@settings(max_examples=60)
def test_on_a_screen_too_small_nothing_is_lost_or_doubled(text: str, step: int) -> None:
    terminal = Terminal(20, 4).say(text, step).end()
    assert "".join(terminal.text.split()) == "".join(text.split())


def test_a_block_taller_than_the_screen_is_not_repainted() -> None:
    words = " ".join(f"word{number}" for number in range(300))
    terminal = Terminal(40, 8).say(words[:1_000])
    before = len(terminal.file.getvalue())
    terminal.say(words[1_000:]).end()
    assert OWN.findall(terminal.file.getvalue()[before:]) == []
    assert "".join(terminal.text.split()) == words.replace(" ", "")


def test_rows_that_are_finished_are_never_written_again() -> None:
    terminal = Terminal(30, 10)
    for number in range(40):
        terminal.say(f"paragraph {number} with some words in it, more than a row\n\n")
    written = terminal.end().file.getvalue()
    assert len(written) < 2 * 40 * 60
    assert [line for line in terminal.lines if line.startswith("paragraph")] == [
        f"paragraph {number} with some words" for number in range(40)
    ]


def test_what_comes_is_written_and_not_the_block_anew() -> None:
    terminal = Terminal(80, 24).say("a paragraph that is growing, and ")
    before = len(terminal.file.getvalue())
    terminal.say("growing", step=1)
    assert terminal.file.getvalue()[before:] == " growing"


@pytest.mark.parametrize("columns", [24, 60])
def test_a_resize_in_the_middle_loses_nothing(columns: int) -> None:
    terminal = Terminal(40, 12)
    terminal.say("first\n\nsome **words** that are more than a row of forty columns, ")
    terminal.resize(columns, 9)
    written = len(terminal.file.getvalue())
    terminal.say("and *the rest*.\n\nA new paragraph.").end()
    after = terminal.file.getvalue()[written:]
    assert after.startswith(" and *the rest*.\n\nA")
    assert "\x1b[1A" not in after
    assert terminal.text.endswith("\n\nA new paragraph.")


def test_after_a_resize_the_next_block_has_its_form_again() -> None:
    terminal = Terminal(40, 12).say("1. one **item** that")
    terminal.resize(30, 12)
    terminal.say(" goes **on**\n2. two\n   - under `it`\n- x\n").end()
    assert terminal.lines[:4] == ["1. one item that goes **on**", "2. two", "   • under it", "• x"]


def test_stopped_in_the_middle_it_leaves_a_clean_line() -> None:
    for text in ("some **bo", "```py\nx = '", "| a |\n|--|\n| 1", "1. on", "", "\n\n", "CMD: l"):
        terminal = Terminal(30, 10).say(text).end(note="stopped")
        assert terminal.lines[terminal.screen.cursor.y - 1] == "stopped"
        assert terminal.screen.cursor.x == 0
        assert not terminal.screen.cursor.hidden
        assert terminal.screen.cursor.attrs.fg == "default"
        assert not terminal.screen.cursor.attrs.bold


class Interrupted(io.StringIO):
    """A terminal that is stopped by Ctrl-C in the middle of a write."""

    at = 10_000

    def write(self, text: str) -> int:
        if self.tell() + len(text) > self.at:
            super().write(text[: self.at - self.tell()])
            self.at = 10_000
            raise KeyboardInterrupt
        return super().write(text)


@given(st.integers(0, 120))
@settings(max_examples=40)
def test_an_interrupted_write_loses_nothing(at: int) -> None:
    text = "**one** two\n\n`three` four\nfive\n\nsix **seven** eight"
    terminal = Terminal(40, 12)
    terminal.console.file = terminal.file = Interrupted()
    terminal.file.at = at
    said = 0
    try:
        for start, stop in pairwise(range(0, len(text) + 8, 7)):
            said = stop
            terminal.answer.say(text[start:stop])
    except KeyboardInterrupt:
        pass
    terminal.file.at = 10_000
    terminal.end(note="stopped")
    for word in re.findall(r"\w+", text[:said]):
        assert word in terminal.text
    assert terminal.screen.cursor.attrs.fg == "default"
    assert terminal.lines[terminal.screen.cursor.y - 1] == "stopped"


def test_without_a_terminal_the_text_is_unchanged() -> None:
    text = "# A\n\n**b** \x1b[1m\r\n| a |\n"
    file = io.StringIO()
    answer = AnswerScreen(Console(file=file))
    for sign in text:
        answer.say(sign)
    answer.end()
    assert file.getvalue() == text


def test_without_a_terminal_thinking_has_lines_of_its_own() -> None:
    file = io.StringIO()
    answer = AnswerScreen(Console(file=file))
    for piece in ("hm", ", so"):
        answer.think(piece)
    answer.say("4")
    answer.think("")
    answer.say("2")
    answer.end()
    assert file.getvalue() == "hm, so\n42\n"


def test_a_dumb_terminal_gets_plain_text_without_control() -> None:
    terminal = Terminal(TERM="dumb")
    assert terminal.say("# A **b**\r\nc \x1b[2J", step=1).end("stopped").file.getvalue() == (
        "# A **b**\nc ␛[2J\nstopped\n"
    )


def test_without_colours_the_structure_stays() -> None:
    terminal = Terminal(NO_COLOR="1").say("# A\n`x` **b**\n```python\ndef f(): 1\n```\n").end()
    assert terminal.lines[:2] == ["A", "`x` b"]
    assert not re.search(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|4[0-7])m", terminal.file.getvalue())
    assert "\x1b[1m" in terminal.file.getvalue()


def test_an_encoding_without_a_sign_is_no_error() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    answer = AnswerScreen(Console(file=file, force_terminal=True, width=40, height=10))
    answer.say("- 日本 ok\n")
    answer.end()
    assert b"?? ok" in raw.getvalue()


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, brim.shell.render.markdown as m\n"
        "heavy = {'rich.markdown', 'rich.syntax', 'pygments', 'markdown_it'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
