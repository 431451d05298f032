"""smolagents with the real framework."""

from typing import Any

import pytest
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

from brim.integrations.smolagents import BrimModel
from brim.testing import ToolCallReply
from tests.support import frameworks
from tests.support.frameworks import CALLS, DONE, MODEL, QUESTION, WINDOW, serve
from tests.support.pages import run_page

ANSWER = ToolCallReply("final_answer", {"answer": DONE})


@tool
def read_file(number: int) -> str:
    """Return the content of a file.

    Args:
        number: The number of the file.
    """
    return frameworks.read_file(number)


def run_loop(server: Any, **settings: Any) -> tuple[Any, ToolCallingAgent]:
    model: Any = OpenAIServerModel(
        MODEL, api_base=server.url, api_key="key", client_kwargs={"max_retries": 0}
    )
    if settings:
        model = BrimModel(model, **settings)
    agent = ToolCallingAgent([read_file], model=model, max_steps=60, verbosity_level=0)
    return agent.run(QUESTION), agent


def test_without_brim_the_loop_fails() -> None:
    with serve(2 * WINDOW, ANSWER) as server, pytest.raises(Exception, match="context"):
        run_loop(server)
    assert server.rejected


def test_the_loop_is_completed_and_the_memory_keeps_all_steps() -> None:
    plans: list[Any] = []
    # Its system prompt alone takes more than half of the window of the other frameworks.
    with serve(2 * WINDOW, ANSWER) as server:
        answer, agent = run_loop(server, window=2 * WINDOW, reply=500, on_plan=plans.append)
    assert answer == DONE
    assert not server.rejected
    assert len(server.requests) == CALLS + 1 == len(plans)
    assert plans[-1].is_trimmed
    assert all(plan.size >= r.tokens - 40 for plan, r in zip(plans, server.requests, strict=True))
    outputs = [
        step.observations for step in agent.memory.steps if getattr(step, "observations", None)
    ]
    assert outputs[:CALLS] == [
        frameworks.read_file(number).strip() for number in range(1, CALLS + 1)
    ]


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(2 * WINDOW, ANSWER) as server:
        run_page("smolagents", server, monkeypatch)
    assert not server.rejected
