"""The text of an output after its escape sequences have been applied."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brim.shell.terminal.output_text import OutputCleaner
from brim.shell.terminal.screen_buffer import LONGEST


def clean_output(data: bytes) -> str:
    """Convert a complete output."""
    cleaner = OutputCleaner()
    return cleaner.feed(data) + cleaner.finish()


LINES = "".join(f"line {number}\r\n" for number in range(60))


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ("", ""),
        ("plain\r\n", "plain\n"),
        ("a\nb\n", "a\nb\n"),
        ("tab\there", "tab\there"),
        ("\x1b[1;31mred\x1b[0m and \x1b[38;2;1;2;3mmore\x1b[m", "red and more"),
        ("\x1b[01;31m\x1b[Kmatch\x1b[m\x1b[K rest\r\n", "match rest\n"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://a.b\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2;0;0;0\x1b\\after", "after"),
        ("\x1b]never closed\r\nnext", "\nnext"),
        ("10%\r20%\r100%\r\ndone", "100%\ndone"),
        ("long line\rshort\x1b[K\n", "short\n"),
        ("long line\rshort\n", "shortline\n"),
        ("abc\b\bX", "aXc"),
        ("passwors\b \bd", "password"),
        ("one\r\ntwo\r\n\x1b[2A\x1b[2KONE\r\n\x1b[2KTWO\r\n", "ONE\nTWO\n"),
        ("a\r\nb\r\nc\x1b[1A\x1b[Jx", "a\nbx"),
        ("ab\x1b[3Cc", "ab   c"),
        ("abcdef\x1b[4D\x1b[2P", "abef"),
        ("abef\x1b[2D\x1b[2@cd", "abcdef"),
        ("abcd\x1b[3D\x1b[2X", "a  d"),
        ("abc\x1b[1Gx\x1b[6Gy", "xbc  y"),
        ("before\r\n\x1b[?1049h\x1b[Hscreen\x1b[2J\x1b[?1049lafter\r\n", "before\nafter\n"),
        ("\x1b[?47hx\x1b[31my\x1b[?47lz", "z"),
        ("text\r\n\x1b[?1049hkilled here", "text\n"),
        ("$ \x1b[H\x1b[2J\x1b[3Jnew", "$ \nnew"),
        ("\x1b[H\x1b[2Jone\r\n\x1b[H\x1b[2Jtwo\r\n", "two\n"),
        ("\x1b[Htop\r\nrow\r\n\x1b[HTOP", "TOP\nrow\n"),
        ("work\r\n\x1b7\x1b[24;0fProgress 10%\x1b8more\r\n", "work\nmore\n"),
        ("bell\x07 nul\x00 del\x7f\x0e\x0f", "bell nul del"),
        ("\x1b(Btext\x1b(0", "text"),
        ("cut off \x1b[3", "cut off "),
        ("\x1b[31\r\nwrong", "[31\nwrong"),
        ("é中🙂\r\n", "é中🙂\n"),
        (LINES + "\x1b[99Atop", LINES.replace("\r", "").replace("line 37\n", "tope 37\n")),
    ],
)
def test_the_text_is_what_a_user_would_see(sent: str, seen: str) -> None:
    assert clean_output(sent.encode()) == seen


def paint(number: int, rows: int, end: str = "") -> str:
    """Paint a screen as a monitor does: from the top left, row by row."""
    lines = [f"picture {number}", *(f"row {row} of {number}" for row in range(2, rows + 1))]
    return "\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K" + end


def lines_of(picture: str) -> list[str]:
    return picture.removeprefix("\x1b[H").replace("\x1b[K", "").replace("\r", "").split("\n")


@pytest.mark.parametrize("rows", [3, 10, 11, 15])
@pytest.mark.parametrize("end", ["", "\r\n", "\x1b[J"])
@pytest.mark.parametrize("clears", ["", "\x1b[2J"])
def test_only_the_last_of_repainted_pictures_is_kept(rows: int, end: str, clears: str) -> None:
    cleaner = OutputCleaner(height=10)
    pictures = "".join(paint(number, rows, end) + clears for number in range(50))
    last = paint(50, rows)
    seen = cleaner.feed(f"before\r\n{pictures}{last}\r\nafter".encode()) + cleaner.finish()
    assert seen.split("\n") == ["before", *lines_of(last), "after"]


def test_a_picture_repainted_after_a_resize_is_kept_once() -> None:
    cleaner = OutputCleaner(height=10)
    seen = cleaner.feed("".join(paint(number, 10) for number in range(5)).encode())
    cleaner.resize(width=80, height=40)
    seen += cleaner.feed("".join(paint(number, 40) for number in range(5, 9)).encode())
    cleaner.resize(width=80, height=20)
    seen += cleaner.feed(f"{paint(9, 20)}\x1b[J\r\n".encode()) + cleaner.finish()
    assert seen.split("\n") == [*lines_of(paint(9, 20)), ""]


def test_long_output_after_clearing_the_screen_is_not_a_picture() -> None:
    numbers = "".join(f"{number}\r\n" for number in range(500))
    cleaner = OutputCleaner(height=10)
    sent = f"\x1b[H\x1b[2J{numbers}\x1b[H\x1b[2Jdone"
    handed = cleaner.feed(sent.encode()) + cleaner.finish()
    assert handed.split("\n")[:491] == [str(number) for number in range(491)]
    assert handed.endswith("\ndone")


def test_invalid_utf8_is_replaced() -> None:
    assert clean_output(b"a\xff\xfe\x80b") == "a\ufffd\ufffd\ufffdb"


def test_a_very_long_line_is_neither_lost_nor_split() -> None:
    text = "0123456789" * LONGEST
    assert clean_output(text.encode()) == text


def test_scrolled_lines_are_returned_immediately() -> None:
    cleaner = OutputCleaner(height=10)
    out = cleaner.feed(b"line\r\n" * 100_000)
    assert out.count("\n") >= 99_990
    assert len(out + cleaner.finish()) == 500_000


@pytest.mark.parametrize(
    ("sent", "repairs"),
    [
        (b"plain", b""),
        (b"\x1b[?1049h\x1b[?25lkilled", b"\x1b[?25h\x1b[?1049l"),
        (b"\x1b[?1049h\x1b[?25lx\x1b[?25h\x1b[?1049l", b""),
        (b"\x1b[31mred", b"\x1b[0m"),
        (b"\x1b[31mred\x1b[0m", b""),
        (b"\x1b[31mred\x1b[m and mmm", b""),
        (b"mmm \x1b[31m mmm\r\n", b"\x1b[0m"),
        (b"\x1b[?1000h\x1b[?1006h", b"\x1b[?1000l\x1b[?1006l"),
        (b"\x0ebox", b"\x0f\x1b(B"),
        (b"\x1b[?1049h\x1b[31m\x0e\x1bc", b""),
    ],
)
def test_terminal_modes_are_restored(sent: bytes, repairs: bytes) -> None:
    cleaner = OutputCleaner()
    cleaner.feed(sent)
    assert cleaner.repairs == repairs


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=6),
        st.text(max_size=4).map(lambda text: text.encode(errors="replace")),
        st.sampled_from(
            [b"\r\n", b"\n", b"\r", b"\b", b"\x1b", b"\x1b[", b"\x1b]0;", b"\x07", b"\x1b\\", b"m"]
        ),
        st.sampled_from(
            [b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[H", b"\x1b[2J", b"\x1b[J", b"\x1b[K", b"\x1bP"]
        ),
        st.builds(
            lambda number, final: f"\x1b[{number}{final}".encode(),
            st.integers(0, 99_999),
            st.sampled_from("ABCDEFGHJKPX@mfsu"),
        ),
        st.sampled_from([b"\x1b7", b"\x1b8", b"\x1bM", b"\x1b[3;7H", b"word " * 9, b"l\r\n" * 9]),
    ),
    max_size=40,
).map(b"".join)


@given(sent=PIECES, cuts=st.lists(st.integers(0, 400), max_size=20), height=st.integers(1, 8))
@example(sent=b"\x1b[H\x1b[2J\n\n\n\x1b[J", cuts=[3], height=2)
def test_splitting_the_bytes_makes_no_difference(sent: bytes, cuts: list[int], height: int) -> None:
    whole, pieces = OutputCleaner(height=height), OutputCleaner(height=height)
    edges = [0, *sorted(cuts), len(sent)]
    parts = [pieces.feed(sent[a:b]) for a, b in pairwise(edges)]
    assert whole.feed(sent) + whole.finish() == "".join(parts) + pieces.finish()
    assert whole.repairs == pieces.repairs


@given(sent=PIECES)
def test_no_control_character_is_left(sent: bytes) -> None:
    assert all(c in "\n\t" or c >= " " for c in clean_output(sent))
