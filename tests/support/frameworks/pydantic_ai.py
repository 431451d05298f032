"""The loop with pydantic-ai."""

import asyncio

from openai import AsyncOpenAI
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from brim.integrations.adapter import AdapterSettings
from brim.integrations.pydantic_ai import BrimCapability
from tests.support.frameworks import MODEL, QUESTION, REPLIES, SYSTEM, WINDOW, Outcome, list_tools

__all__ = ["REPLIES", "WINDOW", "run_loop"]


async def run_agent(*capabilities: BrimCapability, fit: AdapterSettings | None = None) -> Outcome:
    async with AsyncOpenAI(max_retries=0) as client:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, instructions=SYSTEM, tools=list_tools(fit), capabilities=capabilities)
        result = await agent.run(QUESTION, usage_limits=UsageLimits(request_limit=100))
    parts = (part for message in result.all_messages() for part in message.parts)
    return Outcome(result.output, [str(p.content) for p in parts if p.part_kind == "tool-return"])


def run_loop(fit: AdapterSettings | None = None) -> Outcome:
    return asyncio.run(run_agent() if fit is None else run_agent(BrimCapability(**fit), fit=fit))
