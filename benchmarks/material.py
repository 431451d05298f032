"""Long conversations for timing, mixed from recorded text.

The same seed gives the same conversation, and different seeds give different text, so a cold call
gets text that was not counted before. Turns have the sizes of recorded ones. The set shipped with
the project is always the source, so that figures from different machines can be compared, without
recordings that were added later.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import count, islice

from benchmarks import recordings, ruler
from benchmarks.recordings import Message

LATER = ("swe_gemini-3-pro",)


@cache
def load_texts() -> dict[str, list[str]]:
    """Return all recorded texts by role.

    Agents that were recorded without tool calls have their outputs in user turns.
    """
    texts: dict[str, list[str]] = {"system": [], "user": [], "assistant": [], "tool": []}
    for recording in recordings.load():
        if recording.file in LATER:
            continue
        native = any(message["role"] == "tool" for message in recording.messages)
        for message in recording.messages:
            role = message["role"] if native or message["role"] != "user" else "tool"
            if message.get("content"):
                texts[role].append(message["content"])
    return texts


def turns(seed: int) -> Iterator[Message]:
    """Yield an endless conversation: a system prompt, then user, call, result, reply, and so on."""
    chance = random.Random(seed)
    yield {"role": "system", "content": load_texts()["system"][0]}
    for number in count():
        yield {"role": "user", "content": _mix("user", chance)}
        yield _call(f"call_{seed}_{number}", chance)
        result = {"role": "tool", "tool_call_id": f"call_{seed}_{number}"}
        yield {**result, "content": _mix("tool", chance)}
        yield {"role": "assistant", "content": _mix("assistant", chance)}


def _call(name: str, chance: random.Random) -> Message:
    arguments = json.dumps({"command": _mix("assistant", chance)[:120]})
    function = {"name": "run", "arguments": arguments}
    call = {"id": name, "type": "function", "function": function}
    return {"role": "assistant", "content": _mix("assistant", chance), "tool_calls": [call]}


def _mix(role: str, chance: random.Random) -> str:
    """Return the first half of a recorded text, a number, and the second half of another."""
    first, second = chance.choice(load_texts()[role]), chance.choice(load_texts()[role])
    start = first[: len(first) // 2]
    return f"{start}\n{chance.randrange(10**9)}\n{second[len(second) // 2 :]}"


def of_turns(number: int, seed: int) -> list[Message]:
    """Return a system prompt and this many turns."""
    return list(islice(turns(seed), number + 1))


def of_tokens(size: int, seed: int) -> list[Message]:
    """Return about this many tokens of turns; the last one is a user turn or a tool result."""
    taken: list[Message] = []
    total = ruler.REQUEST
    for message in turns(seed):
        taken.append(message)
        total += ruler.message_tokens(message)
        if total >= size and message["role"] in {"user", "tool"}:
            return taken
    raise AssertionError
