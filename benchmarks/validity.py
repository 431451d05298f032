"""Checks of a fitted conversation that do not use brim.

A result belongs to the nearest turn before it that calls tools, and ids decide only among that
turn's calls: real histories use an id again in a later turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.recordings import Message

SYSTEM = {"system", "developer"}


def call_faults(messages: Sequence[Message]) -> list[str]:
    """Return results without a call, and calls without a result."""
    faults: list[str] = []
    waiting: Counter[str] = Counter()
    for message in messages:
        if message["role"] == "tool":
            if waiting[message.get("tool_call_id", "")] > 0:
                waiting[message["tool_call_id"]] -= 1
            else:
                faults.append("result without call")
            continue
        faults += ["call without result"] * waiting.total()
        waiting = Counter(call["id"] for call in message.get("tool_calls") or [])
    return faults + ["call without result"] * waiting.total()


def kept_faults(messages: Sequence[Message], original: Sequence[Message]) -> list[str]:
    """Return the protected messages that changed."""
    faults = []
    if _of(messages, SYSTEM) != _of(original, SYSTEM):
        faults.append("system changed")
    if _of(messages, {"user"})[-1:] != _of(original, {"user"})[-1:]:
        faults.append("last user changed")
    if messages[-1:] != original[-1:]:
        faults.append("last message changed")
    return faults


def user_first(messages: Sequence[Message]) -> bool:
    """Return whether the first message after the system prompt is a user message."""
    return next((m["role"] == "user" for m in messages if m["role"] not in SYSTEM), True)


def has_new_neighbors(messages: Sequence[Message], original: Sequence[Message], role: str) -> bool:
    """Return whether two turns of a role are adjacent that were not before the trim."""
    before = {(_words(a), _words(b)) for a, b in _neighbours(original, role)}
    return any((_words(a), _words(b)) not in before for a, b in _neighbours(messages, role))


def open_step(messages: Sequence[Message]) -> list[Message]:
    """Return the last assistant turn and its results, if nothing else follows."""
    for index in range(len(messages) - 1, -1, -1):
        role = messages[index]["role"]
        if role == "assistant":
            return list(messages[index:])
        if role != "tool":
            break
    return []


def hard_parts(messages: Sequence[Message]) -> list[Message]:
    """Return the protected messages: system prompt, last user turn, open step."""
    return [
        *_of(messages, SYSTEM),
        *_of(messages, {"user"})[-1:],
        *open_step(messages),
    ]


def _of(messages: Sequence[Message], roles: set[str]) -> list[Message]:
    return [message for message in messages if message["role"] in roles]


def _neighbours(messages: Sequence[Message], role: str) -> list[tuple[Message, Message]]:
    turns = [message for message in messages if message["role"] not in SYSTEM]
    return [(a, b) for a, b in pairwise(turns) if a["role"] == b["role"] == role]


def _words(message: Message) -> str:
    return str(message.get("content")) + str(message.get("tool_calls") or "")
