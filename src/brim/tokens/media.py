"""What pictures, sounds and files cost, by the rules of the providers.

All of it is on the high side, and nothing is free: a picture whose size is not known costs what
the largest one would. Sound is taken to be a compressed voice (32 kbit/s, the least that is
common) at the family's tokens per second, so that 400 bytes are a token at 10 tokens a second. A
file is taken to be pages: up to 200 kB a page of text on every 20 kB, and what is beyond, where
pictures are the reason for the size, a page on every 100 kB.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from brim.messages import Media
    from brim.tokens.families import Family, ImageRule

UNKNOWN_AUDIO_TOKENS = 1_000
"""Tokens of a sound whose length nobody knows."""
TEXT_PAGE = 20_000
TEXT_PAGES = 10
IMAGE_PAGE = 100_000


def count_media(media: Media, family: Family) -> int:
    """The tokens of one picture, sound or file for a family of models."""
    match media.kind:
        case "image":
            return max(1, _count_image(media, family.pictures))
        case "audio":
            return ceil(media.size / family.audio) if media.size > 0 else UNKNOWN_AUDIO_TOKENS
        case "file":
            return family.page * _count_pages(media.size)
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
            return ceil(
                min(cap, _count_cells(*_shrink_to_edge(width, height, rule.edge), rule.side))
                * rule.factor
            )
        case "blocks":
            return min(cap, rule.each * _count_cells(width, height, rule.side))
        case _:
            assert_never(rule.rule)


def _count_tiles(width: int, height: int, side: int) -> int:
    """OpenAI's tiles: the picture is fitted into 2048 squared, then to a short side of 768."""
    width, height = _shrink_to_edge(width, height, 2048)
    shrink = min(1.0, 768 / min(width, height))
    return _count_cells(ceil(width * shrink), ceil(height * shrink), side)


def _shrink_to_edge(width: int, height: int, edge: int) -> tuple[int, int]:
    """Reduce a picture so that its longer side is at most `edge` (0: leave it as it is)."""
    longest = max(width, height)
    if not 0 < edge < longest:
        return width, height
    return max(1, ceil(width * edge / longest)), max(1, ceil(height * edge / longest))


def _count_cells(width: int, height: int, side: int) -> int:
    return ceil(width / side) * ceil(height / side)
