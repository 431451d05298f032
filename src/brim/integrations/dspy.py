"""DSPy: `dspy.configure(lm=BrimLM("openai/gpt-4o", fit={"window": 8192}))`."""

from __future__ import annotations

import re
from typing import Any, Final

import dspy
from dspy.utils.exceptions import ContextWindowExceededError

from brim.errors import ContextOverflowError
from brim.fitting.api import count, fit
from brim.integrations.adapter import AdapterSettings, MessageFitter, describe_call

ATTEMPTS: Final = 3
"""The text of a step can take a few tokens more or less than its turns are counted."""
_STEP: Final = re.compile(
    r"(?s)(\[\[ ## thought_\d+ ## .*? observation_\d+ ## \]\]\n)(.*?)(?=\n\n\[\[ ## thought|\Z)"
)
"""A step of `dspy.ReAct` as DSPy writes it into a prompt: a call and its result."""


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
        tools, excess, failure = options.get("tools"), 0, None
        for _ in range(ATTEMPTS):
            try:
                sent = _shorten_trajectory(messages, excess) if excess else messages
                return sent and self._fitter.fit(sent, self.model, tools).messages
            except ContextOverflowError as error:
                excess += error.tokens - error.limit
                failure = failure or error
        raise ContextWindowExceededError(message=str(failure)) from failure


def _shorten_trajectory(messages: list[dict[str, Any]], excess: int) -> list[dict[str, Any]]:
    """Return the messages with a trajectory in the last one that is smaller by `excess` tokens.

    Results are clipped, or steps are dropped, but never the last one.
    """
    *others, last = messages
    head, *steps = _STEP.split(str(last["content"]))
    if not steps:
        return messages
    result, gap, tail = steps[-2].rpartition("\n\n")
    pairs = zip(steps[::3], [*steps[1:-2:3], result], strict=True)
    turns = [turn for id, pair in enumerate(pairs) for turn in _describe_step(str(id), *pair)]
    fitted = fit(turns, window=max(1, count(turns) - excess), reply=0, margin=0)
    texts = [out.message["content"] for out in fitted.outgoing if out.origin is not None]
    sent = "\n\n".join(map("".join, zip(texts[::2], texts[1::2], strict=True)))
    return [*others, {**last, "content": head + sent + gap + tail}]


def _describe_step(id: str, call: str, result: str) -> list[dict[str, Any]]:
    """Return a step in the chat shape."""
    return [
        {"role": "assistant", "content": call, "tool_calls": [describe_call(id, "", "")]},
        {"role": "tool", "tool_call_id": id, "content": result},
    ]
