"""What the formats share: turns and their places, brim's own fields, parts that nobody can read.

In a chat every message is one turn. Elsewhere a message may hold several turns (results, then the
user's words), and a turn may take several items (reasoning, then calls); a `Turn` says which
places of the body are its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from brim.errors import InputError, MessageError
from brim.messages import Message

if TYPE_CHECKING:
    from brim.messages import Call, Media, Role

Part = Mapping[str, Any]
Place = tuple[int, int]
"""A message and a block of it; the block is -1 where there is none."""


@dataclass(slots=True)
class TurnSpan:
    """One turn of the view, and what it is made of."""

    role: Role
    places: list[Place]
    message: Message | None = None
    """The view of it, where that was had with the turn."""


class NoteView(Protocol):
    """A text about a gap, before or at the end of turn `at`."""

    @property
    def text(self) -> str: ...

    @property
    def at(self) -> int: ...

    @property
    def role(self) -> str: ...


class HistoryView(Protocol):
    @property
    def messages(self) -> Sequence[Message]: ...


class BudgetView(Protocol):
    @property
    def window(self) -> int: ...

    @property
    def reply(self) -> int: ...

    @property
    def margin(self) -> int: ...


class PlanView(Protocol):
    """What the formats need of a plan to write the body that is sent."""

    @property
    def history(self) -> HistoryView: ...

    @property
    def length(self) -> int: ...

    @property
    def budget(self) -> BudgetView: ...

    @property
    def size(self) -> int: ...

    @property
    def server_tokens(self) -> int | None: ...

    @property
    def is_trimmed(self) -> bool: ...

    @property
    def sent_indices(self) -> Sequence[int]: ...

    @property
    def changed_messages(self) -> Mapping[int, Message]: ...

    @property
    def notes(self) -> Sequence[NoteView]: ...


_PLAIN: Final = frozenset(("type", "text"))


class TurnGrouper:
    """Turns that come in one by one; of those that cannot be parted it makes one.

    A server's tool may still be at work when it asks for the client's own tools: its end then
    stands several turns after its beginning. `offers` gives the id under which a part can be
    referred to, `needs` the ids that it refers to.
    """

    def __init__(
        self, offers: Callable[[Part], str | None], needs: Callable[[Part], Iterable[str]]
    ) -> None:
        self.turns: list[TurnSpan] = []
        self._offers = offers
        self._needs = needs
        self._home: dict[str, int] = {}
        """Where the turn stands that offers an id."""

    def add(self, turn: TurnSpan, parts: Sequence[Part]) -> int:
        """Take in a turn and what it is made of; gives the first turn that is not as it was."""
        if len(parts) == 1 and parts[0].keys() == _PLAIN:  # it refers to nothing
            self.turns.append(turn)
            return len(self.turns) - 1
        own = {name for part in parts if (name := self._offers(part)) is not None}
        needed = {name for part in parts for name in self._needs(part)} - own
        start = min(
            (self._home[name] for name in needed if name in self._home), default=len(self.turns)
        )
        if start < len(self.turns):
            self._join(start, turn)
        else:
            self.turns.append(turn)
        for name in own:
            self._home[name] = start
        return start

    def _join(self, start: int, turn: TurnSpan) -> None:
        members = [*self.turns[start:], turn]
        systems = [member for member in members if member.role == "system"]
        spoken = [member.places for member in members if member.role != "system"]
        self.turns[start:] = [TurnSpan("assistant", [*chain(*spoken)]), *systems]
        self._home = {name: min(place, start) for name, place in self._home.items()}


def to_message_error(error: Exception, index: int) -> Exception:
    """What to raise where not even the JSON of a message can be had; other faults say it better."""
    if isinstance(error, InputError):
        return error
    return MessageError(index, "holds itself, or is nested too deeply")


def find_dropped(plan: PlanView) -> set[int]:
    """The turns that do not go out."""
    return set(range(plan.length)).difference(plan.sent_indices)


# Fields of brim's own

IS_PRIVATE: Final = attrgetter("private")
"""Whether the source of a `Message` has any."""


_COMMON_FIELDS: Final = frozenset(
    (
        *("role", "content", "type", "text", "cache_control", "id", "name", "input", "source"),
        *("tool_use_id", "is_error", "thinking", "signature", "data", "citations", "caller"),
        *("call_id", "arguments", "output", "status", "summary", "encrypted_content"),
    )
)


def is_private(raw: Part) -> bool:
    if raw.keys() <= _COMMON_FIELDS:  # as most have no other, and this is soon told
        return False
    return any(str(key).startswith("_") for key in raw)


def strip_private(raw: Part) -> Part:
    """A message, an item or a part as it is sent: itself, unless it has fields of brim's own."""
    return copy_public(raw) if is_private(raw) else raw


