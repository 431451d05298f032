"""LlamaIndex with the real framework."""

from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.llms.openai import OpenAI

import brim
from brim.integrations.llama_index import BrimMemory
from tests.support.frameworks import (
    DONE,
    MODEL,
    QUESTION,
    SYSTEM,
    WINDOW,
    check_failure,
    check_loop,
    llama_index,
    read_file,
    serve,
)
from tests.support.pages import run_page


def test_without_brim_the_loop_fails() -> None:
    check_failure(llama_index)


def test_the_loop_is_completed_and_the_history_is_whole() -> None:
    check_loop(llama_index)


def test_the_memory_returns_the_same_messages_and_counts_tools_and_system_text() -> None:
    plans: list[Any] = []
    memory = BrimMemory(
        system=SYSTEM,
        tools=[llama_index.TOOL],
        window=WINDOW,
        reply=500,
        on_plan=plans.append,
    )
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
