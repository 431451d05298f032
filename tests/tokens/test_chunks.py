"""Long texts, split into chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.tokens.vocabularies import (
    LENGTH,
    SEARCH,
    SLACK,
    VocabularyTokenizer,
    count_in_chunks,
    split_chunks,
)

PARTS = ["word ", "a, b; ", "字。", "\n\n", "x" * 50_000, " " * 40_000, "{" * 9_999, "é😀"]
long_texts = st.lists(st.sampled_from(PARTS), max_size=30).map(lambda parts: "".join(parts) * 9)


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


@given(long_texts)
def test_chunks_add_up_to_the_text(text: str) -> None:
    pieces = [chunk for chunk, _ in split_chunks(text)]
    assert "".join(pieces) == text
    assert all(len(piece) <= LENGTH + SEARCH for piece in pieces)
    assert VocabularyTokenizer("letters", letters).encode(text) == letters(text)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("word " * 20_000, True),
        ("line\n" * 20_000, True),
        ("1,22;" * 20_000, True),
        ("字。" * 40_000, True),
        ("x" * 100_000, False),
        (" " * 100_000, False),
        ("😀" * 100_000, False),
    ],
)
def test_chunks_end_at_word_boundaries_if_there_are_any(text: str, clean: bool) -> None:
    *cut, last = split_chunks(text)
    assert last[1]
    assert {place for _, place in cut} == {clean}


def test_a_split_inside_a_word_gives_an_upper_estimate() -> None:
    assert count_in_chunks("x" * 3 * LENGTH, lambda _: 1) == 3 + 2 * SLACK


class PanicException(BaseException):
    """The name of the exception that a panic in Rust raises."""


def test_a_panicking_encoder_falls_back_to_the_bytes() -> None:
    def count(text: str) -> int:
        raise PanicException(text)

    assert count_in_chunks("größe", count) == 7


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_other_exceptions_propagate(error: type[BaseException]) -> None:
    def count(text: str) -> int:
        raise error(text)

    with pytest.raises(error):
        count_in_chunks("text", count)
