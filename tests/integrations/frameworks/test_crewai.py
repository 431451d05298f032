"""CrewAI with the real framework."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
os.environ["CREWAI_TRACING_ENABLED"] = "false"

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from brim.integrations.crewai import BrimHook
from tests.support import frameworks
from tests.support.frameworks import CALLS, DONE, MODEL, QUESTION, WINDOW, check, serve
from tests.support.pages import run_page

LISTS: list[Any] = []


@tool("read_file")
def read_file(number: int) -> str:
    """Return the content of a file."""
    return frameworks.read_file(number)


def run_loop(server: Any) -> Any:
    llm = LLM(model=f"openai/{MODEL}", base_url=server.url, api_key="key", max_retries=0)
    agent = Agent(
        role="reader", goal="read files", backstory="careful", llm=llm, tools=[read_file],
        max_iter=60, respect_context_window=False, max_retry_limit=0,
    )  # fmt: skip
    task = Task(description=QUESTION, expected_output="a sentence", agent=agent)
    return Crew(agents=[agent], tasks=[task], tracing=False).kickoff()


@pytest.fixture
def plans() -> Iterator[list[Any]]:
    plans: list[Any] = []

    class Watch(BrimHook):
        def before(self, context: Any) -> None:
            LISTS.append(context.messages)
            super().before(context)

    hook = Watch(window=WINDOW, reply=500, on_plan=plans.append)
    hook.register()
    yield plans
    hook.unregister()


def test_without_brim_the_loop_fails() -> None:
    with serve() as server, pytest.raises(BaseException, match=r"(?i)context"):
        run_loop(server)
    assert server.rejected


def test_the_loop_is_completed_and_the_messages_are_whole_at_the_end(plans: list[Any]) -> None:
    with serve() as server:
        result = run_loop(server)
    check(server, plans)
    assert DONE in str(result)
    outputs = [m["content"] for m in LISTS[-1] if m["role"] == "tool"]
    assert outputs == [frameworks.read_file(number) for number in range(1, CALLS + 1)]


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        names: Any = run_page("crewai", server, monkeypatch)
        names["hook"].unregister()
    assert not server.rejected
