"""The requests of a growing conversation, as a policy would have sent them.

Cost and recall look at the same requests, so they are made once. Equal messages get one number:
a request is then a tuple of numbers, and two requests share a prefix where their numbers agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias

import brim
from benchmarks import limited, ruler
from benchmarks.recordings import Message, Recording, request_points, sessions
from benchmarks.validity import SYSTEM

HIGH_MARK = "steady, mark 95 %"
Policies: TypeAlias = Mapping[str, tuple[str, float | None]]
"""By name: the policy and its low-water mark, if it is not the policy's own."""
POLICIES: Policies = {
    "sliding": ("sliding", None),
    "rolling": ("rolling", None),
    "steady": ("steady", None),
    "thrift": ("thrift", None),
    "recall": ("recall", None),
    HIGH_MARK: ("steady", 0.95),
}


class Pool:
    """All different messages with their token counts."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.tokens: list[int] = []
        self._numbers: dict[str, int] = {}

    def number(self, message: Message) -> int:
        key = json.dumps(message, sort_keys=True)
        if key not in self._numbers:
            self._numbers[key] = len(self.messages)
            self.messages.append(message)
            self.tokens.append(ruler.message_tokens(message))
        return self._numbers[key]

    def numbers(self) -> Callable[[Sequence[Message]], tuple[int, ...]]:
        """Return a function that numbers messages and reads each message object only once."""
        seen: dict[int, tuple[Message, int]] = {}

        def numbered(messages: Sequence[Message]) -> tuple[int, ...]:
            for message in messages:
                if id(message) not in seen:
                    seen[id(message)] = (message, self.number(message))
            return tuple(seen[id(message)][1] for message in messages)

        return numbered

    def size(self, numbers: Sequence[int]) -> int:
        return ruler.REQUEST + sum(self.tokens[number] for number in numbers)

    def head(self, numbers: Sequence[int]) -> int:
        """Return the number of system messages at the start."""
        roles = (self.messages[number]["role"] for number in numbers)
        return sum(1 for _ in takewhile(SYSTEM.__contains__, roles))

    def first_user(self, numbers: Sequence[int]) -> int:
        """Return the index of the first user turn; -1 if there is none."""
        places = (i for i, n in enumerate(numbers) if self.messages[n]["role"] == "user")
        return next(places, -1)


@dataclass(frozen=True)
class Setting:
    """Some conversations with one budget: one row of the tables."""

    name: str
    budget: int
    conversations: Sequence[Recording]
    near: int = 10
    """Number of the newest messages that do not count as far."""


@dataclass(frozen=True)
class Replay:
    """One conversation with one budget, replayed with every policy."""

    history: tuple[int, ...]
    starts: tuple[int, ...]
    """The first message of each task."""
    points: tuple[int, ...]
    """The length of the history at each request that fits under every policy."""
    first: int
    """Number of requests before the history exceeds the budget."""
    rejected: int
    """Requests omitted because they do not fit under some policy."""
    sent: dict[str, list[tuple[int, ...]]]
    """The messages sent at each point, by policy."""


def settings(recordings: Sequence[Recording]) -> list[Setting]:
    coding = [recording for recording in recordings if not recording.chat]
    chats = [recording for recording in recordings if recording.chat]
    chained = sessions(recordings)
    return [
        Setting("several tasks, 32k", 32_000, chained),
        Setting("several tasks, 16k", 16_000, chained),
        Setting("one task, 32k", 32_000, coding),
        Setting("one task, 16k", 16_000, coding),
        Setting("one task, 8k", 8_000, coding),
        Setting("support chats, 4k", 4_000, chats, near=4),
    ]


def replays(setting: Setting, pool: Pool, policies: Policies = POLICIES) -> Iterator[Replay]:
    """Replay the conversations of a setting that exceed its budget."""
    for conversation in setting.conversations:
        history = tuple(map(pool.number, conversation.messages))
        points = request_points(conversation.messages)
        if points and pool.size(history[: points[-1]]) > setting.budget:
            yield _replay(conversation, history, points, setting.budget, pool, policies)


def _replay(
    conversation: Recording,
    history: tuple[int, ...],
    points: Sequence[int],
    budget: int,
    pool: Pool,
    policies: Policies,
) -> Replay:
    messages = conversation.messages
    tried = {
        name: requests(messages, points, budget, policy, pool) for name, policy in policies.items()
    }
    whole = [index for index in range(len(points)) if all(row[index] for row in tried.values())]
    usable = tuple(points[index] for index in whole)
    sent = {policy: [row[index] or () for index in whole] for policy, row in tried.items()}
    first = sum(pool.size(history[:point]) <= budget for point in usable)
    return Replay(history, conversation.starts, usable, first, len(points) - len(usable), sent)


def requests(
    messages: Sequence[Message],
    points: Sequence[int],
    budget: int,
    policy: tuple[str, float | None],
    pool: Pool,
) -> list[tuple[int, ...] | None]:
    """Return what is sent at each point; None if it does not fit."""
    numbered = pool.numbers()
    fitted: list[tuple[int, ...] | None] = []
    for point in points:
        try:
            fitted.append(numbered(limited.fit(messages[:point], budget, *policy).messages))
        except brim.ContextOverflowError:
            fitted.append(None)
    return fitted
