"""Tokens of images, audio and files, by the rules of the providers.

Counts are upper estimates, and nothing is free: an image of unknown size counts as the largest
image. Audio is assumed to be compressed speech (32 kbit/s, the lowest common rate) at the family's
tokens per second: 400 bytes are one token at 10 tokens per second. A file is assumed to consist of
pages: one page of text per 20 kB up to 200 kB, then, because images explain larger files, one page
per 100 kB.

The size of an image is read from the first bytes of a PNG, JPEG, GIF or WebP file without decoding
it. Truncated, broken or other files have no size.
"""

from __future__ import annotations

from binascii import a2b_base64
from math import ceil
from typing import assert_never

from brim.messages import Media
from brim.tokens.families import Family, ImageRule

UNKNOWN_AUDIO_TOKENS = 1_000
"""Tokens of audio of unknown length."""
TEXT_PAGE = 20_000
TEXT_PAGES = 10
IMAGE_PAGE = 100_000

PREFIX_LENGTHS = (64, 4_096, 65_536, 1_048_576)
"""Base64 characters to read, in successive attempts: only a JPEG that starts with long metadata (a
color profile, a preview) needs more than the first."""
MAX_SEGMENTS = 1_000
"""JPEG segments before the frame; a file with more is made to waste time."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of frames, which contain the size; the other three of this range are tables."""
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""JPEG markers without a segment."""

Size = tuple[int, int]


def count_media(media: Media, family: Family) -> int:
    """Return the tokens of one image, audio, file or list of tokens for a model family."""
    match media.kind:
        case "image":
            return max(1, _count_image(media, family.images))
        case "audio":
            return ceil(media.size / family.audio) if media.size > 0 else UNKNOWN_AUDIO_TOKENS
        case "file":
            return family.page * _count_pages(media.size)
        case "tokens":
            return media.size
        case _:
            assert_never(media.kind)


def _count_pages(size: int) -> int:
    text = min(size, TEXT_PAGE * TEXT_PAGES)
    return max(1, ceil(text / TEXT_PAGE) + ceil((size - text) / IMAGE_PAGE))


def _count_image(media: Media, rule: ImageRule) -> int:
    cap = rule.caps.get(media.detail, rule.cap)
    width, height = media.width, media.height
    if rule.rule == "flat" or width <= 0 or height <= 0:
        return ceil(cap * rule.factor)
    match rule.rule:
        case "tiles":
            return min(cap, rule.base + rule.each * _count_tiles(width, height, rule.side))
        case "patches":
            width, height = _shrink_to_edge(width, height, rule.edge)
            return ceil(min(cap, _count_cells(width, height, rule.side)) * rule.factor)
        case "blocks":
            return min(cap, rule.each * _count_cells(width, height, rule.side))
        case _:
            assert_never(rule.rule)


def _count_tiles(width: int, height: int, side: int) -> int:
    """OpenAI's tiles: the image is fitted into 2048 x 2048, then to a short side of 768."""
    width, height = _shrink_to_edge(width, height, 2048)
    shrink = min(1.0, 768 / min(width, height))
    return _count_cells(ceil(width * shrink), ceil(height * shrink), side)


def _shrink_to_edge(width: int, height: int, edge: int) -> tuple[int, int]:
    """Shrink an image so that its longer side is at most `edge` (0: no limit)."""
    longest = max(width, height)
    if not 0 < edge < longest:
        return width, height
    return max(1, ceil(width * edge / longest)), max(1, ceil(height * edge / longest))


def _count_cells(width: int, height: int, side: int) -> int:
    return ceil(width / side) * ceil(height / side)


# The size of an image


def image_size(data: bytes) -> Size | None:
    """Return width and height in pixels; None if they cannot be read."""
    size: Size | None = None
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR" and len(data) >= 24:
        size = _read_big_endian(data, 16, 4), _read_big_endian(data, 20, 4)
    elif data.startswith((b"GIF87a", b"GIF89a")) and len(data) >= 10:
        size = _read_little_endian(data, 6, 2), _read_little_endian(data, 8, 2)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP" and len(data) >= 30:
        size = _webp_size(data)
    elif data.startswith(b"\xff\xd8"):
        size = _jpeg_size(data)
    return size if size is not None and min(size) > 0 else None


def image_size_base64(text: str) -> Size | None:
    """Return the size of a base64 image, reading as few characters as possible."""
    for length in PREFIX_LENGTHS:
        start = "".join(text[:length].split())
        try:
            data = a2b_base64(start[: len(start) // 4 * 4])
        except ValueError:
            return None
        size = image_size(data)
        if size is not None or length >= len(text) or not data.startswith(b"\xff\xd8"):
            return size
    return None


def _webp_size(data: bytes) -> Size | None:
    match data[12:16]:
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            width, height = _read_little_endian(data, 26, 2), _read_little_endian(data, 28, 2)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L" if data[20] == 0x2F:
            bits = _read_little_endian(data, 21, 4)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return _read_little_endian(data, 24, 3) + 1, _read_little_endian(data, 27, 3) + 1
        case _:
            return None


def _jpeg_size(data: bytes) -> Size | None:
    """Skip the segments, each of which contains its length, up to the first frame."""
    offset = 2
    for _ in range(MAX_SEGMENTS):
        if offset + 9 > len(data) or data[offset] != 0xFF:
            break
        marker = data[offset + 1]
        if marker == 0xFF:  # padding
            offset += 1
        elif marker in _BARE:
            offset += 2
        elif marker in _FRAMES:
            return _read_big_endian(data, offset + 7, 2), _read_big_endian(data, offset + 5, 2)
        else:
            offset += 2 + max(2, _read_big_endian(data, offset + 2, 2))
    return None


def _read_big_endian(data: bytes, offset: int, length: int) -> int:
    return int.from_bytes(data[offset : offset + length], "big")


def _read_little_endian(data: bytes, offset: int, length: int) -> int:
    return int.from_bytes(data[offset : offset + length], "little")
