"""DSPy: `dspy.configure(lm=BrimLM("openai/gpt-4o", fit={"window": 8192}))`."""

from __future__ import annotations

from itertools import count
from typing import Any, Final, NamedTuple

import dspy
from dspy.utils.exceptions import ContextWindowExceededError

from brim.errors import ContextOverflowError
from brim.fitting.plan import Request
from brim.integrations.adapter import AdapterSettings, MessageFitter, describe_call

_FIELDS: Final = (("[[ ## ", ""), ("<", "\n</observation_"))
"""What begins a field and ends an observation: ChatAdapter and JSONAdapter, XMLAdapter."""


class BrimLM(dspy.LM):  # type: ignore[misc]
    """A language model that fits every request, also one with a long trajectory of `dspy.ReAct`.

    A request that cannot fit raises DSPy's own error.
    """

    def __init__(self, model: str, *, fit: AdapterSettings, **options: Any) -> None:
        super().__init__(model, **options)
        self._fitter = MessageFitter(**fit)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **options: Any) -> Any:
        return super().__call__(prompt, messages=self._fit(messages, options), **options)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **options: Any) -> Any:
        return await super().acall(prompt, messages=self._fit(messages, options), **options)

    def _fit(self, messages: Any, options: dict[str, Any]) -> Any:
        if not messages:
            return messages
        parts = _split_prompt(messages[-1].get("content"))
        turns = [*messages[:-1], *map(_describe, parts, count())] if parts else messages
        try:
            request = self._fitter.fit(turns, self.model, options.get("tools"))
        except ContextOverflowError as error:
            raise ContextWindowExceededError(message=str(error)) from error
        return _join(request, parts, messages) if parts else request.messages


class _Part(NamedTuple):
    """A part of a prompt with a trajectory, and the marks of DSPy around it.

    They are not counted, because the structure of the chat shape takes a few tokens more.
    """

    role: str
    before: str
    text: str
    after: str


def _split_prompt(content: object) -> list[_Part]:
    """Return what comes after and before a trajectory, and its steps; empty if there is none."""
    parts: list[_Part] = []
    text, gap, tail = content.rpartition("\n\n") if isinstance(content, str) else ("", "", "")
    for begin, end in _FIELDS:
        mark = f"\n{begin}thought_"
        if parts or mark not in text:
            continue
        head, _, steps = text.partition(mark)
        parts = [_Part("system", gap, tail, ""), _Part("user", "", head, "")]
        for step in steps.split(f"\n{mark}"):
            call, field, rest = step.partition(f"{begin}observation_")
            number, line, rest = rest.partition("\n")
            result, closing, after = rest.rpartition(end) if end else (rest, "", "")
            gap = "\n" if len(parts) > 2 else ""
            parts.append(_Part("assistant", gap + mark, call, field + number + line))
            parts.append(_Part("tool", "", result, closing + after))
    return parts


def _describe(part: _Part, number: int) -> dict[str, Any]:
    """Return a part in the chat shape; a result answers the part before it."""
    turn = {"role": part.role, "content": part.text}
    if part.role == "assistant":
        return {**turn, "tool_calls": [describe_call(str(number), "", "")]}
    return {**turn, "tool_call_id": str(number - 1)} if part.role == "tool" else turn


def _join(request: Request, parts: list[_Part], messages: Any) -> list[dict[str, Any]]:
    """Return the messages with the parts that are sent as one text again."""
    if not request.plan.is_trimmed:
        return [*messages]
    sent: list[Any] = []
    texts: list[str] = []
    first = len(messages) - 1
    for origin, body, _ in request.outgoing:
        if origin is None and texts:
            texts += ["\n\n", body["content"]]
        elif origin is None or origin < first:
            sent.append(body)
        elif (part := parts[origin - first]).role != "system":
            texts += [part.before, body["content"], part.after]
    texts += parts[0].before, parts[0].text
    return [*sent, {**messages[-1], "content": "".join(texts)}]
