"""Images, audio and files in requests: what is known without downloading them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.messages import Media
from brim.tokens.media_tokens import image_size_base64


def image(source: object) -> Media:
    """Return the image of a chat message; only a data URL contains its size."""
    url, detail = source, ""
    if isinstance(source, Mapping):
        url, detail = source.get("url"), str(source.get("detail") or "")
    if not isinstance(url, str) or not url.startswith("data:"):
        return Media("image", detail=detail)
    return image_data(url.partition(",")[2], detail)


def image_data(data: str, detail: str = "") -> Media:
    """Return an image whose base64 data is in the request."""
    width, height = image_size_base64(data) or (0, 0)
    return Media("image", width, height, detail, _bytes(data))


def audio(source: object) -> Media:
    data = source.get("data") if isinstance(source, Mapping) else None
    return Media("audio", size=_bytes(data))


def file(source: object) -> Media:
    data = source.get("file_data") if isinstance(source, Mapping) else None
    return Media("file", size=_bytes(data))


def block_media(block: Mapping[str, Any]) -> Media | None:
    """Return the image or file of an Anthropic block; None if it has none."""
    source = block.get("source")
    if not isinstance(source, Mapping):
        return None
    data = source.get("data")
    match block.get("type"), source.get("type"):
        case "image", "base64" if isinstance(data, str):
            return image_data(data)
        case "image", _:
            return image(source)
        case "document", "base64" | "url" | "file":
            return Media("file", size=_bytes(data))
        case _:
            return None  # a plain-text document counts as text


def input_media(part: Mapping[str, Any]) -> Media | None:
    """Return the image, audio or file of a part of the Responses API; None if it has none."""
    match part.get("type"):
        case "input_image" | "computer_screenshot":
            return image({"url": part.get("image_url"), "detail": part.get("detail")})
        case "input_file":
            return file(part)
        case "input_audio":
            return audio(part.get("input_audio"))
        case _:
            return None


def _bytes(data: object) -> int:
    return len(data) * 3 // 4 if isinstance(data, str) else 0
