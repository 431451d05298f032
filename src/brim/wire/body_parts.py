"""What the formats share: fields reserved for brim, parts of messages, media, copies."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from brim.errors import InputError, MessageError
from brim.messages import Call, Media, Message, Role
from brim.tokens.media_tokens import image_size_base64

Part = Mapping[str, Any]

# Fields reserved for brim


_COMMON_FIELDS: Final = frozenset(
    (
        *("role", "content", "type", "text", "cache_control", "id", "name", "input", "source"),
        *("tool_use_id", "is_error", "thinking", "signature", "data", "citations", "caller"),
        *("call_id", "arguments", "output", "status", "summary", "encrypted_content"),
    )
)


def is_private(raw: Part) -> bool:
    if raw.keys() <= _COMMON_FIELDS:  # a fast check: most messages have no other fields
        return False
    return any(str(key).startswith("_") for key in raw)


def strip_private(raw: Part) -> Part:
    """Return a message, item or part as it is sent: itself, unless it has reserved fields."""
    return copy_public(raw) if is_private(raw) else raw


def copy_public(raw: Part) -> dict[str, Any]:
    """Return a copy without the fields reserved for brim."""
    return {key: value for key, value in raw.items() if not str(key).startswith("_")}


# Parts


class MessageBuilder:
    """Builds a message from its parts.

    `index` is the position of the turn, for errors; `texts` are the types of text parts, and
    `media` returns the image, audio or file of a part.
    """

    def __init__(
        self, index: int, texts: Collection[str], media: Callable[[Part], Media | None]
    ) -> None:
        self.index = index
        self.words: list[str] = []
        self.outputs: list[str] = []
        self.thinking: list[str] = []
        self.calls: list[Call] = []
        self.media: list[Media] = []
        self.extras: list[str] = []
        self._texts = texts
        self._media = media

    def add(self, part: Part, texts: list[str]) -> None:
        """Add a part: its text, its media, or its JSON if it is neither."""
        if is_text(part, self._texts):
            texts.append(part["text"])
        elif media := self._media(part):
            self.media.append(media)
        else:
            self.extras.append(dump_opaque(part))

    def add_content(self, content: object, texts: list[str]) -> None:
        """Add a text or a list of parts."""
        if isinstance(content, str):
            texts.append(content)
        elif content is not None:
            for part in require_parts(content, self.index, "content"):
                self.add(part, texts)

    def message(self, role: Role, sources: Collection[Part], answers: str | None = None) -> Message:
        """Return the message; the reserved fields of `sources` set pin and priority."""
        private = any(map(is_private, sources))
        return Message(
            role,
            words=tuple(self.words),
            outputs=tuple(self.outputs),
            thinking=tuple(self.thinking),
            calls=tuple(self.calls),
            answers=answers,
            media=tuple(self.media),
            extras=tuple(self.extras),
            # A compaction replaces all earlier content, so it must not be dropped too.
            pin=any(part.get("_pin") or part.get("type") == "compaction" for part in sources),
            priority=find_priority(sources, self.index) if private else 0,
            private=private,
        )


def find_priority(sources: Iterable[Part], index: int) -> int:
    """Return the highest priority of the sources of a turn."""
    given = [source["_priority"] for source in sources if "_priority" in source]
    for value in given:
        if not isinstance(value, int):
            raise MessageError(
                index, f"_priority must be a whole number, but is {describe_type(value)}"
            )
    return max(given, default=0)


def to_message_error(error: Exception, index: int) -> Exception:
    """Return the error to raise for a message that cannot even be dumped as JSON."""
    if isinstance(error, InputError):
        return error
    return MessageError(index, "contains itself, or is nested too deeply")


def describe_type(value: object) -> str:
    name = type(value).__name__
    article = "an" if name[0] in "aeiouAEIO" else "a"
    return "null" if value is None else f"{article} {name}"


def require_mapping(value: object, index: int, what: str = "") -> Part:
    """Return the value if it is a mapping; otherwise raise `MessageError`, naming it as `what`."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise MessageError(
            index, f"{what}must be a mapping, but is {describe_type(value)}. {_advise(value)}"
        )
    return value


def _advise(value: object) -> str:
    """Return what to pass instead of a value that is not a mapping."""
    match value:
        case None:
            return "Remove it."
        case str():
            return 'Write {"role": "user", "content": "…"}.'
        case list() | tuple():
            return "Add its items one by one, with extend instead of append."
        case Awaitable():
            return "Await it first."
        case _:
            return "Use a dict, a dataclass or a pydantic model."


def require_parts(content: object, index: int, name: str) -> Sequence[Part]:
    """Return the parts of a list; raise `MessageError` if one is not a mapping."""
    if type(content) is not list and (
        isinstance(content, str) or not isinstance(content, Sequence)
    ):
        raise MessageError(index, f"{name} must be text or a list, but is {describe_type(content)}")
    for number, part in enumerate(content):
        if type(part) is not dict:
            require_mapping(part, index, f"part {number} of {name} ")
    return content


def get_mapping(fields: Part, name: str) -> Part:
    """Return the value of a field if it is a mapping, otherwise an empty one."""
    inner = fields.get(name)
    return inner if isinstance(inner, Mapping) else {}


def filter_mappings(values: object) -> list[Part]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        return []
    return [value for value in values if isinstance(value, Mapping)]


