"""LangChain with the real framework."""

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from brim.integrations.langchain import BrimMiddleware
from tests.support.frameworks import CALLS, DONE, MODEL, QUESTION, check, read_file, serve
from tests.support.pages import run_page

SYSTEM = "You are a careful reader of files. " * 10
LIMIT = {"recursion_limit": 200}


def make_agent(**options: Any) -> Any:
    model = ChatOpenAI(model=MODEL, max_retries=0)
    return create_agent(model, [tool(read_file)], system_prompt=SYSTEM, **options)


def test_without_brim_the_loop_fails() -> None:
    with serve() as server, pytest.raises(Exception, match="context"):
        make_agent().invoke({"messages": QUESTION}, LIMIT)
    assert server.rejected


def test_the_loop_is_completed_and_the_state_keeps_all_messages() -> None:
    plans: list[Any] = []
    middleware = BrimMiddleware(window=4_096, reply=500, on_plan=plans.append)
    with serve() as server:
        state = make_agent(middleware=[middleware]).invoke({"messages": QUESTION}, LIMIT)
    check(server, plans)
    messages = state["messages"]
    assert len(messages) == 2 * CALLS + 2
    assert messages[-1].content == DONE
    assert messages[2].content == read_file(1)


@pytest.mark.anyio
async def test_the_async_loop_is_completed() -> None:
    plans: list[Any] = []
    middleware = BrimMiddleware(window=4_096, reply=500, on_plan=plans.append)
    with serve() as server:
        state = await make_agent(middleware=[middleware]).ainvoke({"messages": QUESTION}, LIMIT)
    check(server, plans)
    assert state["messages"][-1].content == DONE


def test_messages_keep_their_identity() -> None:
    seen: list[Any] = []

    class Watch(BrimMiddleware):
        def fit(self, request: Any) -> Any:
            fitted = super().fit(request)
            seen.append((request, fitted))
            return fitted

    with serve():
        make_agent(middleware=[Watch(window=4_096, reply=500)]).invoke(
            {"messages": QUESTION}, LIMIT
        )
    request, fitted = seen[-1]
    ids = {message.id: message for message in request.messages}
    kept = [message for message in fitted.messages if ids.get(message.id) is message]
    assert len(kept) > 2
    assert all(message.id in ids for message in fitted.messages if message.type == "tool")
    assert fitted.system_message.content.startswith(SYSTEM.strip())


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        run_page("langchain", server, monkeypatch)
    assert not server.rejected
