"""Turns in the chat shape, prepared for another format: calls, results and their ids."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brim.messages import Message
from brim.wire import openai_chat
from brim.wire.body_parts import Part, copy_public, is_text, make_text, to_text

_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+)[^,]*;base64,(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A message and the ids of its calls in the target format."""

    index: int
    """Index of the message."""
    raw: Part
    message: Message
    names: tuple[str, ...] = ()
    """Ids of the calls, in order."""
    answers: str | None = None
    """The id of the call that this turn answers; None if the call is not in the conversation."""
    is_custom: bool = False
    """Whether that call is a call of a custom tool."""

    @property
    def has_thinking(self) -> bool:
        return any(self.raw.get(field) for field in openai_chat.THINKING)

    @property
    def parts(self) -> list[Part]:
        """The content as a list of parts; the name of the speaker comes first."""
        content = self.raw.get("content")
        given = [content] if isinstance(content, str) else content or ()
        parts = [_to_part(part) for part in given]
        name = self.raw.get("name")
        if isinstance(name, str) and self.message.role in ("user", "other"):
            return [make_text(f"[name: {name}]"), *parts]
        return parts

    @property
    def text(self) -> str:
        return "".join(self.message.words)


def read_native(turn: ChatTurn, field: str) -> list[Part] | None:
    """Return the original parts of a reply in the target format; None if it has none."""
    own = turn.raw.get(field)
    if not isinstance(own, Sequence) or isinstance(own, str):
        return None
    return [copy_public(part) for part in own if isinstance(part, Mapping)]


def split_system(messages: Sequence[Mapping[str, Any]]) -> tuple[list[ChatTurn], list[ChatTurn]]:
    """Return the leading system turns and the conversation; call ids are not assigned yet."""
    turns = [
        ChatTurn(index, raw, openai_chat.read_message(raw, index))
        for index, raw in enumerate(messages)
    ]
    head = next((turn.index for turn in turns if turn.message.role != "system"), len(turns))
    return turns[:head], turns[head:]


def assign_call_ids(turns: Iterable[ChatTurn], clean: Callable[[str], str]) -> Iterator[ChatTurn]:
    """Give every call a unique id, and every result the id of its call.

    `clean` converts an id to one that the format accepts. Real histories reuse ids in later turns,
    so a result belongs to the nearest preceding assistant turn.
    """
    used: set[str] = set()
    waiting: dict[str, deque[tuple[str, bool]]] = {}
    before = ""
    for turn in turns:
        message = turn.message
        if message.role == "assistant":
            if before != "assistant":
                waiting = defaultdict(deque)
            names = tuple(_make_unique(clean(call.id), used) for call in message.calls)
            raws = turn.raw.get("tool_calls") or [{}] * len(names)
            for call, name, raw in zip(message.calls, names, raws, strict=True):
                waiting[call.id].append((name, "custom" in raw))
            yield ChatTurn(turn.index, turn.raw, message, names)
        elif message.role == "tool" and waiting.get(message.answers or ""):
            name, is_custom = waiting[message.answers or ""].popleft()
            yield ChatTurn(turn.index, turn.raw, message, (), name, is_custom)
        else:
            yield turn
        before = message.role


def _make_unique(name: str, used: set[str]) -> str:
    number, unique = 1, name
    while unique in used:
        number += 1
        unique = f"{name}_{number}"
    used.add(unique)
    return unique


# Parts


def _to_part(given: object) -> Part:
    match given:
        case str():
            return make_text(given)
        case Mapping():
            return copy_public(given)
        case _:
            return make_text(to_text(given))


def is_blank(part: Part) -> bool:
    """Whether a part is text without visible characters, which providers reject."""
    return is_text(part) and not part["text"].strip()


def parse_data_url(url: object) -> tuple[str, str] | None:
    """Return the media type and the base64 data of a data URL; None if it is not one."""
    found = _DATA.fullmatch(url) if isinstance(url, str) else None
    return (found[1].lower(), found[2]) if found else None


def describe_unsupported(part: Part) -> str:
    """Return the text that replaces a part that the format does not support.

    For media it is a short placeholder, otherwise the JSON.
    """
    kind = {"image_url": "image", "input_audio": "audio", "file": "file"}.get(str(part.get("type")))
    return f"[{kind}: not supported by this model]" if kind else to_text(part)
