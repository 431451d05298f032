"""The loop with Haystack."""

import os
from typing import Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

from brim.integrations.adapter import AdapterSettings
from brim.integrations.haystack import BrimChatGenerator
from tests.support.frameworks import MODEL, QUESTION, REPLIES, SYSTEM, WINDOW, Outcome, read_file

__all__ = ["REPLIES", "WINDOW", "run_loop"]

TOOL = create_tool_from_function(read_file)
INPUT = [ChatMessage.from_user(QUESTION)]


def create_generator() -> OpenAIChatGenerator:
    key, url = Secret.from_env_var("OPENAI_API_KEY"), os.environ["OPENAI_BASE_URL"]
    return OpenAIChatGenerator(key, MODEL, api_base_url=url, max_retries=0)


def create_agent(fit: AdapterSettings | None) -> Agent:
    generator: Any = create_generator()
    if fit is not None:
        generator = BrimChatGenerator(generator, **fit)
    return Agent(chat_generator=generator, tools=[TOOL], system_prompt=SYSTEM, max_agent_steps=60)


def run_loop(fit: AdapterSettings | None = None) -> Outcome:
    return read_result(create_agent(fit).run(INPUT))


def read_result(result: dict[str, Any]) -> Outcome:
    results = [message.tool_call_results for message in result["messages"]]
    return Outcome(result["last_message"].text, [each[0].result for each in results if each])
