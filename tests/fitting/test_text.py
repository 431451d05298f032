"""Everyday helpers: tokens of a text, truncation, facts of models."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.fitting.text import Keep

TEXT = "".join(f"Keep the head, the tail or the middle of {n}: größe 漢字 🙂. " for n in range(20))


def test_encoding_and_decoding_are_inverse() -> None:
    tokens = brim.encode(TEXT, model="gpt-4o")
    assert len(tokens) == brim.count(TEXT, model="gpt-4o")
    assert brim.decode(tokens, model="gpt-4o") == TEXT
    assert brim.decode(brim.encode(TEXT)) == TEXT


def test_a_tokenizer_that_only_counts_cannot_encode() -> None:
    with pytest.raises(brim.UnknownTokenizerError, match="encode"):
        brim.encode("x", tokenizer="chars/4")
    with pytest.raises(brim.UnknownTokenizerError, match="decode"):
        brim.decode([1], tokenizer="chars/4")


@given(st.text(), st.integers(0, 30), st.sampled_from(["head", "tail", "middle"]))
def test_a_truncated_text_is_a_part_with_at_most_that_many_tokens(
    text: str,
    tokens: int,
    keep: Keep,
) -> None:
    part = brim.truncate(text, tokens, model="gpt-4o", keep=keep)
    assert brim.count(part, model="gpt-4o") <= tokens
    assert part in text
    if brim.count(text, model="gpt-4o") <= tokens:
        assert part == text


def test_the_part_is_as_long_as_it_can_be() -> None:
    head = brim.truncate(TEXT, 50, model="gpt-4o")
    assert TEXT.startswith(head)
    assert brim.count(TEXT[: len(head) + 12], model="gpt-4o") > 50
    assert TEXT.endswith(brim.truncate(TEXT, 50, model="gpt-4o", keep="tail"))
    middle = brim.truncate(TEXT, 50, model="gpt-4o", keep="middle")
    assert abs(TEXT.index(middle, 400) - (len(TEXT) - len(middle)) // 2) <= 70


def test_invalid_arguments_raise_an_input_error() -> None:
    with pytest.raises(brim.InputError):
        brim.truncate("x", -1)
    with pytest.raises(brim.InputError):
        brim.truncate("x", 1, keep="start")  # type: ignore[arg-type]
    for function in (brim.encode, partial(brim.truncate, tokens=1)):
        with pytest.raises(brim.InputError, match="not a string"):
            function(5)  # type: ignore[arg-type]
    for find in (brim.window, brim.price):
        with pytest.raises(brim.InputError, match="model name"):
            find(None)  # type: ignore[arg-type]
    for tokens in ("text", [10**9], [-1], [2**70], 5):
        with pytest.raises(brim.InputError, match="not tokens"):
            brim.decode(tokens)  # type: ignore[arg-type]


def test_window_and_price_are_those_of_the_catalog() -> None:
    assert brim.window("gpt-4o") == 128_000
    assert brim.window("no-such-model") is None
    price = brim.price("gpt-4o")
    assert price is not None
    assert price.input
    assert brim.price("no-such-model") is None
