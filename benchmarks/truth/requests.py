"""Conversations with tools whose requests are counted; none of them was used to choose a margin."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks import recordings
from benchmarks.promises.material import Conversation, Message, generate

MAX_CHARS: Final = 30_000
"""Characters of the longest request."""
SEED: Final = 2026
CONVERSATIONS: Final = 400
JOINED: Final = 8
"""The fewest messages with which a joined conversation begins."""
TYPES: Final = {int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
ADVICE: Final = (
    "",
    " Use it only after the user has confirmed, and never twice for the same order.",
    " Returns JSON with the fields `id`, `status` and `items`; an empty list means that nothing "
    "was found. Fails with NOT_FOUND, FORBIDDEN or RATE_LIMITED.",
)
EXTRA: Final[Sequence[Message]] = tuple(
    {
        "type": "function",
        "function": {"name": name, "description": about, "parameters": parameters},
    }
    for name, about, parameters in (
        (
            "search_files",
            "Search the workspace for a pattern.\nReturns at most `limit` matches.",
            {
                "type": "object",
                "properties": {
                    "pattern": {"type": "string", "description": "A regular expression."},
                    "glob": {"type": "string", "default": "**/*.{py,ts,md}"},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 500},
                    "case": {"enum": ["sensitive", "insensitive", "smart"], "type": "string"},
                },
                "required": ["pattern"],
                "additionalProperties": False,
            },
        ),
        (
            "book_berth",
            "Book a berth in a harbour. 预订泊位。",
            {
                "type": "object",
                "properties": {
                    "boat": {
                        "type": "object",
                        "description": "The boat.",
                        "properties": {
                            "name": {"type": "string"},
                            "length_m": {"type": "number"},
                            "crew": {"type": "array", "items": {"type": "string"}},
                        },
                        "required": ["name", "length_m"],
                    },
                    "nights": {"type": "array", "items": {"type": "string", "format": "date"}},
                    "quiet": {"type": ["boolean", "null"], "default": None},
                },
                "required": ["boat", "nights"],
            },
        ),
        ("now", "The current time.", {"type": "object", "properties": {}}),
    )
)


def load_conversations(folder: Path | None, number: int, seed: int = SEED) -> list[Conversation]:
    """Return conversations, recorded and generated in turn; with a folder, no shipped recording.

    Another seed than the default has other recordings if there are more, and every third
    conversation is joined from two kinds.
    """
    shipped = {recording.id for recording in recordings.load()}
    found = [
        recording
        for recording in recordings.load(folder)
        if folder is None or recording.id not in shipped
    ]
    random.Random(SEED).shuffle(found)
    if seed != SEED:
        found = found[CONVERSATIONS // 2 :] or found
        random.Random(seed).shuffle(found)
    own = generate(number // 2, seed=seed)
    recorded = [
        Conversation(each.id, "recorded", each.messages, each.tools)
        for each in found[: number // 2]
    ]
    mixed = [each for pair in zip(recorded, own, strict=False) for each in pair]
    if seed != SEED:
        for place in range(1, len(mixed), 3):
            mixed[place] = _join(mixed[place], mixed[place - 1])
    return [_add_tools(each, place) for place, each in enumerate(mixed)]


def _join(first: Conversation, second: Conversation) -> Conversation:
    """Return the beginning of one conversation, continued by another one."""
    places = range(JOINED, len(first.messages))
    end = next((place for place in places if first.messages[place]["role"] == "user"), None)
    later = [message for message in second.messages if message["role"] != "system"]
    messages = [*first.messages[:end], *later]
    return Conversation(f"{first.name} {second.name}", "joined", messages, second.tools)


def _add_tools(conversation: Conversation, place: int) -> Conversation:
    """Offer the tools that are called, and up to 16 others in every third conversation."""
    called: dict[str, dict[str, Any]] = {}
    for turn in conversation.messages:
        for call in turn.get("tool_calls") or ():
            arguments = json.loads(call["function"]["arguments"] or "{}")
            called.setdefault(call["function"]["name"], {}).update(arguments)
    advice = ADVICE[place % len(ADVICE)]
    tools = [_define(name, arguments, advice) for name, arguments in called.items()]
    if place % 3 == 0:
        tools += list(_vary(place % 17))
    return replace(conversation, tools=conversation.tools or tools)


def _vary(number: int) -> Iterator[Message]:
    for place in range(number):
        function = EXTRA[place % len(EXTRA)]["function"]
        name = f"{function['name']}_{place}" if place >= len(EXTRA) else function["name"]
        yield {"type": "function", "function": {**function, "name": name}}


def _define(name: str, arguments: Message, advice: str) -> Message:
    properties = {
        key: {
            "type": TYPES.get(type(value), "string"),
            "description": f"The {key.replace('_', ' ')}.{advice}",
            **({"items": {"type": "string"}} if isinstance(value, list) else {}),
        }
        for key, value in arguments.items()
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": f"{name}.{advice}", "parameters": schema}
    return {"type": "function", "function": function}
