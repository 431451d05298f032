"""pydantic-ai with the real framework."""

import asyncio
from typing import Any

import pytest

from brim.integrations.pydantic_ai import BrimCapability
from tests.support.frameworks import (
    WINDOW,
    check_failure,
    check_loop,
    check_recall,
    pydantic_ai,
    serve,
)
from tests.support.pages import run_page


def test_without_brim_the_loop_fails() -> None:
    check_failure(pydantic_ai)


def test_the_loop_is_completed_and_the_history_is_whole() -> None:
    check_loop(pydantic_ai)


def test_kept_messages_are_the_same_objects() -> None:
    seen: list[Any] = []

    class Watch(BrimCapability):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            before = list(request_context.messages)
            fitted = await super().before_model_request(ctx, request_context)
            seen.append((before, fitted.messages))
            return fitted

    with serve():
        asyncio.run(pydantic_ai.run_agent(Watch(window=WINDOW, reply=500)))
    before, sent = seen[-1]
    known = {id(message) for message in before}
    assert sum(id(message) in known for message in sent) > 2


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        run_page("pydantic_ai", server, monkeypatch)
    assert not server.rejected


def test_the_model_recalls_what_was_trimmed() -> None:
    check_recall(pydantic_ai)
