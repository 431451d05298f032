"""The last conversations of stateless callers, so that a grown history is continued.

A caller who sends the whole history every time has most of it read, counted and replayed before.
What comes in is compared with what was remembered, message by message, and never trusted: a
message is known by its bytes, so one that was changed in place is seen. Forgetting changes
nothing but time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import repeat
from marshal import dumps
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from brim.errors import InputError

if TYPE_CHECKING:
    from brim.fitting.planner import Planner
    from brim.wire import Reader

MAX_CONVERSATIONS: Final = 32
MAX_BYTES: Final = 32_000_000
"""All that is remembered together takes at most about so many bytes."""

_WITHOUT_REFERENCES: Final = 2
"""The format of `marshal` in which equal values have equal bytes, however they came about."""
_TAIL: Final = 2
"""By so many of its last messages a conversation is looked for."""
_End = tuple[int, tuple[bytes, ...]]


def encode_values(values: Sequence[Any]) -> list[bytes] | None:
    """Each value as bytes that no other value has: 1 is not 1.0, and the order of keys counts.

    None where one of them is no plain JSON.
    """
    try:
        return list(map(dumps, values, repeat(_WITHOUT_REFERENCES)))
    except ValueError:
        return None


def check_depth(value: object) -> None:
    """Raise for what nobody can write as JSON, because it has no end."""
    try:
        copy_json(value)
    except RecursionError:
        raise InputError("a message holds itself, or is nested too deeply") from None


class ConversationKey:
    """What decides how a conversation is read and planned, beside what is in it; hashed once."""

    __slots__ = ("_value", "hashed")

    def __init__(self, value: Hashable) -> None:
        self._value = value
        self.hashed = hash(value)

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ConversationKey) and self._value == other._value)


class CachedConversation:
    """A conversation as far as it was read."""

    __slots__ = ("end", "key", "planner", "reader", "spelling", "weight")

    def __init__(self, key: ConversationKey, planner: Planner, reader: Reader) -> None:
        self.key = key
        self.planner = planner
        self.reader = reader
        self.spelling: Sequence[bytes] = ()
        self.end: _End = (0, ())
        self.weight = 0


class PrefixCache:
    """Conversations seen before, the newest last. Safe under threads."""

    def __init__(self, conversations: int = MAX_CONVERSATIONS, weight: int = MAX_BYTES) -> None:
        self._most = conversations
        self._heaviest = weight
        self._weight = 0
        self._kept: dict[CachedConversation, None] = {}
        self._ends: dict[int, dict[_End, list[CachedConversation]]] = {}
        """By how long they are, and then by how they end: many begin alike, few end so."""
        self._lock = Lock()

    def take(self, key: ConversationKey, spelling: Sequence[bytes]) -> CachedConversation | None:
        """The longest conversation that this one begins with; nobody else has it until `put`."""
        with self._lock:
            for size in range(len(spelling), 0, -1):
                if (ends := self._ends.get(size)) is None:
                    continue
                for found in ends.get(_end(key, spelling, size), ()):
                    if found.spelling == spelling[:size] and found.key == key:
                        self._remove(found)
                        return found
        return None

    def put(self, conversation: CachedConversation, spelling: Sequence[bytes]) -> None:
        """Remember a conversation as it is now; the oldest are forgotten where it gets too much."""
        size = len(spelling)
        if size != len(conversation.spelling):  # else it was sent once more
            conversation.spelling, conversation.weight = spelling, sum(map(len, spelling))
            conversation.end = _end(conversation.key, spelling, size)
        if conversation.weight > self._heaviest:
            return
        with self._lock:
            self._ends.setdefault(size, {}).setdefault(conversation.end, []).append(conversation)
            self._kept[conversation] = None
            self._weight += conversation.weight
            while len(self._kept) > self._most or self._weight > self._heaviest:
                self._remove(next(iter(self._kept)))

    def _remove(self, conversation: CachedConversation) -> None:
        ends = self._ends[len(conversation.spelling)]
        beside = ends[conversation.end]
        beside.remove(conversation)
        if not beside:
            del ends[conversation.end]
        if not ends:
            del self._ends[len(conversation.spelling)]
        del self._kept[conversation]
        self._weight -= conversation.weight

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._ends.clear()
            self._weight = 0


def _end(key: ConversationKey, spelling: Sequence[bytes], size: int) -> _End:
    return key.hashed, tuple(spelling[max(0, size - _TAIL) : size])


_PLAIN: Final = frozenset((str, int, float, bool, type(None)))


def copy_json(value: Any) -> Any:
    """A copy of JSON-like data that shares only what cannot change."""
    kind = value.__class__
    if kind is dict:
        return {
            key: item if item.__class__ in _PLAIN else copy_json(item)
            for key, item in value.items()
        }
    if kind is list or isinstance(value, list | tuple):
        return [item if item.__class__ in _PLAIN else copy_json(item) for item in value]
    if kind in _PLAIN:
        return value
    return copy_json(dict(value)) if isinstance(value, Mapping) else value
