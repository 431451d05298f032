"""LangChain with the real framework."""

import asyncio
from typing import Any

import pytest

from brim.integrations.langchain import BrimMiddleware
from tests.support.frameworks import (
    CALLS,
    DONE,
    FILES,
    REPLIES,
    SYSTEM,
    WINDOW,
    check_failure,
    check_loop,
    check_recall,
    langchain,
    serve,
)
from tests.support.pages import run_page


def test_without_brim_the_loop_fails() -> None:
    check_failure(langchain)


def test_the_loop_is_completed_and_the_history_is_whole() -> None:
    check_loop(langchain)


def test_the_async_loop_is_completed() -> None:
    with serve() as server:
        agent = langchain.create(BrimMiddleware(window=WINDOW, reply=500))
        state = asyncio.run(agent.ainvoke(*langchain.INPUT))
    assert not server.rejected
    assert langchain.read_state(state) == (DONE, FILES)


def test_messages_keep_their_identity() -> None:
    seen: list[Any] = []

    class Watch(BrimMiddleware):
        def fit(self, request: Any) -> Any:
            fitted = super().fit(request)
            seen.append((request, fitted))
            return fitted

    with serve():
        langchain.create(Watch(window=WINDOW, reply=500)).invoke(*langchain.INPUT)
    request, fitted = seen[-1]
    ids = {message.id: message for message in request.messages}
    kept = [message for message in fitted.messages if ids.get(message.id) is message]
    assert len(kept) > 2
    assert all(message.id in ids for message in fitted.messages if message.type == "tool")
    assert fitted.system_message.content.startswith(SYSTEM.strip())


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(replies=[*REPLIES, *REPLIES]) as server:
        names: Any = run_page("langchain", server, monkeypatch)
    assert not server.rejected
    sent = [request.tokens for request in server.requests[len(REPLIES) :]]
    assert len(sent) == len(REPLIES)
    assert max(sent) <= WINDOW - 500, "the margin of LangGraph's hook is too small"
    assert len(names["state"]["messages"]) == 2 * CALLS + 2


def test_the_model_recalls_what_was_trimmed() -> None:
    check_recall(langchain)
