"""The tool `recall`, with which a model reads what was trimmed from its request.

brim answers the calls itself: with passages that match a query, or with one message. The answer is
an ordinary tool result, which can be clipped and trimmed like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brim.errors import InputError
from brim.fitting.clip import clip
from brim.fitting.plan import Plan, find_trimmed_texts
from brim.fitting.search import choose_length, read_texts, search_texts
from brim.messages import Call
from brim.wire.notes import entry_mark

RECALL: Final = "recall"
RECALL_SHARE: Final = 0.05
"""The share of the limit that an answer takes at most."""
RECALL_HINT: Final = f"call {RECALL} to read them"
"""What the note at a gap says if the tool is offered."""
MAX_RECALLS: Final = 8
"""Requests in a row that a client sends because the model recalled something."""
NOTHING_FOUND: Final = "No omitted text matches. Try other words."
_NOT_ASKED: Final = "Give a query (a text) or message (a number)."
_FRAME_TOKENS: Final = 12
"""The most tokens of the line above a passage."""

RECALL_TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": RECALL,
        "description": (
            "Reads messages of this conversation that were omitted to save space; a note like "
            "[brim: … omitted] is in their place. Give either a query, words to search for, or "
            "message, the number of one message."
        ),
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "message": {"type": "integer"}},
        },
    },
}


def check_tool_names(tools: Iterable[Mapping[str, Any]]) -> None:
    """Raise InputError if a tool has the name of brim's own."""
    for tool in tools:
        inner = tool.get("function")
        if (inner if isinstance(inner, Mapping) else tool).get("name") == RECALL:
            raise InputError(
                f"A tool has the name of brim's own: {RECALL}. Rename it, or use recall=False."
            )


def is_recall_forced(choice: object) -> bool:
    """Return whether the field `tool_choice` of a request allows nothing but a call of a tool."""
    return isinstance(choice, Mapping) or choice in ("required", "any")


@dataclass(frozen=True, slots=True)
class RecallAnswerer:
    """Answers calls of the tool from what a plan trimmed."""

    plan: Plan
    count: Callable[[str], int]
    """Returns the tokens of a text."""

    @property
    def room(self) -> int:
        """The most tokens of an answer."""
        return int(self.plan.limit * RECALL_SHARE)

    def answer(self, call: Call) -> str:
        """Return the result of a call; it explains what is wrong with an invalid one."""
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, Mapping):
            return "The arguments are not a JSON object."
        number, query = arguments.get("message"), arguments.get("query")
        if isinstance(number, int) and not isinstance(number, bool):
            return self.read(number)
        if isinstance(query, str):
            return self.find(query)
        return _NOT_ASKED

    def read(self, number: int) -> str:
        """Return one message, clipped."""
        messages = self.plan.history.messages
        if not 0 <= number < self.plan.length or messages[number].role == "system":
            return f"There is no message {number}. The numbers go from 0 to {self.plan.length - 1}."
        message = messages[number]
        text = "\n".join(read_texts(message))
        head = f"[message {number}, {message.role}]\n"
        room = self.room - self.count(head)
        return head + clip(text, self.count(text), max(0, room), self.count, mark=entry_mark)

    def find(self, query: str) -> str:
        """Return the passages that match a query best."""
        if not query.strip():
            return _NOT_ASKED

        def count(text: str) -> int:
            return self.count(text) + _FRAME_TOKENS

        sources, chars = find_trimmed_texts(self.plan), choose_length(self.plan.budget.window)
        cache = self.plan.history.passage_cache
        passages = search_texts(sources, query, self.room, count, chars, cache)
        if not passages:
            return NOTHING_FOUND
        return "\n\n".join(
            f"[message {passage.index}, {passage.role}]\n{passage.text}" for passage in passages
        )


def find_recall_calls(message: Mapping[str, Any]) -> Sequence[Call]:
    """Return the calls of the tool in an assistant turn."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function")
        if isinstance(function, Mapping) and function.get("name") == RECALL:
            calls.append(Call(str(call.get("id")), RECALL, str(function.get("arguments") or "")))
    return calls
