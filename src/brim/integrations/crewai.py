"""CrewAI: `BrimHook(window=8192).register()` fits the calls of all agents."""

from __future__ import annotations

from typing import Any, Unpack

from crewai.hooks import (
    LLMCallHookContext,
    register_after_llm_call_hook,
    register_before_llm_call_hook,
    unregister_after_llm_call_hook,
    unregister_before_llm_call_hook,
)
from crewai.utilities.agent_utils import convert_tools_to_openai_schema

from brim.integrations.adapter import AdapterSettings, MessageFitter, RunHistory

MAX_RUNS = 100
"""Runs of agents at a time whose history is kept."""


class BrimHook:
    """Fits the messages before each call, and puts the whole history back after the reply.

    CrewAI reports no reply that only calls tools, so the history is kept here until the next one.
    """

    def __init__(self, **settings: Unpack[AdapterSettings]) -> None:
        self._fitter = MessageFitter(**settings)
        self._runs: dict[int, RunHistory[Any]] = {}

    def before(self, context: LLMCallHookContext) -> None:
        """Replace the messages by those that fit."""
        run = self._runs.setdefault(id(context.messages), RunHistory())
        if len(self._runs) > MAX_RUNS:
            del self._runs[next(iter(self._runs))]
        history = run.extend(context.messages)
        offered = getattr(context.executor, "original_tools", None) or ()
        tools = convert_tools_to_openai_schema(offered)[0] if offered else ()
        fitted = self._fitter.fit(history, getattr(context.llm, "model", context.llm), tools)
        context.messages[:] = fitted.messages
        run.record(fitted.messages)

    def after(self, context: LLMCallHookContext) -> None:
        """Put the whole history back."""
        if (run := self._runs.get(id(context.messages))) is not None:
            context.messages[:] = run.extend(context.messages)
            run.record(context.messages)

    def register(self) -> None:
        register_before_llm_call_hook(self.before)
        register_after_llm_call_hook(self.after)

    def unregister(self) -> None:
        unregister_before_llm_call_hook(self.before)
        unregister_after_llm_call_hook(self.after)
