"""Cached counts, by tokenizer and text.

Hits are by far the most common: every turn counts the conversation again. So a hit is one lookup in
one dict, without a lock. All caches together hold a bounded number of characters in two
generations: when the young generation is full it becomes the old one, and an old entry that is used
again moves back. Very long texts are stored by their digest.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from weakref import WeakSet

from brim.errors import InputError
from brim.tokens.vocabularies import utf8_length

Count = Callable[[str], int]

CAPACITY = 64_000_000
"""Characters in both generations of all caches together."""
MAX_STORED_LENGTH = 1_000_000
"""Characters of the longest text that is stored as it is."""
ENTRY_WEIGHT = 100
"""Weight of an entry in addition to its characters."""


class CountCache:
    """The counts of one tokenizer."""

    __slots__ = ("__weakref__", "_count", "_digests", "_old", "young")

    def __init__(self, count: Count) -> None:
        self._count = count
        self.young: dict[str, int] = {"": 0}
        """Read directly by counters, for speed; `find` handles everything else."""
        self._old: dict[str, int] = {}
        self._digests: dict[bytes, int] = {}
        _generations.add(self)

    def find(self, text: str) -> int:
        """Return the count of a text, counting it if it is not cached."""
        if not isinstance(text, str):
            raise InputError(f"Only text can be counted, not {type(text).__name__}.")
        size = len(text)
        if size > MAX_STORED_LENGTH:
            return self._find_long(text)
        tokens = self.young.get(text)
        if tokens is None:
            tokens = self._old.get(text)
            if tokens is None:
                tokens = self._count(text)
            _generations.weigh(size + ENTRY_WEIGHT)
            self.young[text] = tokens
        return tokens

    def turn(self) -> None:
        """Make the young generation the old one."""
        self._old, self.young, self._digests = self.young, {"": 0}, {}

    def _find_long(self, text: str) -> int:
        from hashlib import blake2b

        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        tokens = self._digests.get(digest)
        if tokens is None:
            tokens = self._digests[digest] = self._count(text)
            _generations.weigh(ENTRY_WEIGHT)
        return tokens


def make_safe_count(count: Count) -> Count:
    """Return a count function that falls back to the number of bytes if a tokenizer fails.

    An unusual output must not end a conversation, and no text has more tokens than bytes.
    """

    def count_safely(text: str) -> int:
        try:
            tokens = count(text)
        except Exception:
            tokens = -1
        return tokens if tokens >= 0 else utf8_length(text)

    return count_safely


class _Generations:
    """The total weight of all caches."""

    def __init__(self) -> None:
        self._tables: WeakSet[CountCache] = WeakSet()
        self._lock = Lock()
        self._weight = 0

    def add(self, table: CountCache) -> None:
        with self._lock:
            self._tables.add(table)

    def weigh(self, size: int) -> None:
        # Without the lock: if threads add concurrently, the weight of an entry may be lost.
        self._weight += size
        if self._weight > CAPACITY // 2:
            self._turn()

    def _turn(self) -> None:
        with self._lock:
            if self._weight > CAPACITY // 2:  # otherwise another thread was faster
                self._weight = 0
                for table in self._tables:
                    table.turn()


_generations = _Generations()
