from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.shell.render.sanitize import sanitize


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
def test_control_and_invisible_characters_are_spelled_out(text: str, expected: str) -> None:
    assert sanitize(text) == expected


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b]0;title\x07",
        "\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\",
        "\x1b]52;c;cm0gLXJm\x07",
        "\x1b[2J\x1b[H",
        "\x1b[8mhidden\x1b[0m",
        "\x1bc",
        "\x1bP+q544e\x1b\\",
        "\x9b2J",
        "\x9d0;title\x9c",
        "\x90q\x9c",
        "\x0e\x0f\x05\x07\x08",
    ],
)
def test_escape_sequences_cannot_reach_the_terminal(hostile: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", sanitize(f"before {hostile} after"))


@given(st.text())
def test_sanitized_text_contains_no_control_character(text: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", sanitize(text))


@given(st.text())
def test_printable_text_is_unchanged_and_sanitizing_twice_changes_nothing(text: str) -> None:
    sanitized = sanitize(text)
    assert sanitize(sanitized) == sanitized
    if text.isprintable():
        assert sanitized == text
