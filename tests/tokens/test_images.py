"""The size of an image, from its first bytes."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.tokens.media_tokens import image_size, image_size_base64

sides = st.integers(1, 16_383)
Kind = Callable[[int, int], bytes]


def png(width: int, height: int) -> bytes:
    return (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
        + struct.pack(">II", width, height)
        + b"\x08\x06"
        + b"\0" * 99
    )


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\xf7\0\0"


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def jpeg(width: int, height: int, *before: bytes, frame: int = 0xC0) -> bytes:
    size = struct.pack(">BHHB", 8, height, width, 3) + b"\x01\x22\0\x02\x11\x01\x03\x11\x01"
    return b"\xff\xd8" + b"".join(before) + segment(frame, size) + b"\xff\xda" + b"\0" * 50


def riff(kind: bytes, content: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


def lossy(width: int, height: int) -> bytes:
    return riff(b"VP8 ", b"\x30\x01\0\x9d\x01\x2a" + struct.pack("<HH", width, height) + b"\0" * 20)


def lossless(width: int, height: int) -> bytes:
    bits = (width - 1) | (height - 1) << 14 | 1 << 28
    return riff(b"VP8L", b"\x2f" + struct.pack("<I", bits) + b"\0" * 20)


def make_extended(width: int, height: int) -> bytes:
    canvas = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return riff(b"VP8X", b"\x10\0\0\0" + canvas + b"\0" * 20)


def progressive(width: int, height: int) -> bytes:
    return jpeg(width, height, frame=0xC2)


def make_annotated(width: int, height: int) -> bytes:
    """With a color profile of 150 kB, padding, and a Huffman table before the frame."""
    profile = segment(0xE2, b"\0" * 50_000)
    return jpeg(width, height, profile, b"\xff\xff" + profile, profile, segment(0xC4, b"\0" * 28))


KINDS: list[Kind] = [png, gif, jpeg, progressive, make_annotated, lossy, lossless, make_extended]
kinds = st.sampled_from(KINDS)


@given(kinds, sides, sides)
def test_the_size_is_read_from_every_image_type(kind: Kind, width: int, height: int) -> None:
    data = kind(width, height)
    assert image_size(data) == (width, height)
    assert image_size_base64(base64.b64encode(data).decode()) == (width, height)


@given(kinds, st.data())
def test_a_truncated_image_has_the_right_size_or_none(kind: Kind, data: st.DataObject) -> None:
    whole = kind(640, 480)
    part = whole[: data.draw(st.integers(0, min(len(whole), 300)))]
    assert image_size(part) in (None, (640, 480))


@given(st.sampled_from([b"", *(kind(3, 2)[:8] for kind in KINDS), lossy(3, 2)[:16]]), st.binary())
def test_random_bytes_do_not_raise(start: bytes, rest: bytes) -> None:
    size = image_size(start + rest)
    assert size is None or min(size) > 0


@given(st.text(max_size=200))
def test_random_text_does_not_raise(text: str) -> None:
    size = image_size_base64(text)
    assert size is None or min(size) > 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"%PDF-1.7",
        png(0, 5),
        gif(5, 0),
        b"\xff\xd8" + b"\xff" * 1_000_000,
        b"\xff\xd8" + b"\xff\xe0\0\0" * 1_000_000,
        riff(b"ALPH", b"\0" * 40),
    ],
    ids=["empty", "pdf", "no width", "no height", "filling", "empty segments", "other chunk"],
)
def test_data_without_a_size_gives_none(data: bytes) -> None:
    assert image_size(data) is None


def test_line_breaks_in_base64_are_ignored() -> None:
    text = base64.encodebytes(jpeg(640, 480, segment(0xE1, b"\0" * 9_000))).decode()
    assert image_size_base64(text) == (640, 480)


def test_only_the_beginning_of_a_long_text_is_decoded() -> None:
    text = base64.b64encode(png(640, 480)).decode() + "!" * 1_000_000
    assert image_size_base64(text) == (640, 480)
