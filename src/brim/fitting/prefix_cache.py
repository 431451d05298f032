"""PrefixCache: the last conversations of stateless callers, so that a grown one is continued.

A caller that sends the whole history with each request sends mostly messages that were read,
counted and replayed before. A message is compared by its bytes, so a message that was changed in
place is noticed. The cache only saves time: results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from marshal import dumps
from threading import Lock
from typing import Any, Final, NamedTuple

from brim.fitting.planner import Planner
from brim.wire.body_reader import BodyReader

MAX_CONVERSATIONS: Final = 32
MAX_BYTES: Final = 32_000_000
"""The approximate size of all cached conversations together."""

_WITHOUT_REFERENCES: Final = 2
"""The version of the `marshal` format in which equal values have equal bytes."""
_TAIL: Final = 2
"""A conversation is looked up by this number of its last messages."""
_Tail = tuple[int, tuple[bytes, ...]]


def encode_values(values: Sequence[Any]) -> list[bytes] | None:
    """Return each value as bytes that differ for different values; None if one is not plain JSON.

    1 and 1.0 differ, and so do mappings with another order of keys.
    """
    try:
        return list(map(dumps, values, repeat(_WITHOUT_REFERENCES)))
    except ValueError:
        return None


class ConversationKey:
    """All that decides how a conversation is read and planned, except its content.

    The hash is computed once.
    """

    __slots__ = ("_value", "hashed")

    def __init__(self, value: Hashable) -> None:
        self._value = value
        self.hashed = hash(value)

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        is_same = isinstance(other, ConversationKey) and self._value == other._value
        return self is other or is_same


class CheckedItem(NamedTuple):
    """An item that a trim changed, as it was counted last."""

    encoded: Sequence[bytes]
    added: int
    """Its tokens minus those of the original."""


@dataclass(slots=True, eq=False)
class CachedConversation:
    """A conversation as far as it was read."""

    key: ConversationKey
    planner: Planner
    reader: BodyReader
    summary: str = ""
    """The summary of the turns that plans have dropped."""
    covered: frozenset[int] = frozenset()
    """The indices of these turns."""
    encoded: Sequence[bytes] = ()
    tail: _Tail = (0, ())
    size: int = 0
    """Bytes of the encoded messages."""
    checked: dict[int, CheckedItem] = field(default_factory=dict)
    """By position, the items of the last request that a trim changed."""


class PrefixCache:
    """The last conversations, least recently used first. Thread-safe."""

    def __init__(
        self, max_conversations: int = MAX_CONVERSATIONS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._max_conversations = max_conversations
        self._max_bytes = max_bytes
        self._bytes = 0
        self._conversations: dict[CachedConversation, None] = {}
        self._by_tail: dict[int, dict[_Tail, list[CachedConversation]]] = {}
        """By length, then by tail: many conversations begin alike, but few end alike."""
        self._lock = Lock()

    def take(self, key: ConversationKey, encoded: Sequence[bytes]) -> CachedConversation | None:
        """Remove and return the longest conversation that this one begins with; None if none.

        Only one caller at a time has a conversation; `put` returns it.
        """
        with self._lock:
            for length in range(len(encoded), 0, -1):
                if (tails := self._by_tail.get(length)) is None:
                    continue
                for found in tails.get(_build_tail(key, encoded, length), ()):
                    if found.encoded == encoded[:length] and found.key == key:
                        self._remove(found)
                        return found
        return None

    def put(self, conversation: CachedConversation, encoded: Sequence[bytes]) -> None:
        """Store a conversation as it is now, and evict the oldest if the cache is full."""
        length = len(encoded)
        if length != len(conversation.encoded):  # otherwise the same messages were sent again
            conversation.encoded, conversation.size = encoded, sum(map(len, encoded))
            conversation.tail = _build_tail(conversation.key, encoded, length)
        if conversation.size > self._max_bytes:
            return
        with self._lock:
            tails = self._by_tail.setdefault(length, {})
            tails.setdefault(conversation.tail, []).append(conversation)
            self._conversations[conversation] = None
            self._bytes += conversation.size
            while len(self._conversations) > self._max_conversations or (
                self._bytes > self._max_bytes
            ):
                self._remove(next(iter(self._conversations)))

    def _remove(self, conversation: CachedConversation) -> None:
        tails = self._by_tail[len(conversation.encoded)]
        same_tail = tails[conversation.tail]
        same_tail.remove(conversation)
        if not same_tail:
            del tails[conversation.tail]
        if not tails:
            del self._by_tail[len(conversation.encoded)]
        del self._conversations[conversation]
        self._bytes -= conversation.size

    def clear(self) -> None:
        with self._lock:
            self._conversations.clear()
            self._by_tail.clear()
            self._bytes = 0


def _build_tail(key: ConversationKey, encoded: Sequence[bytes], length: int) -> _Tail:
    return key.hashed, tuple(encoded[max(0, length - _TAIL) : length])
