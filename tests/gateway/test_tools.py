"""Agents call tools through the gateway, with histories that must be trimmed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

from brim.testing import ReceivedRequest, ScriptedReply, ScriptedServer, ToolCallReply
from brim.wire.formats import FORMATS_BY_PATH, read_messages
from tests.support.gateway.clients import (
    Chain,
    Modelling,
    anthropic_client,
    langchain_anthropic,
    langchain_openai,
    langchain_responses,
    openai_client,
    pydantic_anthropic,
    pydantic_chat,
    pydantic_responses,
)
from tests.support.gateway.process import config_of, run_gateway
from tests.support.gateway.requests import CHAT, MESSAGES
from tests.support.histories import pairs_are_whole
from tests.support.wire.bodies import find_anthropic_violations, find_responses_violations

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

WINDOW = 2_000
STEPS = 40
LAST = "What is the last one?"
SAID = "It is the last one."

Agency = Callable[[str, bool], str]
"""Runs an agent at an address, streamed or not, to its final reply."""


def make_result(number: int) -> str:
    return f"Number {number}: " + "a line of what stands there. " * 20


def look_up(number: int) -> str:
    """Look up a fact about a number."""
    assert number == STEPS
    return make_result(number)


SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
}
ABOUT: Mapping[str, Any] = {"name": "look_up", "description": "Look up a fact about a number."}
PAST: Sequence[tuple[int, str, str]] = [
    (n, f"call_{n:04}", json.dumps({"number": n})) for n in range(STEPS)
]


# OpenAI and Anthropic


def past_of_chat() -> list[Any]:
    messages: list[Any] = []
    for n, name, given in PAST:
        call = {"id": name, "type": "function", "function": {"name": "look_up", "arguments": given}}
        messages += [
            {"role": "user", "content": f"What is {n}?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": name, "content": make_result(n)},
            {"role": "assistant", "content": f"It is {n}."},
        ]
    return [*messages, {"role": "user", "content": LAST}]


def chat(address: str, is_streamed: bool) -> str:
    messages = past_of_chat()
    with openai_client(address) as client:
        while True:
            tools: Any = [{"type": "function", "function": {**ABOUT, "parameters": SCHEMA}}]
            body: Any = {"model": "m", "messages": messages, "tools": tools}
            if is_streamed:
                with client.chat.completions.stream(**body) as stream:
                    message: Any = stream.get_final_completion().choices[0].message
            else:
                message = client.chat.completions.create(**body).choices[0].message
            if not message.tool_calls:
                return str(message.content)
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            for called in message.tool_calls:
                result = look_up(**json.loads(called.function.arguments))
                messages.append({"role": "tool", "tool_call_id": called.id, "content": result})


def past_of_responses() -> list[Any]:
    items: list[Any] = []
    for n, name, given in PAST:
        items += [
            {"role": "user", "content": f"What is {n}?"},
            {"type": "function_call", "call_id": name, "name": "look_up", "arguments": given},
            {"type": "function_call_output", "call_id": name, "output": make_result(n)},
            {"role": "assistant", "content": f"It is {n}."},
        ]
    return [*items, {"role": "user", "content": LAST}]


def responses(address: str, is_streamed: bool) -> str:
    items = past_of_responses()
    with openai_client(address) as client:
        while True:
            tools: Any = [{"type": "function", **ABOUT, "parameters": SCHEMA, "strict": False}]
            body: Any = {"model": "m", "input": items, "tools": tools}
            if is_streamed:
                with client.responses.stream(**body) as stream:
                    response: Any = stream.get_final_response()
            else:
                response = client.responses.create(**body)
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return str(response.output_text)
            items += [item.model_dump(exclude={"parsed_arguments"}) for item in response.output]
            for call in calls:
                result = look_up(**json.loads(call.arguments))
                output = {"call_id": call.call_id, "output": result}
                items.append({"type": "function_call_output", **output})


def past_of_messages() -> list[Any]:
    messages: list[Any] = []
    for n, name, given in PAST:
        call = {"type": "tool_use", "id": name, "name": "look_up", "input": json.loads(given)}
        result = {"type": "tool_result", "tool_use_id": name, "content": make_result(n)}
        messages += [
            {"role": "user", "content": f"What is {n}?"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": f"It is {n}."},
        ]
    return [*messages, {"role": "user", "content": LAST}]


def messages(address: str, is_streamed: bool) -> str:
    turns = past_of_messages()
    with anthropic_client(address) as client:
        while True:
            tools: Any = [{**ABOUT, "input_schema": SCHEMA}]
            body: Any = {"model": "m", "messages": turns, "tools": tools, "max_tokens": 100}
            if is_streamed:
                with client.messages.stream(**body) as stream:
                    message: Any = stream.get_final_message()
            else:
                message = client.messages.create(**body)
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in message.content)
            turns.append({"role": "assistant", "content": message.content})
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": look_up(**call.input)}
                for call in calls
            ]
            turns.append({"role": "user", "content": results})


def thread(address: str, is_streamed: bool) -> str:
    """Anthropic's tool runner (beta): the server stores the thread after the first request."""
    runs: Any = anthropic.beta_tool(look_up)
    with anthropic_client(address) as client:
        runner: Any = client.beta.messages.tool_runner(
            model="m",
            max_tokens=100,
            tools=[runs],
            messages=past_of_messages(),
            stream=is_streamed,
        )
        if not is_streamed:
            message = runner.until_done()
        for stream in runner if is_streamed else ():
            message = stream.get_final_message()
        return "".join(block.text for block in message.content)


