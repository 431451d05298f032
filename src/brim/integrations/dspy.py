"""DSPy: `dspy.configure(lm=BrimLM("openai/gpt-4o", fit={"window": 8192}))`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import dspy
from dspy.utils.exceptions import ContextWindowExceededError

from brim.errors import ContextOverflowError
from brim.fitting.api import count, fit
from brim.integrations.adapter import AdapterSettings, MessageFitter, describe_call

_excess: ContextVar[int] = ContextVar("brim_dspy_excess", default=0)
"""Tokens by which the last request of this context was too long."""


class BrimLM(dspy.LM):  # type: ignore[misc]
    """A language model that fits every request.

    A request that cannot fit raises DSPy's own error, so that `BrimReAct` shortens what it sends.
    """

    def __init__(self, model: str, *, fit: AdapterSettings, **options: Any) -> None:
        super().__init__(model, **options)
        self._fitter = MessageFitter(**fit)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **options: Any) -> Any:
        return super().__call__(prompt, messages=self._fit(messages, options), **options)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **options: Any) -> Any:
        return await super().acall(prompt, messages=self._fit(messages, options), **options)

    def _fit(self, messages: Any, options: dict[str, Any]) -> Any:
        try:
            return (
                messages and self._fitter.fit(messages, self.model, options.get("tools")).messages
            )
        except ContextOverflowError as error:
            _excess.set(error.tokens - error.limit)
            raise ContextWindowExceededError(message=str(error)) from error


class BrimReAct(dspy.ReAct):  # type: ignore[misc]
    """ReAct that sends a copy of its trajectory if that is too long; the result has all of it."""

    def truncate_trajectory(self, trajectory: dict[str, Any]) -> dict[str, Any]:
        """Return a copy that is smaller by what the last request was too long."""
        steps = [key.removeprefix("thought_") for key in trajectory if key.startswith("thought_")]
        turns = [turn for step in steps for turn in _read_step(trajectory, step)]
        try:
            fitted = fit(turns, window=max(1, count(turns) - _excess.get()), reply=0, margin=0)
        except ContextOverflowError as error:
            raise ContextWindowExceededError(message=str(error)) from error
        sent = [(steps[out.origin // 2], out) for out in fitted.outgoing if out.origin is not None]
        results = {
            f"observation_{step}": out.message["content"] for step, out in sent if out.changed
        }
        kept, values = dict(sent), {**trajectory, **results}
        return {key: value for key, value in values.items() if key.split("_")[-1] in kept}


def _read_step(trajectory: dict[str, Any], step: str) -> list[dict[str, Any]]:
    """Return a step in the chat shape: a call and its result."""
    call = describe_call(step, trajectory[f"tool_name_{step}"], trajectory[f"tool_args_{step}"])
    thought, result = trajectory[f"thought_{step}"], trajectory[f"observation_{step}"]
    return [
        {"role": "assistant", "content": thought, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": step, "content": str(result)},
    ]
