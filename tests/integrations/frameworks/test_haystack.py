"""Haystack with the real framework."""

import asyncio

import pytest
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.core.serialization import (
    allow_deserialization_module,
    component_from_dict,
    component_to_dict,
)
from haystack.dataclasses import ChatMessage

from brim.integrations.haystack import BrimChatGenerator
from tests.support.frameworks import (
    DONE,
    FILES,
    MODEL,
    WINDOW,
    check_failure,
    check_loop,
    haystack,
    read_file,
    serve,
)
from tests.support.pages import run_page


def test_without_brim_the_loop_fails() -> None:
    check_failure(haystack)


def test_the_loop_is_completed_and_the_history_is_whole() -> None:
    check_loop(haystack)


def test_an_async_run_is_completed() -> None:
    with serve() as server:
        agent = haystack.create_agent({"window": WINDOW, "reply": 500})
        result = asyncio.run(agent.run_async(haystack.INPUT))
    assert not server.rejected
    assert haystack.read_result(result) == (DONE, FILES)


def test_messages_keep_their_metadata() -> None:
    generator = BrimChatGenerator(object(), model=MODEL, window=1_500, reply=10)
    messages = [ChatMessage.from_user(read_file(n), meta={"n": n}) for n in range(6)]
    kept = generator.fit(messages)
    assert len(kept) < 6
    assert all(message.meta for message in kept if not message.text.startswith("[brim"))
    assert kept[-1] is messages[-1]


def test_a_generator_is_serialized_with_its_settings() -> None:
    with serve():
        generator = BrimChatGenerator(haystack.create_generator(), window=WINDOW, reply=500)
        allow_deserialization_module("brim.integrations.haystack")
        restored = component_from_dict(BrimChatGenerator, component_to_dict(generator, "x"), "x")
        assert isinstance(restored.inner, OpenAIChatGenerator)
        reply = restored.run([ChatMessage.from_user("Hi.")])["replies"][0]
    assert reply.tool_calls


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        run_page("haystack", server, monkeypatch)
    assert not server.rejected
