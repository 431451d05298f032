"""What the formats share: turns and their positions, private fields, parts of messages.

In chat completions every message is one turn. In other formats a message may contain several turns
(results, then the user's text), and a turn may consist of several items (reasoning, then calls). A
`TurnSpan` says which positions of the body belong to a turn.
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
Position = tuple[int, int]
"""The index of a message and of a block in it; the block is -1 if there is none."""


@dataclass(slots=True)
class TurnSpan:
    """One turn and its positions in the body."""

    role: Role
    positions: list[Position]
    message: Message | None = None
    """The message of the turn, if it was read together with the span."""


class NoteView(Protocol):
    """A text about a gap, before or at the end of turn `at`."""

    @property
    def text(self) -> str: ...

    @property
    def at(self) -> int: ...

    @property
    def role(self) -> str: ...


class MessagesView(Protocol):
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
    def history(self) -> MessagesView: ...

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
    """Collects turns one by one and joins those that must not be separated.

    A server-side tool may still be running when the model calls the client's tools: its end is then
    several turns after its beginning. `offers` returns the id by which other parts can refer to a
    part, `needs` the ids that it refers to.
    """

    def __init__(
        self, offers: Callable[[Part], str | None], needs: Callable[[Part], Iterable[str]]
    ) -> None:
        self.turns: list[TurnSpan] = []
        self._offers = offers
        self._needs = needs
        self._home: dict[str, int] = {}
        """The index of the turn that offers an id."""

    def add(self, turn: TurnSpan, parts: Sequence[Part]) -> int:
        """Add a turn and its parts; return the index of the first turn that changed."""
        if len(parts) == 1 and parts[0].keys() == _PLAIN:  # plain text refers to nothing
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
        spoken = [member.positions for member in members if member.role != "system"]
        self.turns[start:] = [TurnSpan("assistant", [*chain(*spoken)]), *systems]
        self._home = {name: min(position, start) for name, position in self._home.items()}


def to_message_error(error: Exception, index: int) -> Exception:
    """Return the error to raise for a message that cannot even be dumped as JSON."""
    if isinstance(error, InputError):
        return error
    return MessageError(index, "contains itself, or is nested too deeply")


def find_dropped(plan: PlanView) -> set[int]:
    """Return the indices of the turns that are not sent."""
    return set(range(plan.length)).difference(plan.sent_indices)


# Fields reserved for brim

IS_PRIVATE: Final = attrgetter("private")
"""Whether the source of a `Message` has reserved fields."""


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
            priority=_max_priority(sources, self.index) if private else 0,
            private=private,
        )


def _max_priority(sources: Iterable[Part], index: int) -> int:
    """Return the highest priority of the sources of a turn."""
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
    """Return the value if it is a mapping; otherwise raise `MessageError`, naming it as `what`."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise MessageError(
            index,
            f"{what}must be a mapping, but is {describe_type(value)}; "
            "convert an object of a client library with .model_dump()",
        )
    return value


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


def replace_texts(
    parts: Iterable[Part], texts: Iterable[str], kinds: Collection[str]
) -> tuple[list[Part], list[str]]:
    """Replace the texts of the text parts, and return the parts and the texts that are left.

    A text part without a replacement is removed: providers reject empty texts.
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


def shorten_encrypted(text: str) -> str:
    """Return a prefix of encrypted text that counts about as many tokens as the plain text.

    Encrypted base64 has 0.68 tokens per character, the plain text a quarter of that; a third is a
    safe estimate.
    """
    return text[: len(text) // 3]
