"""DSPy: `dspy.configure(lm=BrimLM("openai/gpt-4o", fit={"window": 8192}))`."""

from __future__ import annotations

from typing import Any

import dspy
from dspy.utils.exceptions import ContextWindowExceededError

from brim.errors import ContextOverflowError
from brim.integrations.adapter import AdapterSettings, MessageFitter


class BrimLM(dspy.LM):  # type: ignore[misc]
    """A language model that fits every request.

    A request that cannot fit raises DSPy's own error, so that `ReAct` shortens its trajectory.
    """

    def __init__(self, model: str, *, fit: AdapterSettings, **options: Any) -> None:
        super().__init__(model, **options)
        self._fitter = MessageFitter(**fit)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **options: Any) -> Any:
        fitted = self._fit(messages, options)
        return super().__call__(prompt, messages=fitted, **options)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **options: Any) -> Any:
        fitted = self._fit(messages, options)
        return await super().acall(prompt, messages=fitted, **options)

    def _fit(self, messages: Any, options: dict[str, Any]) -> Any:
        if messages is None:
            return None
        try:
            return self._fitter.fit(messages, self.model, options.get("tools") or ()).messages
        except ContextOverflowError as error:
            raise ContextWindowExceededError(message=str(error)) from error
