"""Images, sounds and files as they stand in requests: what can be told of them without fetching."""

from __future__ import annotations

from collections.abc import Mapping

from brim.messages import Media
from brim.tokens.images import image_size_base64


def image(source: object) -> Media:
    """An image of a chat message: a data URL says its size, any other URL does not."""
    url, detail = source, ""
    if isinstance(source, Mapping):
        url, detail = source.get("url"), str(source.get("detail") or "")
    if not isinstance(url, str) or not url.startswith("data:"):
        return Media("image", detail=detail)
    return image_data(url.partition(",")[2], detail)


def image_data(data: str, detail: str = "") -> Media:
    """An image whose bytes stand in the request, in base64."""
    width, height = image_size_base64(data) or (0, 0)
    return Media("image", width, height, detail, _bytes(data))


def audio(source: object) -> Media:
    data = source.get("data") if isinstance(source, Mapping) else None
    return Media("audio", size=_bytes(data))


def file(source: object) -> Media:
    data = source.get("file_data") if isinstance(source, Mapping) else None
    return Media("file", size=_bytes(data))


def _bytes(data: object) -> int:
    return len(data) * 3 // 4 if isinstance(data, str) else 0
