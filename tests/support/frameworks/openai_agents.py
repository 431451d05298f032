"""The loop with the OpenAI Agents SDK."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
)
from agents import set_tracing_disabled as disable_tracing
from openai import AsyncOpenAI

from brim.integrations.adapter import AdapterSettings
from brim.integrations.openai_agents import BrimFilter
from tests.support.frameworks import MODEL, QUESTION, REPLIES, SYSTEM, WINDOW, Outcome, list_tools

__all__ = ["REPLIES", "WINDOW", "run_loop"]

disable_tracing(True)


async def _run(fit: AdapterSettings | None, *, uses_responses: bool) -> Outcome:
    config = RunConfig(call_model_input_filter=None if fit is None else BrimFilter(**fit))
    kind: Any = OpenAIResponsesModel if uses_responses else OpenAIChatCompletionsModel
    session = SQLiteSession("loop")
    async with AsyncOpenAI(max_retries=0) as client:
        agent = Agent(
            "reader",
            instructions=SYSTEM,
            tools=[*map(function_tool, list_tools(fit))],
            model=kind(MODEL, openai_client=client),
        )
        result = await Runner.run(agent, QUESTION, run_config=config, session=session, max_turns=60)
    items: Any = await session.get_items()
    session.close()
    outputs = [item["output"] for item in items if item.get("type") == "function_call_output"]
    return Outcome(result.final_output, outputs)


def run_loop(fit: AdapterSettings | None = None, *, uses_responses: bool = False) -> Outcome:
    return asyncio.run(_run(fit, uses_responses=uses_responses))


RESPONSES: Any = SimpleNamespace(
    REPLIES=REPLIES, WINDOW=WINDOW, run_loop=partial(run_loop, uses_responses=True)
)
"""The same loop with the Responses API."""
