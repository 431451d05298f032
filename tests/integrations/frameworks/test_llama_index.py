"""LlamaIndex with the real framework."""

import asyncio
from typing import Any

import openai
import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI

import brim
from brim.integrations.llama_index import BrimMemory
from tests.support.frameworks import CALLS, DONE, MODEL, QUESTION, WINDOW, check, read_file, serve
from tests.support.pages import run_page

SYSTEM = "You are a careful reader of files. " * 10
TOOL = FunctionTool.from_defaults(read_file)


async def run_loop(memory: BrimMemory, client: Any) -> str:
    llm = OpenAI(model=MODEL, async_openai_client=client, max_retries=0)
    agent = FunctionAgent(tools=[TOOL], llm=llm, system_prompt=SYSTEM, streaming=False)
    return str(await agent.run(QUESTION, memory=memory, max_iterations=60))


def test_without_brim_the_loop_fails() -> None:
    async def go() -> None:
        async with openai.AsyncOpenAI(max_retries=0) as client:
            await run_loop(BrimMemory(window=WINDOW, reply=500), client)

    with serve() as server, pytest.raises(Exception, match="context"):
        asyncio.run(go())
    assert server.rejected


def test_the_loop_is_completed_and_the_memory_keeps_all_messages() -> None:
    plans: list[Any] = []
    memory = BrimMemory(window=WINDOW, reply=500)

    async def go() -> str:
        async with openai.AsyncOpenAI(max_retries=0) as client:
            fitted = brim.wrap(client, window=WINDOW, reply=500, on_plan=plans.append)
            return await run_loop(memory, fitted)

    with serve() as server:
        assert asyncio.run(go()) == DONE
    check(server, plans)
    messages = memory.get_all()
    assert len(messages) == 2 * CALLS + 2
    assert [m.content for m in messages if m.role == "tool"] == [
        read_file(number) for number in range(1, CALLS + 1)
    ]


def test_the_memory_returns_the_same_messages_and_counts_tools_and_system_text() -> None:
    plans: list[Any] = []
    memory = BrimMemory(system=SYSTEM, tools=[TOOL], window=WINDOW, reply=500, on_plan=plans.append)
    for number in range(60):
        memory.put(ChatMessage(role=("user", "assistant")[number % 2], content=read_file(number)))
    returned = memory.get()
    known = {id(message) for message in memory.get_all()}
    assert len(returned) < 60 == len(memory.get_all())
    assert sum(id(message) in known for message in returned) >= len(returned) - 1
    assert plans[-1].is_trimmed
    assert plans[-1].tokens > brim.count([{"role": m.role, "content": m.content} for m in returned])


def test_a_chat_engine_uses_the_memory() -> None:
    memory = BrimMemory(window=WINDOW, reply=500)
    for number in range(60):
        memory.put(ChatMessage(role=("user", "assistant")[number % 2], content=read_file(number)))
    with brim.testing.ScriptedServer(DONE, window=WINDOW, model=MODEL) as server:
        llm = OpenAI(model=MODEL, api_base=server.url, api_key="key", max_retries=0)
        engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory)
        assert str(engine.chat(QUESTION)) == DONE
    assert not server.rejected


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        run_page("llama_index", server, monkeypatch)
    assert not server.rejected
