"""The last conversations of stateless callers, so that a grown history is continued.

A caller who sends the whole history every time has most of it read, counted and replayed before.
What was remembered is compared with what comes in, message by message, and never trusted: it is a
copy of its own, so a message that was changed in place is seen. Forgetting changes nothing but
time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from brim.errors import InputError

if TYPE_CHECKING:
    from brim.messages import Message
    from brim.planner import Planner

CONVERSATIONS: Final = 32
WEIGHT: Final = 32_000_000
"""All that is remembered together takes at most about so many bytes."""


class _Entry:
    __slots__ = ("copies", "key", "media", "planner")

    def __init__(self, key: Hashable, planner: Planner) -> None:
        self.key = key
        self.planner = planner
        self.copies: list[Any] = []
        self.media = 0

    @property
    def weight(self) -> int:
        return 4 * self.planner.history.total + self.media


class Memory:
    """Planners of conversations seen before, the newest last. Safe under threads."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._lock = Lock()

    @contextmanager
    def continued(
        self,
        key: Hashable,
        messages: Sequence[Mapping[str, Any]],
        make: Callable[[], Planner],
        read: Callable[[int], Sequence[Message]],
    ) -> Iterator[Planner]:
        """A planner that holds just these messages; while it is in use nobody else has it.

        `make` gives an empty one where nothing is remembered, `read` the messages from an index
        on.
        """
        entry = self._take(key, messages) or _Entry(key, make())
        start = len(entry.copies)
        read_now = read(start)
        entry.planner.extend(read_now)
        entry.media += sum(media.size for message in read_now for media in message.media)
        try:
            entry.copies += [copied(message) for message in messages[start:]]
        except RecursionError:
            raise InputError("a message holds itself, or is nested too deeply") from None
        try:
            yield entry.planner
        finally:
            if all(map(_compares, messages[start:])):
                self._put(entry)

    def _take(self, key: Hashable, messages: Sequence[Mapping[str, Any]]) -> _Entry | None:
        with self._lock:
            best = None
            for entry in self._entries:
                size = len(entry.copies)
                if entry.key != key or size > len(messages) or (best and size <= len(best.copies)):
                    continue
                if entry.copies == (messages if size == len(messages) else messages[:size]):
                    best = entry
            if best is not None:
                self._entries.remove(best)
            return best

    def _put(self, entry: _Entry) -> None:
        with self._lock:
            self._entries.append(entry)
            while len(self._entries) > CONVERSATIONS or self._weight() > WEIGHT:
                del self._entries[0]

    def _weight(self) -> int:
        return sum(entry.weight for entry in self._entries)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()


def _compares(message: Mapping[str, Any]) -> bool:
    """Whether equal messages count alike: 1 and 1.0 are equal, but as JSON they differ."""
    content = message.get("content")
    if isinstance(content, list | tuple) and not all(map(_is_known, content)):
        return False
    calls = message.get("tool_calls") or ()
    functions = [call.get("function") or {} for call in calls]
    texts = [function.get("arguments", "") for function in functions]
    return all(isinstance(text, str) for text in texts) and "reasoning_details" not in message


def _is_known(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("text", "image_url")


_PLAIN: Final = frozenset((str, int, float, bool, type(None)))


def copied(value: Any) -> Any:
    """A copy of JSON-like data that shares only what cannot change."""
    kind = value.__class__
    if kind is dict:
        return {
            key: item if item.__class__ in _PLAIN else copied(item) for key, item in value.items()
        }
    if kind is list or isinstance(value, list | tuple):
        return [item if item.__class__ in _PLAIN else copied(item) for item in value]
    if kind in _PLAIN:
        return value
    return copied(dict(value)) if isinstance(value, Mapping) else value
