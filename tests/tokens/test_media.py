"""Tokens of images, audio and files, by the providers' rules."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.messages import Media, Message
from brim.tokens import counter_for

MODELS = ["gpt-4o", "gpt-4o-mini", "gpt-5-mini", "gpt-6-sol", "claude-opus-4-1", "claude-opus-5"]
MODELS += [
    "gemini-2.5-pro",
    "gemini-3-flash",
    "qwen2.5-vl",
    "mistral-small-3.2",
    "grok-4",
    "unknown",
]


def tokens(model: str, media: Media) -> int:
    counter = counter_for(model)
    return counter.message(Message("user", media=(media,))) - counter.message(Message("user"))


@pytest.mark.parametrize(
    ("model", "width", "height", "detail", "expected"),
    [
        # The worked examples of OpenAI's documentation.
        ("gpt-4o", 1024, 1024, "high", 765),
        ("gpt-4o", 2048, 4096, "high", 1105),
        ("gpt-4o", 4096, 8192, "low", 85),
        ("gpt-4o", 64, 64, "", 255),
        ("gpt-4o-mini", 1024, 1024, "", 25_501),
        ("gpt-4.1-mini", 1024, 1024, "", 1_659),  # 32 x 32 patches x 1.62
        ("gpt-5-mini", 256, 256, "", 77),  # 8 x 8 patches x 1.2
        ("gpt-5-mini", 3840, 2160, "", 1_844),  # the cap
        ("gpt-6-sol", 4032, 3024, "auto", 14_364),  # as billed
        ("gpt-6-sol", 4032, 3024, "high", 3_000),
        # 28-pixel patches; Anthropic reduces larger images.
        ("claude-opus-4-1", 1000, 1000, "", 1_296),
        ("claude-opus-4-1", 200, 200, "", 64),
        ("claude-opus-4-1", 4000, 4000, "", 1_568),
        ("claude-opus-5", 4000, 4000, "", 4_784),
        ("claude-opus-4-1", 3136, 28, "", 56),
        ("gemini-2.5-pro", 384, 384, "", 258),
        ("gemini-2.5-pro", 1536, 768, "", 516),
        ("gemini-3-flash", 100, 100, "", 1_120),
        ("gemini-3-flash", 100, 100, "low", 280),
        ("unknown", 100, 100, "", 1_000),
    ],
)
def test_images_count_by_the_providers_formula(
    model: str, width: int, height: int, detail: str, expected: int
) -> None:
    assert tokens(model, Media("image", width, height, detail)) == expected


@pytest.mark.parametrize(
    ("model", "cap"),
    [("gpt-4o", 1_445), ("claude-opus-4-1", 1_568), ("claude-opus-5", 4_784), ("unknown", 1_000),
     ("qwen3-32b", 1_000), ("qwen3-vl-8b", 16_384), ("qwen2.5-vl-7b", 16_384)],
)  # fmt: skip
def test_an_image_of_unknown_size_counts_as_the_cap(model: str, cap: int) -> None:
    assert tokens(model, Media("image")) == cap


def test_an_image_without_a_source_counts_as_one_of_unknown_size() -> None:
    messages = [{"role": "user", "content": [{"type": "image"}]}]
    assert brim.count(messages, model="claude-opus-4-1") > 1_568


@given(
    st.sampled_from(MODELS),
    st.integers(1, 2**31),
    st.integers(1, 2**31),
    st.sampled_from(["", "auto", "low", "high", "original", "unknown"]),
)
def test_an_image_counts_between_one_and_the_cap(
    model: str, width: int, height: int, detail: str
) -> None:
    unknown = tokens(model, Media("image", detail=detail))
    assert 1 <= tokens(model, Media("image", width, height, detail)) <= unknown


def test_audio_is_counted_by_its_bytes() -> None:
    minute = 60 * 16_000  # at 128 kbit/s
    assert tokens("gpt-4o", Media("audio", size=minute)) == 2_400
    assert tokens("gemini-2.5-flash", Media("audio", size=minute)) == 7_680
    assert tokens("gpt-4o", Media("audio")) == 1_000
    assert tokens("gpt-4o", Media("audio", size=1)) == 1


def test_files_are_counted_by_pages() -> None:
    assert tokens("claude-opus-5", Media("file")) == 2_400
    assert tokens("claude-opus-5", Media("file", size=1)) == 2_400
    assert tokens("claude-opus-5", Media("file", size=100_000)) == 5 * 2_400
    assert tokens("claude-opus-5", Media("file", size=3_000_000)) == (10 + 28) * 2_400
    assert tokens("gemini-3-flash", Media("file", size=100_000)) == 5 * 560


@pytest.mark.parametrize("kind", ["audio", "file"])
@given(model=st.sampled_from(MODELS), size=st.integers(0, 10**12))
def test_more_bytes_never_count_less(kind: Literal["audio", "file"], model: str, size: int) -> None:
    smaller, larger = Media(kind, size=size + 1), Media(kind, size=2 * size + 1)
    assert 1 <= tokens(model, smaller) <= tokens(model, larger)
