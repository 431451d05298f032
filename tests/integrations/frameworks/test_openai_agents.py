"""The OpenAI Agents SDK with the real framework."""

from typing import Any

import pytest
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

from brim.integrations.openai_agents import BrimFilter, BrimSession
from tests.support.frameworks import CALLS, DONE, MODEL, QUESTION, WINDOW, check, read_file, serve
from tests.support.pages import run_page

pytestmark = pytest.mark.anyio
disable_tracing(True)
SYSTEM = "You are a careful reader of files. " * 10


def make_agent(client: AsyncOpenAI, api: str = "chat") -> Agent[Any]:
    kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
    model = kind(MODEL, openai_client=client)
    return Agent("reader", instructions=SYSTEM, tools=[function_tool(read_file)], model=model)


async def test_without_brim_the_loop_fails() -> None:
    with serve() as server, pytest.raises(Exception, match="context"):
        async with AsyncOpenAI(max_retries=0) as client:
            await Runner.run(make_agent(client), QUESTION, max_turns=60)
    assert server.rejected


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_the_loop_is_completed_and_the_session_keeps_all_items(api: str) -> None:
    plans: list[Any] = []
    fit = BrimFilter(window=WINDOW, reply=500, on_plan=plans.append)
    config = RunConfig(call_model_input_filter=fit)
    session = SQLiteSession("test")
    with serve() as server:
        async with AsyncOpenAI(max_retries=0) as client:
            agent = make_agent(client, api)
            result = await Runner.run(
                agent, QUESTION, run_config=config, session=session, max_turns=60
            )
    check(server, plans)
    assert result.final_output == DONE
    items: list[Any] = await session.get_items()
    outputs = [item["output"] for item in items if item.get("type") == "function_call_output"]
    assert outputs == [read_file(number) for number in range(1, CALLS + 1)]


async def test_a_session_stores_everything_and_returns_what_fits() -> None:
    inner = SQLiteSession("test")
    session = BrimSession(inner, model=MODEL, window=WINDOW, reply=500)
    items: Any = [{"role": "user", "content": read_file(number)} for number in range(60)]
    await session.add_items(items)
    returned: list[Any] = await session.get_items()
    assert len(returned) < 60
    assert returned[-1] == items[-1]
    assert await inner.get_items() == items
    assert await session.pop_item() == items[-1]
    await session.clear_session()
    assert not await session.get_items()


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        run_page("openai_agents", server, monkeypatch)
    assert not server.rejected
