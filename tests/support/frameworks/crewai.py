"""The loop with CrewAI, whose hooks are global."""

import os
from typing import Any

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
os.environ["CREWAI_TRACING_ENABLED"] = "false"

from crewai import LLM, Agent, Crew, Task
from crewai.hooks import register_after_llm_call_hook, unregister_after_llm_call_hook
from crewai.tools import tool

from brim.integrations.adapter import AdapterSettings
from brim.integrations.crewai import BrimHook
from tests.support import frameworks
from tests.support.frameworks import MODEL, QUESTION, REPLIES, WINDOW, Outcome

__all__ = ["REPLIES", "WINDOW", "run_loop"]


@tool("read_file")
def read_file(number: int) -> str:
    """Return the content of a file."""
    return frameworks.read_file(number)


def run_loop(fit: AdapterSettings | None = None) -> Outcome:
    lists: list[list[Any]] = []

    def watch(context: Any) -> None:
        lists.append(context.messages)

    hook = None if fit is None else BrimHook(**fit)
    if hook is not None:
        hook.register()
    register_after_llm_call_hook(watch)
    try:
        answer = str(_create_crew().kickoff())
    finally:
        unregister_after_llm_call_hook(watch)
        if hook is not None:
            hook.unregister()
    return Outcome(answer, [each["content"] for each in lists[-1] if each["role"] == "tool"])


def _create_crew() -> Crew:
    llm = LLM(
        model=f"openai/{MODEL}", base_url=os.environ["OPENAI_BASE_URL"], api_key="key",
        max_retries=0,
    )  # fmt: skip
    agent = Agent(
        role="reader", goal="read files", backstory="careful", llm=llm, tools=[read_file],
        max_iter=60, respect_context_window=False, max_retry_limit=0,
    )  # fmt: skip
    task = Task(description=QUESTION, expected_output="a sentence", agent=agent)
    return Crew(agents=[agent], tasks=[task], tracing=False)
