"""Short view: the last turns, shortened, for small models that perform poorly with more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from unicodedata import combining

from brim.errors import InputError

_MAX_DEPTH: Final = 12


@dataclass(frozen=True, slots=True)
class ShortView:
    """How much of a conversation a small model receives."""

    keep_turns: int = 2
    max_turn_chars: int = 800

    def __post_init__(self) -> None:
        for name in ("keep_turns", "max_turn_chars"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a positive integer, not {value!r}.")

    def shorten(self, turns: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
        """Return the last turns, shortened.

        They include the call of each result among them, and always the last user turn and the
        pinned turns, with their whole steps.
        """
        start = _find_step_start(turns, max(0, len(turns) - self.keep_turns))
        users = [index for index, turn in enumerate(turns) if turn.get("role") == "user"]
        kept = {*users[-1:], *range(start, len(turns))}
        for index, turn in enumerate(turns):
            if turn.get("_pin"):
                kept.update(_find_step(turns, index))
        return [self._shorten_turn(turns[index]) for index in sorted(kept)]

    def _shorten_turn(self, turn: Mapping[str, Any]) -> Mapping[str, object]:
        """Shorten results and assistant text to their ends; user text stays whole."""
        max_chars = self.max_turn_chars
        short = dict(turn)
        if turn.get("role") in ("tool", "assistant") and "content" in turn:
            short["content"] = _keep_end(turn["content"], max_chars)
        if "_output" in turn:
            short["_output"] = _keep_end(turn["_output"], max_chars)
        if calls := turn.get("tool_calls"):
            short["tool_calls"] = [_shorten_call(call, max_chars) for call in calls]
        return turn if short == turn else short


def _find_step(turns: Sequence[Mapping[str, object]], index: int) -> range:
    """Return the turns of the step that a turn belongs to; of other turns the turn itself."""
    if turns[index].get("role") != "tool" and not turns[index].get("tool_calls"):
        return range(index, index + 1)
    stop = index + 1
    while stop < len(turns) and turns[stop].get("role") == "tool":
        stop += 1
    return range(_find_step_start(turns, index), stop)


def _find_step_start(turns: Sequence[Mapping[str, object]], start: int) -> int:
    """Return the start of the step whose results come first from `start` on."""
    first = start
    while first < len(turns) and turns[first].get("role") in ("system", "developer"):
        first += 1
    if first == len(turns) or turns[first].get("role") != "tool":
        return start
    while start > 0 and turns[start].get("role") in ("tool", "system", "developer"):
        start -= 1
    return start


def _keep_end(content: Any, max_chars: int) -> Any:
    """Keep the last characters of a text, or of the texts among parts; other parts stay."""
    if isinstance(content, str):
        text = content[-max_chars:] if max_chars > 0 else ""
        while text and len(text) < len(content) and combining(text[0]):
            text = text[1:]  # a combining accent without its letter
        return text
    if not isinstance(content, Sequence):
        return content
    parts: list[Any] = []
    for part in reversed(content):
        match part:
            case {"type": "text", "text": str(text)}:
                if max_chars > 0:
                    parts.append({**part, "text": _keep_end(text, max_chars)})
                max_chars -= len(text)
            case _:
                parts.append(part)
    return parts[::-1]


def _shorten_call(call: Mapping[str, Any], max_chars: int) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if len(text) <= max_chars:
        return call
    short = _shorten_json(text, max_chars)
    if not isinstance(arguments, str):
        short = json.loads(short)
    return {**call, "function": {**function, "arguments": short}}


def _shorten_json(text: str, max_chars: int) -> str:
    """Shorten the texts in arguments, so that they stay valid JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = {"shortened": text}
    share = max_chars
    while share:
        share //= 2
        short = json.dumps(_shorten_value(value, share), ensure_ascii=False)
        if len(short) <= max_chars:
            return short
    return "{}"


def _shorten_value(value: Any, max_chars: int, depth: int = 0) -> Any:
    if isinstance(value, str):
        return value if len(value) <= max_chars else value[:max_chars] + "…"
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, list):
        return [
            _shorten_value(item, max_chars, depth + 1) for item in value[: max(1, max_chars // 8)]
        ]
    if isinstance(value, dict):
        return {key: _shorten_value(item, max_chars, depth + 1) for key, item in value.items()}
    return value
