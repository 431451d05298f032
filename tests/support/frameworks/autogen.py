"""The loop with AutoGen."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from brim.integrations.adapter import AdapterSettings
from brim.integrations.autogen import BrimContext
from tests.support.frameworks import MODEL, QUESTION, REPLIES, SYSTEM, WINDOW, Outcome, read_file

__all__ = ["REPLIES", "WINDOW", "run_loop"]

TOOL = FunctionTool(read_file, description="Return the content of a file.")


async def _run(fit: AdapterSettings | None) -> Outcome:
    context = UnboundedChatCompletionContext()
    if fit is not None:
        context = BrimContext(system=SYSTEM, tools=[TOOL], **(fit | {"model": MODEL}))
    client = OpenAIChatCompletionClient(model=MODEL, max_retries=0)
    agent = AssistantAgent(
        "reader", client, tools=[TOOL], system_message=SYSTEM, model_context=context,
        max_tool_iterations=60,
    )  # fmt: skip
    try:
        result = await agent.run(task=QUESTION)
    finally:
        await client.close()
    messages = (await context.save_state())["messages"]
    outputs = [m["content"][0]["content"] for m in messages if m["type"].startswith("Function")]
    return Outcome(result.messages[-1].content, outputs)


def run_loop(fit: AdapterSettings | None = None) -> Outcome:
    return asyncio.run(_run(fit))
