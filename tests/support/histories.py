"""Properties of histories that several tests check."""

from __future__ import annotations

import brim
from tests.support.strategies import Raw


def pairs_are_whole(messages: list[Raw]) -> bool:
    """Return whether results follow their calls, and all calls before the open step have one."""
    pending: list[str] = []
    for message in messages:
        if message["role"] in ("system", "developer"):
            continue
        if message["role"] == "tool":
            if message["tool_call_id"] not in pending:
                return False
            pending.remove(message["tool_call_id"])
            continue
        if pending:
            return False
        pending = [call["id"] for call in message.get("tool_calls") or ()]
    return True


def is_feasible(messages: list[Raw], limit: int) -> bool:
    """Return whether all required messages fit unchanged."""
    open_at = len(messages)
    while open_at and messages[open_at - 1]["role"] in ("tool", "system", "developer"):
        open_at -= 1
    users = [i for i, m in enumerate(messages) if m["role"] == "user"]
    must = {i for i, m in enumerate(messages) if m["role"] in ("system", "developer")}
    must |= set(users[-1:])
    if open_at and messages[open_at - 1]["role"] == "assistant":
        must |= set(range(open_at - 1, len(messages)))
    return int(brim.count([messages[i] for i in sorted(must)], model="gpt-4o")) <= limit


def is_request_point(messages: list[Raw]) -> bool:
    """Return whether the model can be called with these messages."""
    last = messages[-1]
    if last["role"] == "user":
        return True
    return last["role"] == "tool" and pairs_are_whole([*messages, {"role": "user", "content": "x"}])
