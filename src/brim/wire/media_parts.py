"""Images, sounds and files as they stand in requests: what can be told of them without fetching."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.messages import Media
from brim.tokens.media_tokens import image_size_base64


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


def block_media(block: Mapping[str, Any]) -> Media | None:
    """The image or file of an Anthropic block, whose `source` says where its bytes are."""
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
            return None  # a document of plain text is read as one: its words count


def input_media(part: Mapping[str, Any]) -> Media | None:
    """The image, sound or file of a part of the Responses API."""
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
