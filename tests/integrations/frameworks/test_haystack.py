"""Haystack with the real framework."""

from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.hooks.compaction import CompactionHook
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

from brim.integrations.haystack import BrimCompactor
from tests.support.frameworks import CALLS, DONE, MODEL, QUESTION, WINDOW, check, read_file, serve
from tests.support.pages import run_page

SYSTEM = "You are a careful reader of files. " * 10
TOOL = create_tool_from_function(read_file)


def run_loop(server: Any, hooks: Any = None) -> Any:
    generator = OpenAIChatGenerator(
        Secret.from_token("key"), MODEL, api_base_url=server.url, max_retries=0
    )
    agent = Agent(
        chat_generator=generator,
        tools=[TOOL],
        system_prompt=SYSTEM,
        max_agent_steps=60,
        hooks=hooks,
    )
    return agent.run([ChatMessage.from_user(QUESTION)])


def make_hook(compactor: BrimCompactor) -> Any:
    return {
        "before_llm": [
            CompactionHook(compactor, context_window=WINDOW, compact_at=0.02, compact_to=0.01)
        ]
    }


def test_without_brim_the_loop_fails() -> None:
    with serve() as server, pytest.raises(Exception, match="context"):
        run_loop(server)
    assert server.rejected


def test_the_loop_is_completed_and_the_compactor_keeps_all_messages() -> None:
    plans: list[Any] = []
    compactor = BrimCompactor([TOOL], window=WINDOW, reply=500, on_plan=plans.append)
    with serve() as server:
        result = run_loop(server, make_hook(compactor))
    check(server, plans)
    assert result["last_message"].text == DONE
    assert len(compactor.history) == 2 * CALLS + 2
    outputs = [m.tool_call_results[0].result for m in compactor.history if m.tool_call_results]
    assert outputs == [read_file(number) for number in range(1, CALLS + 1)]


def test_messages_keep_their_metadata() -> None:
    compactor = BrimCompactor(window=1_500, reply=10)
    messages = [ChatMessage.from_user(read_file(n), meta={"n": n}) for n in range(6)]
    kept = compactor.compact(messages)
    assert kept is not None
    assert len(kept) < 6
    assert all(message.meta for message in kept if not message.text.startswith("[brim"))
    assert compactor.compact(kept[-1:]) is None


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        run_page("haystack", server, monkeypatch)
    assert not server.rejected
