"""The loop with LlamaIndex, whose agent keeps the steps of a run outside of its memory."""

import asyncio

import openai
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI

import brim
from brim.fitting.api import FitSettings
from brim.integrations.adapter import AdapterSettings
from brim.integrations.llama_index import BrimMemory
from tests.support.frameworks import MODEL, QUESTION, REPLIES, SYSTEM, WINDOW, Outcome, read_file

__all__ = ["REPLIES", "WINDOW", "run_loop"]

TOOL = FunctionTool.from_defaults(read_file)


async def _run(fit: AdapterSettings | None) -> Outcome:
    memory: BaseMemory = ChatMemoryBuffer.from_defaults(token_limit=1_000_000)
    async with openai.AsyncOpenAI(max_retries=0) as client:
        if fit is not None:
            limits: FitSettings = {"window": fit["window"], "reply": fit["reply"]}
            memory = BrimMemory(**limits)
            client = brim.wrap(client, on_plan=fit.get("on_plan"), **limits)
        llm = OpenAI(model=MODEL, async_openai_client=client, max_retries=0)
        agent = FunctionAgent(tools=[TOOL], llm=llm, system_prompt=SYSTEM, streaming=False)
        answer = str(await agent.run(QUESTION, memory=memory, max_iterations=60))
    return Outcome(answer, [str(m.content) for m in memory.get_all() if m.role == "tool"])


def run_loop(fit: AdapterSettings | None = None) -> Outcome:
    return asyncio.run(_run(fit))
