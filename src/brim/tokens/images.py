"""The size of a picture, read from the first bytes of its file: PNG, JPEG, GIF and WebP.

Nothing is decoded. What is cut off, broken or of another kind has no size, and costs its family's
largest picture.
"""

from __future__ import annotations

from binascii import a2b_base64

PREFIX_LENGTHS = (64, 4_096, 65_536, 1_048_576)
"""Characters of base64 that are looked at, one try after the other: only a JPEG that begins with
long notes (a profile, a preview) needs more than the first."""
MAX_SEGMENTS = 1_000
"""Segments of a JPEG before its frame; more are made to keep somebody busy."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""The markers that begin a frame and tell its size; the other three of this row are tables."""
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers of a JPEG that nothing belongs to."""

Size = tuple[int, int]


def image_size(data: bytes) -> Size | None:
    """Width and height in pixels, or None where they cannot be read."""
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
    """The size of a picture in base64, from as few characters as needed."""
    for lead in PREFIX_LENGTHS:
        start = "".join(text[:lead].split())
        try:
            data = a2b_base64(start[: len(start) // 4 * 4])
        except ValueError:
            return None
        size = image_size(data)
        if size is not None or lead >= len(text) or not data.startswith(b"\xff\xd8"):
            return size
    return None


def _webp_size(data: bytes) -> Size | None:
    match data[12:16]:
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            return _read_little_endian(data, 26, 2) & 0x3FFF, _read_little_endian(
                data, 28, 2
            ) & 0x3FFF
        case b"VP8L" if data[20] == 0x2F:
            bits = _read_little_endian(data, 21, 4)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return _read_little_endian(data, 24, 3) + 1, _read_little_endian(data, 27, 3) + 1
        case _:
            return None


def _jpeg_size(data: bytes) -> Size | None:
    """Walk over the segments to the first frame; each says how long it is."""
    place = 2
    for _ in range(MAX_SEGMENTS):
        if place + 9 > len(data) or data[place] != 0xFF:
            break
        marker = data[place + 1]
        if marker == 0xFF:  # filling
            place += 1
        elif marker in _BARE:
            place += 2
        elif marker in _FRAMES:
            return _read_big_endian(data, place + 7, 2), _read_big_endian(data, place + 5, 2)
        else:
            place += 2 + max(2, _read_big_endian(data, place + 2, 2))
    return None


def _read_big_endian(data: bytes, place: int, length: int) -> int:
    return int.from_bytes(data[place : place + length], "big")


def _read_little_endian(data: bytes, place: int, length: int) -> int:
    return int.from_bytes(data[place : place + length], "little")
