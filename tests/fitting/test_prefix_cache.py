"""What is remembered of stateless callers changes nothing but time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import brim
from brim import wire
from brim.fitting.budget import Budget
from brim.fitting.fitter import Fitter
from brim.fitting.planner import Planner
from brim.fitting.policies import POLICIES
from brim.fitting.prefix_cache import PrefixCache
from brim.tokens import counter_for
from brim.wire import anthropic, openai_chat, openai_responses
from brim.wire.notes import gap_note
from tests.support.strategies import Raw, histories, policies, text
from tests.support.wire.bodies import anthropic_bodies, odd_bodies, responses_bodies

COUNTER = counter_for("gpt-4o")

chats = histories().map(lambda messages: {"messages": messages})
bodies = st.one_of(anthropic_bodies(), responses_bodies(), odd_bodies())
strides = st.lists(st.sampled_from((1, 1, 1, 2, 3, 5)), min_size=40, max_size=40)
shares = st.sampled_from((8, 15, 30, 50, 80, 100))
"""How many hundredths of the whole conversation the limit is."""


def form_of(body: Raw) -> wire.Format:
    if "input" in body:
        return openai_responses
    return anthropic if "anthropic_version" in body else openai_chat


def fitter(memory: PrefixCache, limit: int = 100_000, policy: str = "steady") -> Fitter:
    return Fitter(COUNTER, Budget(limit + 1, 1), POLICIES[policy], memory)


def fitted(body: Raw, fitter: Fitter) -> Any:
    """All that can be seen of a fit: what goes out and the plan, or the error."""
    try:
        request = fitter.fit(body, form_of(body))
    except brim.BrimError as error:
        return type(error), str(error)
    return dict(request), request.plan.to_dict()


def grown(body: Raw, strides: list[int]) -> list[Raw]:
    """A body as it was sent while it grew, each time in objects of its own."""
    key, ends, end = form_of(body).MESSAGES, [0], 0
    for stride in strides:
        end += stride
        ends.append(min(end, len(body[key])))
    return [copy.deepcopy({**body, key: body[key][:end]}) for end in dict.fromkeys(ends)]


def planner_of(body: Raw, memory: PrefixCache) -> Planner:
    """Who plans a body: where it is continued, the one that planned what it was before."""
    with fitter(memory).parse(body, form_of(body)) as reading:
        return reading.planner


@given(st.one_of(chats, bodies), strides, shares, policies)
def test_a_conversation_that_grows_is_fitted_as_if_it_were_new(
    body: Raw, strides: list[int], share: int, policy: str
) -> None:
    limit = int(brim.count(body, model="gpt-4o")) * share // 100
    remembering = fitter(PrefixCache(), limit, policy)
    for sent in grown(body, strides):
        assert fitted(sent, remembering) == fitted(sent, fitter(PrefixCache(), limit, policy))


def words(said: str) -> Raw:
    return {"role": "user", "content": said}


def block(kind: str, **fields: Any) -> Raw:
    return {"role": "assistant", "content": [{"type": kind, **fields}]}


def answer(name: str) -> Raw:
    result = {"type": "tool_result", "tool_use_id": name, "content": text(40, 1)}
    return {"role": "user", "content": [result]}


SERVED = block("server_tool_use", id="srv", name="code_execution", input={})
CALLED = block("tool_use", id="a", name="run", input={}, caller={"tool_id": "srv"})
ENDED = block("code_execution_tool_result", tool_use_id="srv", content={})
THOUGHT = {"type": "thinking", "thinking": text(90, 2), "signature": "x"}
THINKING: Raw = {"role": "assistant", "content": [THOUGHT, *CALLED["content"]]}
LATER_IN_MESSAGES = {
    "a server's tool ends": [words("go"), SERVED, CALLED, answer("a"), ENDED, words("so?")],
    "words come after results": [words("go"), THINKING, answer("a"), words("and?")],
}

PROGRAM = {"type": "program", "call_id": "p", "code": "f()"}
CALL: Raw = {"type": "function_call", "call_id": "a", "name": "run", "arguments": text(9, 3)}
OUTPUT: Raw = {"type": "function_call_output", "call_id": "a", "output": text(40, 4)}
SHOT: Raw = {"type": "computer_call_output", "call_id": "a", "output": {"type": "odd"}}
NOTE = {"role": "user", "content": [{"type": "input_text", "text": gap_note(2, 90)}]}
LATER_IN_ITEMS = {
    "a program ends": [
        words("go"),
        PROGRAM,
        CALL | {"caller": {"caller_id": "p"}},
        OUTPUT,
        {"type": "program_output", "call_id": "p", "result": "7"},
    ],
    "a turn goes on": [words("go"), {"role": "assistant", "content": "I look."}, CALL, OUTPUT],
    "a call stands on the server": [words("go"), {"type": "item_reference", "id": "x"}, OUTPUT],
    "a note stands after an output": [words("go"), CALL, SHOT, NOTE],
}


@pytest.mark.parametrize("share", [40, 70, 90, 100])
@pytest.mark.parametrize(
    "body",
    [
        *({"anthropic_version": "x", "messages": given} for given in LATER_IN_MESSAGES.values()),
        *({"input": given} for given in LATER_IN_ITEMS.values()),
    ],
    ids=[*LATER_IN_MESSAGES, *LATER_IN_ITEMS],
)
def test_what_is_read_otherwise_because_of_what_came_later_is_read_anew(
    body: Raw, share: int
) -> None:
    limit = int(brim.count(body, model="gpt-4o")) * share // 100
    remembering = fitter(PrefixCache(), limit)
    for sent in grown(body, [1] * 9):
        assert fitted(sent, remembering) == fitted(sent, fitter(PrefixCache(), limit))


@settings(max_examples=50)
@given(st.lists(st.one_of(chats, bodies), min_size=2, max_size=4), strides, shares)
def test_conversations_that_grow_at_once_do_not_mix(
    many: list[Raw], strides: list[int], share: int
) -> None:
    limit = int(brim.count(many[0], model="gpt-4o")) * share // 100
    remembering = fitter(PrefixCache(max_conversations=3), limit)
    for round_ in zip(*(grown(body, strides) for body in many), strict=False):
        for sent in round_:
            assert fitted(sent, remembering) == fitted(sent, fitter(PrefixCache(), limit))


# What is continued, and what is not


def chat(*said: str) -> Raw:
    roles = ("user", "assistant")
    return {
        "messages": [
            {"role": roles[place % 2], "content": words} for place, words in enumerate(said)
        ]
    }


def agent(*results: str, **call: Any) -> Raw:
    """An Anthropic body of an agent at work."""
    messages: list[Raw] = [{"role": "user", "content": "go"}]
    for number, result in enumerate(results):
        used = {"type": "tool_use", "id": f"t{number}", "name": "run", "input": call}
        answer = {"type": "tool_result", "tool_use_id": f"t{number}", "content": result}
        messages.append({"role": "assistant", "content": [used]})
        messages.append({"role": "user", "content": [answer]})
    return {"messages": messages, "anthropic_version": "x", "system": "Be brief."}


def items(*outputs: str) -> Raw:
    """A body of responses, of an agent at work."""
    given: list[Raw] = [{"role": "user", "content": "go"}]
    for number, output in enumerate(outputs):
        name = f"c{number}"
        given.append({"type": "reasoning", "id": f"r{number}", "summary": []})
        given.append({"type": "function_call", "call_id": name, "name": "run", "arguments": "{}"})
        given.append({"type": "function_call_output", "call_id": name, "output": output})
    return {"input": given, "instructions": "Be brief."}


@pytest.mark.parametrize("make", [chat, agent, items])
def test_a_grown_conversation_is_continued(make: Any) -> None:
    memory = PrefixCache()
    planner = planner_of(make("one"), memory)
    assert planner_of(make("one", "two", "three"), memory) is planner
    assert planner_of(make("one", "two", "three"), memory) is planner, "sent once more"
    assert planner_of(make("one", "other", "three"), memory) is not planner


def test_the_longest_that_it_begins_with_is_continued() -> None:
    memory = PrefixCache()
    with fitter(memory).parse(chat("one"), openai_chat) as short:  # nobody goes on with it
        long = planner_of(chat("one", "two"), memory)
    planner_of(chat("four", "five", "six", "seven"), memory)
    assert planner_of(chat("one", "two", "three"), memory) is long
    assert planner_of(chat("one", "other"), memory) is short.planner


def test_two_that_end_alike_are_both_continued() -> None:
    memory = PrefixCache()
    end = "yes", "thanks", "bye"
    planners = [planner_of(chat(begin, *end), memory) for begin in ("one", "two")]
    assert planners[0] is not planners[1]
    for begin, planner in zip(("one", "two"), planners, strict=True):
        assert planner_of(chat(begin, *end, "more"), memory) is planner


def test_what_goes_out_is_continued_too() -> None:
    memory, outputs = PrefixCache(), [*(text(200, seed) for seed in range(6)), "done", "done"]
    fitting = fitter(memory, 1_500)
    planners = []
    for end in (6, 7, 8):
        request = fitting.fit(agent(*outputs[:end]), anthropic)
        assert request.plan.is_trimmed
        with fitting.parse(dict(request), anthropic) as sent:
            planners.append(sent.planner)
    assert planners[0] is planners[1] is planners[2]


def test_a_message_that_was_changed_in_place_is_seen() -> None:
    memory, body = PrefixCache(), chat("one", "two", "three")
    planner = planner_of(body, memory)
    body["messages"][1]["content"] = "something else"
    assert planner_of(body, memory) is not planner


@pytest.mark.parametrize("other", [{"a": 1.0, "b": 2}, {"a": True, "b": 2}, {"b": 2, "a": 1}])
def test_what_is_equal_but_written_otherwise_is_another_conversation(other: Raw) -> None:
    """The arguments of a call are counted as their JSON."""
    memory = PrefixCache()
    planner = planner_of(agent("done", a=1, b=2), memory)
    assert planner_of(agent("done", "more", **other), memory) is not planner
    assert planner_of(agent("done", "more", a=1, b=2), memory) is planner


@pytest.mark.parametrize("key", ["system", "tools"])
def test_system_text_and_tools_belong_to_a_conversation(key: str) -> None:
    memory = PrefixCache()
    tools = [{"name": "run", "input_schema": {"type": "object"}}]
    planner = planner_of(agent("done") | {"tools": tools}, memory)
    other = {"system": "Be long.", "tools": [*tools, *tools]}
    grown = agent("done", "more") | {"tools": tools}
    assert planner_of(grown | {key: other[key]}, memory) is not planner
    assert planner_of(grown, memory) is planner


def test_the_same_messages_in_another_format_are_another_conversation() -> None:
    memory, body = PrefixCache(), chat("one")
    planner = planner_of(body, memory)
    assert planner_of(body | {"anthropic_version": "x"}, memory) is not planner


def test_a_planner_whose_edit_was_asked_for_is_not_remembered() -> None:
    memory, body = PrefixCache(), agent(*(text(200, seed) for seed in range(8)))
    with fitter(memory).parse(body, anthropic) as reading:
        reading.planner.trim(1_000)
    assert planner_of(body, memory) is not reading.planner


def test_what_is_no_plain_json_is_fitted_and_not_remembered() -> None:
    class Text(str):
        pass

    memory, body = PrefixCache(), chat(Text("one"))
    assert fitter(memory).fit(body, openai_chat).messages == body["messages"]
    assert planner_of(body, memory) is not planner_of(body, memory)


def test_a_conversation_in_use_is_nobody_elses() -> None:
    memory, body = PrefixCache(), chat("one")
    planner = planner_of(body, memory)
    with fitter(memory).parse(body, openai_chat) as reading:
        assert reading.planner is planner
        assert planner_of(body, memory) is not planner


# How much is remembered


def test_the_oldest_are_forgotten_first() -> None:
    memory = PrefixCache(max_conversations=2)
    one, two = planner_of(chat("one"), memory), planner_of(chat("two"), memory)
    assert planner_of(chat("one", "yes"), memory) is one
    planner_of(chat("three"), memory)
    assert planner_of(chat("one", "yes"), memory) is one
    assert planner_of(chat("two"), memory) is not two


def test_what_is_remembered_weighs_no_more_than_told() -> None:
    memory = PrefixCache(max_bytes=5_000)
    one, two, three = (planner_of(chat(f"{number} " * 1_000), memory) for number in "123")
    assert planner_of(chat("1 " * 1_000), memory) is not one, "three would be too heavy"
    assert planner_of(chat("3 " * 1_000), memory) is three
    assert planner_of(chat("2 " * 1_000), memory) is not two, "the first took its place"


def test_what_is_too_heavy_by_itself_drives_nobody_out() -> None:
    memory = PrefixCache(max_bytes=5_000)
    planner = planner_of(chat("one"), memory)
    planner_of(chat("much " * 2_000), memory)
    assert planner_of(chat("one", "two"), memory) is planner


def test_nothing_is_left_when_all_is_forgotten() -> None:
    memory = PrefixCache()
    planner = planner_of(chat("one"), memory)
    memory.clear()
    assert planner_of(chat("one", "two"), memory) is not planner
