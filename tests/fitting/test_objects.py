"""Objects of SDKs as messages: they are read like their JSON, and come back as they were given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import anthropic.types as claude
import openai.types.chat as chat
import openai.types.responses as responses
import pandas
import pydantic
import pytest

import brim

MODEL = "gpt-4o"
LONG = "many different words about files and tests " * 40


class PydanticMessage(pydantic.BaseModel):
    role: str = "user"
    content: str | None = None
    tool_call_id: str | None = None


@dataclass(frozen=True)
class DataMessage:
    role: str
    content: str
    name: str | None = None
    seen: list[int] = field(default_factory=list)


def assistant(number: int) -> chat.ChatCompletionMessage:
    return chat.ChatCompletionMessage.model_validate(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"call_{number}",
                    "type": "function",
                    "function": {"name": "read", "arguments": f'{{"n": {number}}}'},
                }
            ],
        }
    )


def result(number: int, text: str = LONG) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def steps(count: int) -> list[Any]:
    """Return a conversation of OpenAI's objects and dicts."""
    messages: list[Any] = [{"role": "user", "content": "Read the files."}]
    for number in range(count):
        messages += [assistant(number), result(number)]
    return messages


def test_objects_count_like_their_json_without_null_fields() -> None:
    message = assistant(1)
    as_json = message.model_dump(exclude_none=True)
    assert brim.count([message], model=MODEL) == brim.count([as_json], model=MODEL)
    data = DataMessage("user", "hello")
    assert brim.count([data], model=MODEL) == brim.count(
        [{"role": "user", "content": "hello"}], model=MODEL
    )


def test_a_conversation_that_fits_is_returned_as_the_same_objects() -> None:
    messages = [*steps(2), PydanticMessage(content="thanks"), DataMessage("user", "bye")]
    request = brim.fit(messages, model=MODEL)
    assert all(sent is given for sent, given in zip(request.messages, messages, strict=True))
    assert not any(changed for _, _, changed in request.outgoing)


def test_a_trimmed_conversation_keeps_the_objects_of_unchanged_messages() -> None:
    messages = steps(30)
    request = brim.fit(messages, model=MODEL, window=4_096)
    assert request.plan.is_trimmed
    kept = [out for out in request.outgoing if out.origin is not None and not out.changed]
    assert any(isinstance(out.message, chat.ChatCompletionMessage) for out in kept)
    for origin, message, _ in kept:
        assert origin is not None
        assert message is messages[origin]


def test_outgoing_maps_each_message_to_its_input() -> None:
    messages = steps(30)
    request = brim.fit(messages, model=MODEL, window=4_096)
    outgoing = list(request.outgoing)
    assert [out.message for out in outgoing] == request.messages
    sent = {decision.index for decision in request.plan.decisions if decision.outcome != "dropped"}
    assert {out.origin for out in outgoing} - {None} == sent
    changed = {out.origin for out in outgoing if out.changed} - {None}
    notes = {note.at for note in request.plan.notes if note.role == "paragraph"}
    assert changed == {*request.plan.changes} | notes


def test_the_same_trim_is_decided_for_objects_and_for_their_json() -> None:
    messages = steps(30)
    plain = [m if isinstance(m, dict) else m.model_dump(exclude_none=True) for m in messages]
    assert (
        brim.fit(messages, model=MODEL, window=4_096).plan
        == brim.fit(plain, model=MODEL, window=4_096).plan
    )


@dataclass(frozen=True)
class DataResult:
    content: str
    tool_call_id: str
    role: str = "tool"


@pytest.mark.parametrize("make", [PydanticMessage, DataResult])
def test_a_changed_message_has_the_same_type(make: Callable[..., Any]) -> None:
    messages = [
        {"role": "user", "content": "Read."},
        assistant(0),
        make(role="tool", tool_call_id="call_0", content=LONG * 10),
        {"role": "user", "content": "And now?"},
    ]
    request = brim.fit(messages, model=MODEL, window=900, reply=10)
    (changed,) = [out for out in request.outgoing if out.changed]
    assert type(changed.message) is make
    assert changed.message.tool_call_id == "call_0"
    assert len(changed.message.content) < len(LONG * 10)
    assert messages[2].content == LONG * 10


def test_objects_that_cannot_be_rebuilt_become_dicts() -> None:
    class Strict(PydanticMessage):
        @pydantic.field_validator("content")
        @classmethod
        def check(cls, content: str) -> str:
            assert "[brim" not in content
            return content

    messages = [
        {"role": "user", "content": "Read."},
        assistant(0),
        Strict(role="tool", tool_call_id="call_0", content=LONG * 10),
        {"role": "user", "content": "And now?"},
    ]
    request = brim.fit(messages, model=MODEL, window=900, reply=10)
    (changed,) = [out.message for out in request.outgoing if out.changed]
    assert isinstance(changed, dict)


def test_anthropic_messages_and_blocks_are_returned_as_they_were() -> None:
    blocks = [
        claude.TextBlock(type="text", text="I read it."),
        claude.ToolUseBlock(type="tool_use", id="t1", name="read", input={"path": None}),
    ]
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "messages": [
            {"role": "user", "content": "Read it."},
            {"role": "assistant", "content": blocks},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": LONG * 20}],
            },
            {"role": "user", "content": "Thanks. And now?"},
        ],
    }
    whole = brim.fit(body)
    assert whole.messages[1] is body["messages"][1]  # type: ignore[index]
    trimmed = brim.fit(body, window=900, reply=10)
    assert trimmed.plan.is_trimmed
    assert trimmed.plan.outcome_counts() == {"clipped": 1}
    assert trimmed.messages[1]["content"] is blocks


