"""Turns of a chat, made ready to be written in another format: who answers whom, by which id."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brim.messages import Message
from brim.wire import openai_chat
from brim.wire.body_parts import Part, copy_public, to_text

_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+)[^,]*;base64,(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message, and the names under which its calls go out."""

    index: int
    """Where it stands among the messages."""
    raw: Part
    message: Message
    names: tuple[str, ...] = ()
    """Ids for the calls, in their order."""
    answers: str | None = None
    """The id of the call that this is the result of; None also for a result of no call here."""
    is_custom: bool = False
    """Whether that call was one of a custom tool."""

    @property
    def has_thinking(self) -> bool:
        return any(self.raw.get(field) for field in openai_chat.THINKING)

    @property
    def parts(self) -> list[Part]:
        """The content; a text is a part, and who said it goes before."""
        content = self.raw.get("content")
        given = [content] if isinstance(content, str) else content or ()
        parts = [_to_part(part) for part in given]
        name = self.raw.get("name")
        if isinstance(name, str) and self.message.role in ("user", "other"):
            return [_text_part(f"[name: {name}]"), *parts]
        return parts

    @property
    def text(self) -> str:
        return "".join(self.message.words)


def split_system(messages: Sequence[Mapping[str, Any]]) -> tuple[list[ChatTurn], list[ChatTurn]]:
    """The system turns at the head, and the conversation; ids are not yet settled."""
    turns = [
        ChatTurn(index, raw, openai_chat.read_message(raw, index))
        for index, raw in enumerate(messages)
    ]
    head = next((turn.index for turn in turns if turn.message.role != "system"), len(turns))
    return turns[:head], turns[head:]


def assign_call_ids(turns: Iterable[ChatTurn], clean: Callable[[str], str]) -> Iterator[ChatTurn]:
    """Give every call an id of its own and every result that of its call.

    `clean` makes an id that the format takes. Ids come again in later turns of real histories, so
    a result belongs to the assistant's last words before it.
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
            customs = _find_custom_calls(turn.raw, len(names))
            for call, name, is_custom in zip(message.calls, names, customs, strict=True):
                waiting[call.id].append((name, is_custom))
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


def _find_custom_calls(raw: Part, number: int) -> list[bool]:
    calls = raw.get("tool_calls") or [{}] * number
    return ["custom" in call for call in calls]


# Parts


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _to_part(given: object) -> Part:
    match given:
        case str():
            return _text_part(given)
        case Mapping():
            return copy_public(given)
        case _:
            return _text_part(to_text(given))


def is_blank(part: Part) -> bool:
    """Whether a part is a text without a word, which providers refuse."""
    return is_text(part) and not part["text"].strip()


def is_text(part: Part) -> bool:
    return part.get("type") == "text" and isinstance(part.get("text"), str)


def parse_data_url(url: object) -> tuple[str, str] | None:
    """The media type and the base64 of a data URL."""
    found = _DATA.fullmatch(url) if isinstance(url, str) else None
    return (found[1].lower(), found[2]) if found else None


def describe_unsupported(part: Part) -> str:
    """What is said in place of a part that the format cannot hold.

    Of a picture, a sound or a file that there is one; of anything else its JSON.
    """
    kind = {"image_url": "image", "input_audio": "audio", "file": "file"}.get(str(part.get("type")))
    return f"[{kind}: cannot be sent to this model]" if kind else to_text(part)
