"""Request bodies of the gateway benchmark: small ones of 0.8 kB, and a growing history of 1 MB.

Words are those of the recordings, mixed, so that text is as hard to tokenize as text is. Bodies are
written as a client's own library writes them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from typing import Any, Literal, TypeAlias
from zlib import crc32

import orjson

from benchmarks import material
from benchmarks.recordings import Message

Format: TypeAlias = Literal["chat", "messages"]
Text: TypeAlias = Literal["seen", "fresh", "long", "history"]

PATHS: dict[Format, str] = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
SYSTEM = "You are a careful assistant. Answer briefly, and say so where you are not sure."
TURNS = (("user", 22), ("assistant", 22), ("user", 46))
"""Roles and numbers of words in a small body."""
LONG = 150
"""A long body has this many times as many turns: about 100 kB."""
POOL = 64
"""Number of small bodies that are sent repeatedly."""
HISTORY = 1_000_000
"""Bytes of the growing history at the first request."""


@dataclass(frozen=True)
class Ask:
    """A kind of request."""

    format: Format = "chat"
    model: str = "gpt-4o"
    text: Text = "seen"
    stream: bool = False
    pace: int | None = None
    """Milliseconds between the events of a response; None to send them immediately."""

    def body(self, messages: Sequence[Message]) -> bytes:
        body: dict[str, Any] = {"model": self.model, "max_tokens": 500}
        if self.format == "messages":
            body |= {"system": messages[0]["content"], "messages": _blocks(messages[1:])}
        else:
            body |= {"messages": messages, "temperature": 0.7}
        if self.stream:
            body["stream"] = True
        if self.pace is not None:
            name = f"paced {self.pace}"
            body |= {"metadata": {"user_id": name}} if self.format == "messages" else {"user": name}
        return orjson.dumps(body)


def bodies(ask: Ask, seed: int) -> Iterator[bytes]:
    """Bodies without end. Another seed is other text where that is fresh, and a later start where
    it is a history: the request of that number."""
    match ask.text:
        case "seen":
            return cycle([ask.body(talk) for talk in islice(_talks(0), POOL)])
        case "fresh":
            return map(ask.body, _talks(seed + 1))
        case "long":
            return map(ask.body, _talks(seed + 1, LONG))
        case "history":
            return map(ask.body, islice(_histories(ask.model), seed, None))


def _talks(seed: int, times: int = 1) -> Iterator[list[Message]]:
    chance = random.Random(seed)
    while True:
        turns = [{"role": role, "content": _words(chance, words)} for role, words in TURNS * times]
        yield [{"role": "system", "content": SYSTEM}, *turns]


def _words(chance: random.Random, number: int) -> str:
    return " ".join(chance.choices(_vocabulary(), k=number))


@cache
def _vocabulary() -> list[str]:
    texts = "\n".join(material.load_texts()["user"] + material.load_texts()["assistant"])
    return sorted(set(re.findall(r"[A-Za-z]{2,14}", texts)))


def _histories(model: str) -> Iterator[list[Message]]:
    """Yield a history with one more exchange each time; each model has its own text."""
    taken: list[Message] = []
    size = 0
    for message in material.turns(seed=crc32(model.encode())):
        taken.append(message)
        size += len(orjson.dumps(message)) + 1
        if size >= HISTORY and message["role"] == "user":
            yield list(taken)


def _blocks(messages: Sequence[Message]) -> list[Message]:
    """Return the turns of a chat in Anthropic's format."""
    return [_block(message) for message in messages]


def _block(message: Message) -> Message:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
        return {"role": "user", "content": [{**result, "content": message["content"]}]}
    if calls := message.get("tool_calls"):
        text = {"type": "text", "text": message["content"]}
        return {"role": "assistant", "content": [text, *map(_use, calls)]}
    return {"role": message["role"], "content": message["content"]}


def _use(call: Any) -> dict[str, Any]:
    function = call["function"]
    use = {"type": "tool_use", "id": call["id"], "name": function["name"]}
    return {**use, "input": json.loads(function["arguments"])}