def test_items_of_responses_are_returned_as_they_were() -> None:
    call = responses.ResponseFunctionToolCall(
        type="function_call", call_id="c1", name="read", arguments="{}"
    )
    body = {
        "model": MODEL,
        "input": [
            {"role": "user", "content": "Read it."},
            call,
            {"type": "function_call_output", "call_id": "c1", "output": LONG * 20},
            {"role": "user", "content": "And now?"},
        ],
    }
    request = brim.fit(body, window=900, reply=10)
    assert request.plan.is_trimmed
    assert next(islice(request.outgoing, 1, None)).message is call
    assert [out.origin for out in request.outgoing] == [0, 1, 2, 3]
    items: list[object] = [call]
    assert brim.fit({"model": MODEL, "input": iter(items)})["input"] == items


def test_a_list_with_items_of_responses_is_an_input() -> None:
    call = responses.ResponseFunctionToolCall(
        type="function_call", call_id="c1", name="read", arguments="{}"
    )
    output = {"type": "function_call_output", "call_id": "c1", "output": "text"}
    for item in (call, call.model_dump(exclude_none=True)):
        items = [{"role": "user", "content": "Read it."}, item, output]
        assert brim.fit(items, model=MODEL)["input"][1] is item
        assert brim.count(items, model=MODEL) == brim.count({"input": items, "model": MODEL})


def test_a_note_has_no_origin_in_any_format() -> None:
    def exchange(number: int) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": f"question {number} {LONG}"},
            {"role": "assistant", "content": f"answer {number} {LONG}"},
        ]

    messages = [message for number in range(20) for message in exchange(number)]
    bodies: list[Any] = [
        {"messages": messages, "model": MODEL},
        {"messages": messages, "model": "claude-sonnet-4-5", "max_tokens": 5, "system": "Be brief"},
        {"input": messages, "model": MODEL},
    ]
    for body in bodies:
        request = brim.fit(body, window=4_000, reply=10)
        outgoing = list(request.outgoing)
        assert len(outgoing) == len(request.messages)
        for origin, message, changed in outgoing:
            assert changed == (origin is None or message is not messages[origin])
        with_note = [out for out in outgoing if out.changed]
        assert all("[brim:" in str(out.message["content"]) for out in with_note)
        assert with_note


def test_a_template_keeps_the_origins_of_unchanged_messages() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *steps(1)]
    request = brim.fit(messages, window=4_096, template="strict")
    assert [out.origin for out in request.outgoing if not out.changed] == [
        index
        for index, message in enumerate(messages)
        if any(message is sent for sent in request.messages)
    ]


def test_iterables_are_read_once() -> None:
    def generate() -> Iterator[object]:
        yield {"role": "user", "content": "hello"}
        yield PydanticMessage(content="world")

    assert brim.fit(generate(), window=100).messages == list(generate())
    assert brim.count(generate(), model=MODEL) == brim.count(list(generate()), model=MODEL)


@pytest.mark.parametrize("create", [pandas.Series, lambda rows: pandas.Series(rows).to_numpy()])
def test_messages_in_arrays_are_returned_as_the_same_objects(create: Callable[..., Any]) -> None:
    messages = [*steps(2), PydanticMessage(content="thanks"), DataMessage("user", "bye")]
    request = brim.fit(create(messages), model=MODEL)
    assert all(sent is given for sent, given in zip(request.messages, messages, strict=True))


def test_tools_may_be_objects() -> None:
    class Tool(pydantic.BaseModel):
        type: str = "function"
        function: dict[str, object]

    tools = [Tool(function={"name": "read", "parameters": {}})]
    request = brim.fit([{"role": "user", "content": "hello"}], window=1_000, tools=tools)
    assert request["tools"] is tools
    plain = [tool.model_dump() for tool in tools]
    assert (
        request.plan
        == brim.fit([{"role": "user", "content": "hello"}], window=1_000, tools=plain).plan
    )


def test_a_session_appends_objects_as_their_json() -> None:
    session = brim.Session(MODEL)
    session.append(PydanticMessage(content="Read it."))
    session.append(assistant(1))
    session.append(DataResult("text", "call_1"))
    assert session.history[0] == {"role": "user", "content": "Read it."}
    assert session.history[1] == assistant(1).model_dump(exclude_none=True)
    assert session.history[2] == {"role": "tool", "tool_call_id": "call_1", "content": "text"}


def test_outgoing_maps_a_request_of_a_session_to_its_turns() -> None:
    session = brim.Session(MODEL, system="Be brief.", window=4_096)
    for message in steps(30):
        session.append(message)
    request = session.request()
    assert request.plan.is_trimmed
    for origin, message, changed in request.outgoing:
        assert changed == (origin is None or message != session.history[origin])
    assert next(request.outgoing).origin is None  # the system prompt
    converted = brim.Session("claude-sonnet-4-5", format="anthropic")
    converted.user("hello")
    with pytest.raises(brim.InputError, match="another format"):
        list(converted.request().outgoing)


class FakeResponse:
    choices = ()


class ResponseObject:
    object = "response"


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (FakeResponse(), "choices"),
        (ResponseObject(), "response.output"),
        (None, "Remove it"),
        ("hello", '"role": "user"'),
        ([], "extend"),
        (object(), "pydantic model"),
    ],
)
def test_the_error_says_what_to_pass_instead(given: object, advice: str) -> None:
    with pytest.raises(brim.MessageError, match=advice) as caught:
        brim.fit([{"role": "user", "content": "hello"}, given], window=100)
    assert caught.value.index == 1