def replace_texts(
    parts: Iterable[Any], texts: Iterable[str], kinds: Sequence[str] = ("text",)
) -> list[Any]:
    """Replace the texts of the text parts; further texts become parts of the first kind.

    A text part without a replacement is removed: providers reject empty texts.
    """
    left = list(texts)
    out: list[Any] = []
    for part in parts:
        if not isinstance(part, str) and not (isinstance(part, Mapping) and is_text(part, kinds)):
            out.append(part)
        elif left and (text := left.pop(0)):
            out.append(text if isinstance(part, str) else {**part, "text": text})
    return out + [{"type": kinds[0], "text": text} for text in left if text]


def make_text(text: str) -> Part:
    return {"type": "text", "text": text}


def is_text(part: Part, kinds: Collection[str] = ("text",)) -> bool:
    return part.get("type") in kinds and isinstance(part.get("text"), str)


def to_text(value: object) -> str:
    """Return a text as it is, any other value as JSON."""
    return value if isinstance(value, str) else _to_json(value)


def dump_opaque(part: Part) -> str:
    """Return the JSON that is counted for an unknown part; encrypted fields are shortened."""
    return _to_json(_shorten_encrypted_fields(copy_public(part)))


_to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode
"""A shared encoder: with these options, `json.dumps` creates one at every call."""


_ENCRYPTED_PREFIX: Final = "encrypted_"


def _shorten_encrypted_fields(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: shorten_encrypted(item)
            if isinstance(item, str) and str(key).startswith(_ENCRYPTED_PREFIX)
            else _shorten_encrypted_fields(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_shorten_encrypted_fields(item) for item in value]
    return value


THINKING_BLOCKS: Final = ("thinking", "redacted_thinking")
"""Types of Anthropic's blocks with thinking."""


def read_thinking(block: Part) -> str:
    """Return the thinking of an Anthropic block; if it is encrypted, a text of about its size."""
    if shown := block.get("thinking"):
        return to_text(shown)
    return shorten_encrypted(to_text(block.get("signature") or block.get("data") or ""))


def shorten_encrypted(text: str) -> str:
    """Return a prefix of encrypted text that counts about as many tokens as the plain text.

    Encrypted base64 has 0.68 tokens per character, the plain text a quarter of that; a third is a
    safe estimate.
    """
    return text[: len(text) // 3]


# Images, audio and files: what is known without downloading them


def read_image(source: object) -> Media:
    """Return the image of a chat message; only a data URL contains its size."""
    url, detail = source, ""
    if isinstance(source, Mapping):
        url, detail = source.get("url"), str(source.get("detail") or "")
    if not isinstance(url, str) or not url.startswith("data:"):
        return Media("image", detail=detail)
    return read_image_data(url.partition(",")[2], detail)


def read_image_data(data: str, detail: str = "") -> Media:
    """Return an image whose base64 data is in the request."""
    width, height = image_size_base64(data) or (0, 0)
    return Media("image", width, height, detail, _count_bytes(data))


def read_audio(source: object) -> Media:
    data = source.get("data") if isinstance(source, Mapping) else None
    return Media("audio", size=_count_bytes(data))


def read_file(source: object) -> Media:
    data = source.get("file_data") if isinstance(source, Mapping) else None
    return Media("file", size=_count_bytes(data))


def read_block_media(block: Part) -> Media | None:
    """Return the image or file of an Anthropic block; None if it has none."""
    source = block.get("source")
    if not isinstance(source, Mapping):
        return Media("image") if block.get("type") == "image" else None
    data = source.get("data")
    match block.get("type"), source.get("type"):
        case "image", "base64" if isinstance(data, str):
            return read_image_data(data)
        case "image", _:
            return read_image(source)
        case "document", "base64" | "url" | "file":
            return Media("file", size=_count_bytes(data))
        case _:
            return None  # a plain-text document counts as text


def read_input_media(part: Part) -> Media | None:
    """Return the image, audio or file of a part of the Responses API; None if it has none."""
    match part.get("type"):
        case "input_image" | "computer_screenshot":
            return read_image({"url": part.get("image_url"), "detail": part.get("detail")})
        case "input_file":
            return read_file(part)
        case "input_audio":
            return read_audio(part.get("input_audio"))
        case _:
            return None


def _count_bytes(data: object) -> int:
    return len(data) * 3 // 4 if isinstance(data, str) else 0


# Copies of JSON data


IMMUTABLE: Final[frozenset[type]] = frozenset((str, int, float, bool, type(None)))


def copy_json(value: Any) -> Any:
    """Return a deep copy of JSON data. Mappings become dicts, and tuples become lists.

    Types are compared by identity first: `python -m benchmarks.speed` copies whole histories.
    """
    kind = value.__class__
    if kind is dict:
        return {
            key: item if item.__class__ in IMMUTABLE else copy_json(item)
            for key, item in value.items()
        }
    if kind is list or isinstance(value, list | tuple):
        return [item if item.__class__ in IMMUTABLE else copy_json(item) for item in value]
    if kind in IMMUTABLE:
        return value
    return copy_json(dict(value)) if isinstance(value, Mapping) else value


def copy_input(value: Any) -> Any:
    """Return a deep copy of the caller's data; raise `InputError` if it is nested too deeply."""
    try:
        return copy_json(value)
    except RecursionError:
        raise InputError(
            "The input contains itself or is nested too deeply. Pass plain JSON data."
        ) from None
