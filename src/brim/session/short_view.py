"""The short view: the last few turns, shortened, for models that lose themselves in more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from unicodedata import combining

from brim.errors import InputError

Turn: TypeAlias = Mapping[str, Any]
_MAX_DEPTH: Final = 12


@dataclass(frozen=True, slots=True)
class ShortView:
    """How much a small model is shown."""

    keep_turns: int = 2
    max_turn_chars: int = 800

    def __post_init__(self) -> None:
        for name in ("keep_turns", "max_turn_chars"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number from 1 on, not {value!r}")

    def of(self, turns: Sequence[Turn]) -> list[Turn]:
        """The last turns, back to the call of any result among them and to the last user."""
        start = _find_step_start(turns, max(0, len(turns) - self.keep_turns))
        users = [index for index, turn in enumerate(turns) if turn.get("role") == "user"]
        kept = list(range(start, len(turns)))
        if users and users[-1] < start:
            kept.insert(0, users[-1])
        return [self._shortened(turns[index]) for index in kept]

    def _shortened(self, turn: Turn) -> Turn:
        """Results and what the model said are cut to their ends; the user's words are not."""
        most = self.max_turn_chars
        changed: dict[str, Any] = {}
        content = turn.get("content")
        if (
            turn.get("role") in ("tool", "assistant")
            and (short := _keep_end(content, most)) != content
        ):
            changed["content"] = short
        if _is_longer_than(turn.get("_output"), most):
            changed["_output"] = _keep_end(turn["_output"], most)
        if calls := turn.get("tool_calls"):
            changed["tool_calls"] = [_shorten_call(call, most) for call in calls]
        return {**turn, **changed} if changed else turn


def _find_step_start(turns: Sequence[Turn], start: int) -> int:
    """Where the step begins whose results stand first from here on; system turns may be between."""
    first = start
    while first < len(turns) and turns[first].get("role") in ("system", "developer"):
        first += 1
    if first == len(turns) or turns[first].get("role") != "tool":
        return start
    while start > 0 and turns[start].get("role") in ("tool", "system", "developer"):
        start -= 1
    return start


def _is_longer_than(text: object, most: int) -> bool:
    return isinstance(text, str) and len(text) > most


def _keep_end(content: Any, most: int) -> Any:
    """The last characters of a text, or of the texts among parts; other parts stay."""
    if isinstance(content, str):
        text = content[-most:] if most > 0 else ""
        while text and len(text) < len(content) and combining(text[0]):
            text = text[1:]  # an accent without its letter
        return text
    if not isinstance(content, Sequence):
        return content
    parts: list[Any] = []
    for part in reversed(content):
        match part:
            case {"type": "text", "text": str(text)}:
                if most > 0:
                    parts.append({**part, "text": _keep_end(text, most)})
                most -= len(text)
            case _:
                parts.append(part)
    return parts[::-1]


def _shorten_call(call: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if len(text) <= most:
        return call
    short = _shorten_json(text, most)
    if not isinstance(arguments, str):
        short = json.loads(short)
    return {**call, "function": {**function, "arguments": short}}


def _shorten_json(text: str, most: int) -> str:
    """Arguments with their long texts cut, so that they stay JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = {"shortened": text}
    share = most
    while share:
        share //= 2
        short = json.dumps(_shorten_value(value, share), ensure_ascii=False)
        if len(short) <= most:
            return short
    return "{}"


def _shorten_value(value: Any, most: int, depth: int = 0) -> Any:
    if isinstance(value, str):
        return value if len(value) <= most else value[:most] + "…"
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, list):
        return [_shorten_value(item, most, depth + 1) for item in value[: max(1, most // 8)]]
    if isinstance(value, dict):
        return {key: _shorten_value(item, most, depth + 1) for key, item in value.items()}
    return value
