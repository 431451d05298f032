"""pydantic-ai with the real framework."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from brim.integrations.pydantic_ai import BrimCapability
from tests.support.frameworks import CALLS, DONE, MODEL, QUESTION, WINDOW, check, read_file, serve
from tests.support.pages import run_page

pytestmark = pytest.mark.anyio
SYSTEM = "You are a careful reader of files. " * 10
LIMITS = UsageLimits(request_limit=100)


@asynccontextmanager
async def open_agent(**options: Any) -> AsyncIterator[Agent[Any, str]]:
    async with AsyncOpenAI(max_retries=0) as client:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
        yield Agent(model, instructions=SYSTEM, tools=[read_file], **options)


async def test_without_brim_the_loop_fails() -> None:
    with serve() as server, pytest.raises(Exception, match="context"):
        async with open_agent() as agent:
            await agent.run(QUESTION, usage_limits=LIMITS)
    assert server.rejected


async def test_the_loop_is_completed_and_the_history_keeps_all_messages() -> None:
    plans: list[Any] = []
    capability = BrimCapability(window=WINDOW, reply=500, on_plan=plans.append)
    with serve() as server:
        async with open_agent(capabilities=[capability]) as agent:
            result = await agent.run(QUESTION, usage_limits=LIMITS)
    check(server, plans)
    assert result.output == DONE
    messages = result.all_messages()
    assert len(messages) == 2 * CALLS + 2
    returns = [
        part.content
        for message in messages
        for part in message.parts
        if part.part_kind == "tool-return"
    ]
    assert returns == [read_file(number) for number in range(1, CALLS + 1)]


async def test_kept_messages_are_the_same_objects() -> None:
    seen: list[Any] = []

    class Watch(BrimCapability):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            before = list(request_context.messages)
            fitted = await super().before_model_request(ctx, request_context)
            seen.append((before, fitted.messages))
            return fitted

    with serve():
        async with open_agent(capabilities=[Watch(window=WINDOW, reply=500)]) as agent:
            await agent.run(QUESTION, usage_limits=LIMITS)
    before, sent = seen[-1]
    known = {id(message) for message in before}
    assert sum(id(message) in known for message in sent) > 2


async def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from anyio import to_thread

    with serve() as server:
        await to_thread.run_sync(lambda: run_page("pydantic_ai", server, monkeypatch))
    assert not server.rejected
