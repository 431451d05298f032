"""The loop with LangChain."""

from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from brim.integrations.adapter import AdapterSettings
from brim.integrations.langchain import BrimMiddleware
from tests.support.frameworks import MODEL, QUESTION, REPLIES, SYSTEM, WINDOW, Outcome, read_file

__all__ = ["REPLIES", "WINDOW", "run_loop"]

INPUT = {"messages": QUESTION}, {"recursion_limit": 200}


def create(*middleware: BrimMiddleware) -> Any:
    """Return an agent."""
    model = ChatOpenAI(model=MODEL, max_retries=0)
    return create_agent(model, [tool(read_file)], system_prompt=SYSTEM, middleware=middleware)


def run_loop(fit: AdapterSettings | None = None) -> Outcome:
    agent = create() if fit is None else create(BrimMiddleware(**fit))
    return read_state(agent.invoke(*INPUT))


def read_state(state: Any) -> Outcome:
    messages = state["messages"]
    return Outcome(messages[-1].content, [each.content for each in messages if each.type == "tool"])
