"""Validation of the turns of a session, and of indices of turns.

It is stricter than that of `fit`, so that servers accept the history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from brim.errors import InputError, MessageError
from brim.messages import Message
from brim.wire.body_parts import is_text
from brim.wire.openai_chat import EMPTY_FIELD
from brim.wire.reply_parser import is_json, parse_arguments

Turn = dict[str, Any]
ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def get_turn(turns: Sequence[Turn], index: int) -> Turn:
    """Return a turn; raise InputError if it does not exist."""
    if not isinstance(index, int) or not 0 <= index < len(turns):
        last = f"The last turn is {len(turns) - 1}." if turns else "There is none yet."
        raise InputError(f"Turn {index!r} does not exist. {last}")
    return turns[index]


def check_sendable(turns: Sequence[Turn], index: int) -> None:
    """Raise InputError if a turn does not exist or is an empty reply."""
    if get_turn(turns, index).get(EMPTY_FIELD):
        raise InputError(f"Turn {index} is an empty reply, which is never sent.")


def check_turn(message: Mapping[str, Any], index: int, pending: Sequence[str]) -> None:
    """Raise MessageError if a turn is invalid; `pending` are the ids of the open calls."""
    role, content = message["role"], message.get("content")
    if role not in ROLES:
        raise MessageError(index, f"unknown role: {role!r}. Use one of {', '.join(ROLES)}.")
    if role == "tool":
        _check_result(message, index, pending)
    elif role == "assistant":
        if not content and not message.get("tool_calls"):
            raise MessageError(index, "an assistant turn needs content or tool calls.")
    elif not content or (isinstance(content, list | tuple) and all(map(_is_blank, content))):
        raise MessageError(index, f"a {role} turn needs content.")


def _is_blank(part: object) -> bool:
    return isinstance(part, Mapping) and is_text(part) and not part["text"]


def _check_result(message: Mapping[str, Any], index: int, pending: Sequence[str]) -> None:
    call = message.get("tool_call_id")
    if not isinstance(call, str) or not call:
        raise MessageError(index, "a tool turn needs a tool_call_id.")
    if message.get("content") is None:
        raise MessageError(index, "a tool turn needs content. It may be the empty string.")
    if call not in pending:
        raise MessageError(index, f"no open call has the id {call!r}.")


def find_open_calls(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of the calls of the last step that have no result yet."""
    answered: list[str] = []
    for turn in reversed(turns):
        if turn.get(EMPTY_FIELD):
            continue
        if turn["role"] == "tool":
            answered.append(str(turn["tool_call_id"]))
        elif turn["role"] not in ("system", "developer"):
            calls = [str(call.get("id")) for call in turn.get("tool_calls") or ()]
            for call in answered:
                if call in calls:
                    calls.remove(call)
            return calls
    return []


def repair_arguments(call: dict[str, Any]) -> None:
    """Replace truncated arguments by valid JSON, because servers reject requests without."""
    function = call.get("function")
    text = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(function, dict) and isinstance(text, str) and not is_json(text):
        function["arguments"] = json.dumps(parse_arguments(text), ensure_ascii=False)


def is_system_prompt(message: Mapping[str, Any], view: Message) -> bool:
    """Return whether a turn is a system text without other fields."""
    fields = {key for key in message if not key.startswith("_")}
    is_text = fields == {"role", "content"} and isinstance(message["content"], str)
    return view.role == "system" and is_text
