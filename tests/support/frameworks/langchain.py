"""The loop with LangChain."""

from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from brim.integrations.adapter import AdapterSettings
from brim.integrations.langchain import BrimMiddleware
from tests.support.frameworks import MODEL, QUESTION, REPLIES, SYSTEM, WINDOW, Outcome, list_tools

__all__ = ["REPLIES", "WINDOW", "run_loop"]

INPUT = {"messages": QUESTION}, {"recursion_limit": 200}


def create(*middleware: BrimMiddleware, fit: AdapterSettings | None = None) -> Any:
    """Return an agent; `fit` tells which tools it has."""
    model = ChatOpenAI(model=MODEL, max_retries=0)
    return create_agent(
        model, [*map(tool, list_tools(fit))], system_prompt=SYSTEM, middleware=middleware
    )


def run_loop(fit: AdapterSettings | None = None) -> Outcome:
    agent = create() if fit is None else create(BrimMiddleware(**fit), fit=fit)
    return read_state(agent.invoke(*INPUT))


def read_state(state: Any) -> Outcome:
    messages = state["messages"]
    return Outcome(messages[-1].content, [each.content for each in messages if each.type == "tool"])