def copy_public(raw: Part) -> dict[str, Any]:
    """A copy without the fields that are brim's own."""
    return {key: value for key, value in raw.items() if not str(key).startswith("_")}


# Parts


class MessageBuilder:
    """What a turn is made of, gathered part by part.

    `index` says where the turn stands, for errors; `texts` are the types of parts that are plain
    text, and `media` tells the pictures, sounds and files.
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
        """Take in a part: its text, its picture, or its JSON where it is neither."""
        if is_text(part, self._texts):
            texts.append(part["text"])
        elif media := self._media(part):
            self.media.append(media)
        else:
            self.extras.append(dump_opaque(part))

    def add_content(self, content: object, texts: list[str]) -> None:
        """Take in a text, or a list of parts."""
        if isinstance(content, str):
            texts.append(content)
        elif content is not None:
            for part in require_parts(content, self.index, "content"):
                self.add(part, texts)

    def message(self, role: Role, sources: Collection[Part], answers: str | None = None) -> Message:
        """The turn; its sources say what brim was told about it."""
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
            # A compaction is all that the model has of what came before, so it must not go too.
            pin=any(part.get("_pin") or part.get("type") == "compaction" for part in sources),
            priority=_max_priority(sources, self.index) if private else 0,
            private=private,
        )


def _max_priority(sources: Iterable[Part], index: int) -> int:
    """The highest that any of a turn's sources was given."""
    given = [source["_priority"] for source in sources if "_priority" in source]
    for value in given:
        if not isinstance(value, int):
            raise MessageError(
                index, f"_priority must be a whole number, but is {describe_type(value)}"
            )
    return max(given, default=0)


def describe_type(value: object) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


def require_mapping(value: object, index: int, what: str = "") -> Part:
    """A message, an item or a part, which `what` names; the index is for the error."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise MessageError(
            index,
            f"{what}must be a mapping, but is {describe_type(value)}; "
            "an object of a client library gives one with .model_dump()",
        )
    return value


def require_parts(content: object, index: int, name: str) -> Sequence[Part]:
    """The parts of a list, each of them a mapping."""
    if type(content) is not list and (
        isinstance(content, str) or not isinstance(content, Sequence)
    ):
        raise MessageError(index, f"{name} must be text or a list, but is {describe_type(content)}")
    for number, part in enumerate(content):
        if type(part) is not dict:
            require_mapping(part, index, f"part {number} of {name} ")
    return content


def replace_texts(
    parts: Iterable[Part], texts: Iterable[str], kinds: Collection[str]
) -> tuple[list[Part], list[str]]:
    """Put texts in place of the text parts, one by one, and give those that found no place.

    A text part for which nothing is left goes: providers refuse empty ones.
    """
    left = list(texts)
    out: list[Part] = []
    for part in parts:
        if not is_text(part, kinds):
            out.append(part)
        elif left and (text := left.pop(0)):
            out.append({**part, "text": text})
    return out, [text for text in left if text]


def is_text(part: Part, kinds: Collection[str]) -> bool:
    return part.get("type") in kinds and isinstance(part.get("text"), str)


def to_text(value: object) -> str:
    """A text as it stands, anything else as its JSON."""
    return value if isinstance(value, str) else _to_json(value)


def dump_opaque(part: Part) -> str:
    """What is counted for a part that cannot be read: its JSON, with what is hidden in it."""
    return _to_json(_shorten_encrypted_fields(copy_public(part)))


_to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode
"""With these options `json.dumps` would make an encoder at every call."""


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


def shorten_encrypted(text: str) -> str:
    """A piece of an encrypted text that takes about what the text behind it does.

    Base64 of what nobody can read has 0.68 tokens a character, the text behind it a fourth of
    that; a third is on the safe side.
    """
    return text[: len(text) // 3]
