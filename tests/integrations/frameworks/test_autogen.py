"""AutoGen with the real framework."""

from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from brim.integrations.autogen import BrimContext
from tests.support.frameworks import CALLS, DONE, MODEL, QUESTION, WINDOW, check, read_file, serve
from tests.support.pages import run_page

pytestmark = pytest.mark.anyio
SYSTEM = "You are a careful reader of files. " * 10
TOOL = FunctionTool(read_file, description="Return the content of a file.")


async def run_loop(server: Any, context: BrimContext | None = None) -> Any:
    client = OpenAIChatCompletionClient(
        model=MODEL, base_url=server.url, api_key="key", max_retries=0
    )
    agent = AssistantAgent(
        "reader", client, tools=[TOOL], system_message=SYSTEM, model_context=context,
        max_tool_iterations=60,
    )  # fmt: skip
    try:
        return await agent.run(task=QUESTION)
    finally:
        await client.close()


async def test_without_brim_the_loop_fails() -> None:
    with serve() as server, pytest.raises(Exception, match="context"):
        await run_loop(server)
    assert server.rejected


async def test_the_loop_is_completed_and_the_context_keeps_all_messages() -> None:
    plans: list[Any] = []
    context = BrimContext(
        system=SYSTEM, tools=[TOOL], model=MODEL, window=WINDOW, reply=500, on_plan=plans.append
    )
    with serve() as server:
        result = await run_loop(server, context)
    check(server, plans)
    assert result.messages[-1].content == DONE
    state = await context.save_state()
    outputs = [
        m["content"][0]["content"] for m in state["messages"] if m["type"].startswith("Function")
    ]
    assert outputs == [read_file(number) for number in range(1, CALLS + 1)]


async def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from anyio import to_thread

    with serve() as server:
        await to_thread.run_sync(lambda: run_page("autogen", server, monkeypatch))
    assert not server.rejected