# LangChain


def past_of_langchain() -> list[Any]:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    turns: list[Any] = []
    for n, name, given in PAST:
        call = {"id": name, "name": "look_up", "args": json.loads(given)}
        turns += [
            HumanMessage(f"What is {n}?"),
            AIMessage("", tool_calls=[call]),
            ToolMessage(make_result(n), tool_call_id=name),
            AIMessage(f"It is {n}."),
        ]
    return [*turns, HumanMessage(LAST)]


def langchain(chain: Chain) -> Agency:
    def go(address: str, is_streamed: bool) -> str:
        from langchain_core.tools import tool

        turns = past_of_langchain()
        runs = tool(look_up)
        model = chain(address, "m").bind_tools([runs])
        while True:
            reply = reduce(add, model.stream(turns)) if is_streamed else model.invoke(turns)
            if not reply.tool_calls:
                return str(reply.text)
            turns.append(reply)
            turns += [runs.invoke(call) for call in reply.tool_calls]

    return go


# pydantic-ai


def past_of_pydantic() -> list[ModelMessage]:
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    past: list[ModelMessage] = []
    for n, name, given in PAST:
        past += [
            ModelRequest([UserPromptPart(f"What is {n}?")]),
            ModelResponse([ToolCallPart("look_up", given, name)]),
            ModelRequest([ToolReturnPart("look_up", make_result(n), name)]),
            ModelResponse([TextPart(f"It is {n}.")]),
        ]
    return past


def pydantic(modelling: Modelling) -> Agency:
    async def go(address: str, is_streamed: bool) -> str:
        from pydantic_ai import Agent

        past = past_of_pydantic()
        async with modelling(address, "m") as model:
            agent = Agent(model, tools=[look_up])
            if not is_streamed:
                return (await agent.run(LAST, message_history=past)).output
            async with agent.run_stream(LAST, message_history=past) as result:
                return await result.get_output()

    return lambda address, is_streamed: asyncio.run(go(address, is_streamed))


AGENTS: Mapping[str, Agency] = {
    "openai chat": chat,
    "openai responses": responses,
    "anthropic": messages,
    "langchain openai": langchain(langchain_openai),
    "langchain responses": langchain(langchain_responses),
    "langchain anthropic": langchain(langchain_anthropic),
    "pydantic-ai chat": pydantic(pydantic_chat),
    "pydantic-ai responses": pydantic(pydantic_responses),
    "pydantic-ai anthropic": pydantic(pydantic_anthropic),
}


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("go", AGENTS.values(), ids=AGENTS)
def test_agents_can_call_tools_through_the_gateway(go: Agency, is_streamed: bool) -> None:
    script: list[ScriptedReply] = [ToolCallReply("look_up", {"number": STEPS}), SAID]
    with (
        ScriptedServer(script, window=WINDOW) as upstream,
        run_gateway(config_of(upstream.url)) as gateway,
    ):
        assert go(gateway.url, is_streamed) == SAID
        first, second = upstream.requests
        assert not upstream.rejected
    for record in gateway.gateway.records.newest(10):
        assert record.trimmed["dropped"] > STEPS
        assert record.streamed is is_streamed
    known = {name: json.loads(given) for _, name, given in PAST}
    calls, _ = steps_in(first)
    assert calls
    assert all(known[name] == given for name, given in calls.items())
    answered, results = steps_in(second)
    (new,) = answered.keys() - known.keys()
    assert answered[new] == {"number": STEPS}
    assert results[new] == make_result(STEPS)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_a_stored_anthropic_thread_is_forwarded(is_streamed: bool) -> None:
    script: list[ScriptedReply] = [ToolCallReply("look_up", {"number": STEPS}), SAID]
    with (
        ScriptedServer(script, window=WINDOW) as upstream,
        run_gateway(config_of(upstream.url)) as gateway,
    ):
        assert thread(gateway.url, is_streamed) == SAID
        first, second = upstream.requests
    assert first.body["thread"] == {"type": "create"}
    assert second.body["thread"]["type"] == "continue"
    (result,) = second.body["messages"][0]["content"]
    assert result["content"] == make_result(STEPS)
    later, earlier = gateway.gateway.records.newest(10)
    assert earlier.trimmed["dropped"] > STEPS
    assert (later.count, later.trimmed) == ("unknown", {})


def steps_in(request: ReceivedRequest) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the calls and results that were sent, by id."""
    assert not faults_in(request)
    turns = read_messages(request.body, FORMATS_BY_PATH[request.path])
    calls = {call.id: json.loads(call.arguments) for turn in turns for call in turn.calls}
    results = {turn.answers: "".join(turn.outputs) for turn in turns if turn.answers}
    assert calls.keys() == results.keys()
    return calls, results


def faults_in(request: ReceivedRequest) -> list[str]:
    """Return why a provider would reject it."""
    if request.path == CHAT:
        return (
            [] if pairs_are_whole(list(request.body["messages"])) else ["a call or a result alone"]
        )
    return (find_anthropic_violations if request.path == MESSAGES else find_responses_violations)(
        request.body
    )
