"""The OpenAI Agents SDK with the real framework."""

from typing import Any

import pytest
from agents import SQLiteSession

from brim.integrations.openai_agents import BrimSession
from tests.support.frameworks import (
    MODEL,
    WINDOW,
    check_failure,
    check_loop,
    check_recall,
    openai_agents,
    read_file,
    serve,
)
from tests.support.pages import run_page


def test_without_brim_the_loop_fails() -> None:
    check_failure(openai_agents)


def test_the_loop_is_completed_and_the_history_is_whole() -> None:
    check_loop(openai_agents)


def test_the_loop_is_completed_with_the_responses_api() -> None:
    check_loop(openai_agents.RESPONSES)


@pytest.mark.anyio
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


def test_the_model_recalls_what_was_trimmed() -> None:
    check_recall(openai_agents)
