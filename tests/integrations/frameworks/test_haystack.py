"""Haystack with the real framework."""

from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.core.serialization import (
    allow_deserialization_module,
    component_from_dict,
    component_to_dict,
)
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

from brim.integrations.haystack import BrimChatGenerator
from brim.testing import ScriptedServer
from tests.support.frameworks import CALLS, DONE, MODEL, QUESTION, WINDOW, check, read_file, serve
from tests.support.pages import run_page

SYSTEM = "You are a careful reader of files. " * 10
TOOL = create_tool_from_function(read_file)


def make_generator(server: ScriptedServer) -> OpenAIChatGenerator:
    key = Secret.from_env_var("OPENAI_API_KEY")
    return OpenAIChatGenerator(key, MODEL, api_base_url=server.url, max_retries=0)


def make_agent(generator: Any) -> Agent:
    return Agent(chat_generator=generator, tools=[TOOL], system_prompt=SYSTEM, max_agent_steps=60)


def check_history(result: dict[str, Any]) -> None:
    assert result["last_message"].text == DONE
    results = [message.tool_call_results for message in result["messages"]]
    outputs = [result[0].result for result in results if result]
    assert outputs == [read_file(number) for number in range(1, CALLS + 1)]


def test_without_brim_the_loop_fails() -> None:
    with serve() as server, pytest.raises(Exception, match="context"):
        make_agent(make_generator(server)).run([ChatMessage.from_user(QUESTION)])
    assert server.rejected


def test_the_loop_is_completed_and_the_agent_keeps_all_messages() -> None:
    plans: list[Any] = []
    with serve() as server:
        fitted = BrimChatGenerator(
            make_generator(server), window=WINDOW, reply=500, on_plan=plans.append
        )
        result = make_agent(fitted).run([ChatMessage.from_user(QUESTION)])
    check(server, plans)
    check_history(result)


@pytest.mark.anyio
async def test_an_async_run_is_completed() -> None:
    plans: list[Any] = []
    with serve() as server:
        fitted = BrimChatGenerator(
            make_generator(server), window=WINDOW, reply=500, on_plan=plans.append
        )
        result = await make_agent(fitted).run_async([ChatMessage.from_user(QUESTION)])
    check(server, plans)
    check_history(result)


def test_messages_keep_their_metadata() -> None:
    generator = BrimChatGenerator(object(), model=MODEL, window=1_500, reply=10)
    messages = [ChatMessage.from_user(read_file(n), meta={"n": n}) for n in range(6)]
    kept = generator.fit(messages)
    assert len(kept) < 6
    assert all(message.meta for message in kept if not message.text.startswith("[brim"))
    assert kept[-1] is messages[-1]


def test_a_generator_is_serialized_with_its_settings() -> None:
    with serve() as server:
        generator = BrimChatGenerator(make_generator(server), window=WINDOW, reply=500)
        allow_deserialization_module("brim.integrations.haystack")
        restored = component_from_dict(BrimChatGenerator, component_to_dict(generator, "x"), "x")
        assert isinstance(restored.inner, OpenAIChatGenerator)
        reply = restored.run([ChatMessage.from_user("Hi.")])["replies"][0]
    assert reply.tool_calls


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        run_page("haystack", server, monkeypatch)
    assert not server.rejected
