"""`brim-recall: on`: the gateway answers the calls of the tool `recall` for the client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import types

from brim.testing import ErrorReply, Script, ScriptedServer, TextReply, ToolCallReply
from tests.support.gateway.accounts import PRICE, create_secret, ledger
from tests.support.gateway.process import Running, config_of, run_gateway

FACT = "My locker at the station in Lisbon has the number 4711."
ON = {"brim-recall": "on"}
RECALLED: Any = TextReply("Let me see. ", [ToolCallReply("recall", {"query": "locker number"})])
SCRIPT: list[Any] = [RECALLED, "It is 4711."]
KEY = "the-client-s-own"
TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}


def talk() -> list[tuple[str, str]]:
    """A fact in the middle of remarks: there `steady` drops it."""
    turns = []
    for number in range(40):
        text = FACT if number == 12 else f"Remark {number}: " + "nothing but words. " * 15
        turns += [("user", text), ("assistant", f"Reply {number}.")]
    return [*turns, ("user", "Which locker was it?")]


MESSAGES: list[Any] = [{"role": role, "content": text} for role, text in talk()]


@contextmanager
def gateway(script: Script = SCRIPT, **settings: Any) -> Iterator[tuple[Running, ScriptedServer]]:
    with ScriptedServer(script, window=2_000) as upstream:
        formats = ("openai", "anthropic", "responses", "gemini")
        given: Any = {"window": 2_000, "reply": 100, "format": formats, **settings}
        with run_gateway(config_of(upstream.url.removesuffix("/v1"), **given)) as running:
            yield running, upstream


def ask_chat(url: str, streams: bool, key: str = KEY, **more: Any) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, default_headers=ON) as client:
        given: Any = {"model": "gpt-4o", "messages": MESSAGES, **more}
        if streams:
            with client.chat.completions.stream(**given) as stream:
                reply = stream.get_final_completion()
        else:
            reply = client.chat.completions.create(**given)
    (choice,) = reply.choices
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    assert not choice.message.tool_calls
    return str(choice.message.content)


def ask_anthropic(url: str, streams: bool) -> str:
    with anthropic.Anthropic(base_url=url, api_key=KEY, default_headers=ON) as client:
        given: Any = {"model": "claude-sonnet-4", "messages": MESSAGES, "max_tokens": 100}
        if streams:
            with client.messages.stream(**given) as stream:
                reply = stream.get_final_message()
        else:
            reply = client.messages.create(**given)
    assert reply.stop_reason == "end_turn"
    return "".join(block.text for block in reply.content if block.type == "text")


def ask_responses(url: str, streams: bool) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, default_headers=ON) as client:
        given: Any = {"model": "gpt-4o", "input": MESSAGES}
        if streams:
            with client.responses.stream(**given) as stream:
                reply = stream.get_final_response()
        else:
            reply = client.responses.create(**given)
    assert {item.type for item in reply.output} == {"message"}
    return str(reply.output_text)


def ask_gemini(url: str, streams: bool) -> str:
    options = types.HttpOptions(base_url=url, headers=ON)
    contents: Any = [
        {"role": "model" if role == "assistant" else role, "parts": [{"text": text}]}
        for role, text in talk()
    ]
    given: Any = {"model": "gemini-2.5-flash", "contents": contents}
    with genai.Client(api_key=KEY, http_options=options) as client:
        if not streams:
            return str(client.models.generate_content(**given).text)
        chunks = list(client.models.generate_content_stream(**given))
    assert not any(chunk.function_calls for chunk in chunks)
    return "".join(chunk.text or "" for chunk in chunks)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("ask", [ask_chat, ask_anthropic, ask_responses, ask_gemini])
def test_the_client_gets_one_reply_without_the_calls(
    ask: Callable[[str, bool], str], streams: bool
) -> None:
    with gateway() as (running, upstream):
        assert ask(running.url, streams) == (
            "Let me see. It is 4711." if streams else "It is 4711."
        )
    first, second = upstream.requests
    assert FACT not in str(first.body)
    assert FACT in str(second.body)
    for request in upstream.requests:
        assert "recall" in str(request.body["tools"])
        assert "call recall to read them" in str(request.body)
        assert request.tokens <= 1_900
        assert "brim-recall" not in request.headers


def test_every_request_is_priced_and_recorded() -> None:
    secret = create_secret("anna", "100/day")
    with gateway(price=PRICE) as (running, upstream):
        ask_chat(running.url, streams=True, key=secret)
        records = httpx.get(f"{running.url}/brim/requests", headers=operator()).json()["data"]
    assert len(records) == len(upstream.requests) == len(ledger()) == 2
    assert [row.charge.usage.input for row in ledger()] == [
        each.tokens for each in upstream.requests
    ]


def operator() -> dict[str, str]:
    return {"authorization": f"Bearer {create_secret('operator', is_operator=True)}"}


@pytest.mark.parametrize("streams", [False, True])
def test_calls_of_other_tools_are_left_to_the_client(streams: bool) -> None:
    calls = [ToolCallReply("recall", {"query": "locker"}), ToolCallReply("run", {"a": 1})]
    body = {"model": "gpt-4o", "messages": MESSAGES, "tools": [TOOL], "stream": streams}
    with gateway(TextReply("", calls)) as (running, upstream):
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=ON)
    assert '"run"' in answer.text
    assert "recall" not in answer.text
    assert "tool_calls" in answer.text
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("streams", [False, True])
def test_a_model_that_only_recalls_is_stopped(streams: bool) -> None:
    body = {"model": "gpt-4o", "messages": MESSAGES, "stream": streams}
    with gateway(RECALLED) as (running, upstream):
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=ON)
    assert '"stop"' in answer.text
    assert "recall" not in answer.text
    assert len(upstream.requests) == 8


@pytest.mark.parametrize("streams", [False, True])
def test_an_error_of_a_later_request_reaches_the_client(streams: bool) -> None:
    body = {"model": "gpt-4o", "messages": MESSAGES, "stream": streams}
    with gateway([RECALLED, ErrorReply(400, "no more")]) as (running, _):
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=ON)
    assert "no more" in answer.text
    assert answer.status_code == (200 if streams else 400)


def test_without_the_header_nothing_is_added() -> None:
    body = {"model": "gpt-4o", "messages": MESSAGES}
    with gateway("Blue.") as (running, upstream):
        httpx.post(f"{running.url}/v1/chat/completions", json=body, headers={"brim-recall": "off"})
    assert "recall" not in str(upstream.requests[0].body)


def test_a_tool_of_the_same_name_is_rejected() -> None:
    own = {"type": "function", "function": {"name": "recall"}}
    body = {"model": "gpt-4o", "messages": MESSAGES, "tools": [own]}
    with gateway() as (running, upstream):
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=ON)
    assert answer.status_code == 400
    assert "name of brim's own" in answer.json()["error"]["message"]
    assert not upstream.requests
