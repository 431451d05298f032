"""The prefix cache saves time and never changes a result."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.fitting.budget import Budget
from brim.fitting.fitter import BodyFitter
from brim.fitting.planner import Planner
from brim.fitting.policies import POLICIES
from brim.fitting.prefix_cache import PrefixCache
from brim.tokens import counter_for
from brim.wire.formats import ANTHROPIC, CHAT, RESPONSES, BodyFormat
from brim.wire.notes import gap_note
from brim.wire.template_counter import wrap_counter
from brim.wire.template_rules import TemplateRules
from tests.support.strategies import Raw, histories, policies, text
from tests.support.wire.bodies import anthropic_bodies, odd_bodies, responses_bodies

COUNTER = counter_for("gpt-4o")

chats = histories().map(lambda messages: {"messages": messages})
bodies = st.one_of(anthropic_bodies(), responses_bodies(), odd_bodies())
strides = st.lists(st.sampled_from((1, 1, 1, 2, 3, 5)), min_size=40, max_size=40)
shares = st.sampled_from((8, 15, 30, 50, 80, 100))
"""The limit, in percent of the whole conversation."""


def detect(body: Raw) -> BodyFormat:
    if "input" in body:
        return RESPONSES
    return ANTHROPIC if "anthropic_version" in body else CHAT


def fitter(cache: PrefixCache, limit: int = 100_000, policy: str = "steady") -> BodyFitter:
    return BodyFitter(COUNTER, Budget(limit + 1, 1), POLICIES[policy], cache)


def fit_body(body: Raw, fitter: BodyFitter) -> Any:
    """Return everything that a fit shows: the request and the plan, or the error."""
    try:
        request = fitter.fit(body, detect(body))
    except brim.BrimError as error:
        return type(error), str(error)
    return dict(request), request.plan.to_dict()


def grown(body: Raw, strides: list[int]) -> list[Raw]:
    """Return the bodies of a growing conversation, as independent copies."""
    key, ends, end = detect(body).messages_key, [0], 0
    for stride in strides:
        end += stride
        ends.append(min(end, len(body[key])))
    return [copy.deepcopy({**body, key: body[key][:end]}) for end in dict.fromkeys(ends)]


def planner_of(body: Raw, cache: PrefixCache) -> Planner:
    """Return the planner of a body: the earlier one if the conversation is continued."""
    with fitter(cache).parse(body, detect(body)) as parsed:
        return parsed.planner


@given(st.one_of(chats, bodies), strides, shares, policies)
def test_a_growing_conversation_is_fitted_as_if_it_were_new(
    body: Raw, strides: list[int], share: int, policy: str
) -> None:
    limit = int(brim.count(body, model="gpt-4o")) * share // 100
    remembering = fitter(PrefixCache(), limit, policy)
    for sent in grown(body, strides):
        assert fit_body(sent, remembering) == fit_body(sent, fitter(PrefixCache(), limit, policy))


def words(contents: str) -> Raw:
    return {"role": "user", "content": contents}


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
def test_messages_that_later_ones_reinterpret_are_read_again(body: Raw, share: int) -> None:
    limit = int(brim.count(body, model="gpt-4o")) * share // 100
    remembering = fitter(PrefixCache(), limit)
    for sent in grown(body, [1] * 9):
        assert fit_body(sent, remembering) == fit_body(sent, fitter(PrefixCache(), limit))


@given(st.lists(st.one_of(chats, bodies), min_size=2, max_size=4), strides, shares)
def test_conversations_that_grow_concurrently_do_not_mix(
    many: list[Raw], strides: list[int], share: int
) -> None:
    limit = int(brim.count(many[0], model="gpt-4o")) * share // 100
    remembering = fitter(PrefixCache(max_conversations=3), limit)
    for round_ in zip(*(grown(body, strides) for body in many), strict=False):
        for sent in round_:
            assert fit_body(sent, remembering) == fit_body(sent, fitter(PrefixCache(), limit))


# Which conversations are continued


def chat(*contents: str) -> Raw:
    roles = ("user", "assistant")
    return {
        "messages": [
            {"role": roles[place % 2], "content": words} for place, words in enumerate(contents)
        ]
    }


def agent(*results: str, **call: Any) -> Raw:
    """Return an Anthropic body of an agent's run."""
    messages: list[Raw] = [{"role": "user", "content": "go"}]
    for number, result in enumerate(results):
        used = {"type": "tool_use", "id": f"t{number}", "name": "run", "input": call}
        answer = {"type": "tool_result", "tool_use_id": f"t{number}", "content": result}
        messages.append({"role": "assistant", "content": [used]})
        messages.append({"role": "user", "content": [answer]})
    return {"messages": messages, "anthropic_version": "x", "system": "Be brief."}


def items(*outputs: str) -> Raw:
    """Return a responses body of an agent's run."""
    given: list[Raw] = [{"role": "user", "content": "go"}]
    for number, output in enumerate(outputs):
        name = f"c{number}"
        given.append({"type": "reasoning", "id": f"r{number}", "summary": []})
        given.append({"type": "function_call", "call_id": name, "name": "run", "arguments": "{}"})
        given.append({"type": "function_call_output", "call_id": name, "output": output})
    return {"input": given, "instructions": "Be brief."}


@pytest.mark.parametrize("make", [chat, agent, items])
def test_a_grown_conversation_is_continued(make: Any) -> None:
    cache = PrefixCache()
    planner = planner_of(make("one"), cache)
    assert planner_of(make("one", "two", "three"), cache) is planner
    assert planner_of(make("one", "two", "three"), cache) is planner, "sent again"
    assert planner_of(make("one", "other", "three"), cache) is not planner


def test_the_longest_known_prefix_is_continued() -> None:
    cache = PrefixCache()
    with fitter(cache).parse(chat("one"), CHAT) as short:  # in use, so it is not continued
        long = planner_of(chat("one", "two"), cache)
    planner_of(chat("four", "five", "six", "seven"), cache)
    assert planner_of(chat("one", "two", "three"), cache) is long
    assert planner_of(chat("one", "other"), cache) is short.planner


def test_two_conversations_with_the_same_end_are_both_continued() -> None:
    cache = PrefixCache()
    end = "yes", "thanks", "bye"
    planners = [planner_of(chat(begin, *end), cache) for begin in ("one", "two")]
    assert planners[0] is not planners[1]
    for begin, planner in zip(("one", "two"), planners, strict=True):
        assert planner_of(chat(begin, *end, "more"), cache) is planner


def test_the_trimmed_body_is_cached_too() -> None:
    cache, outputs = PrefixCache(), [*(text(200, seed) for seed in range(6)), "done", "done"]
    fitting = fitter(cache, 1_500)
    planners = []
    for end in (6, 7, 8):
        request = fitting.fit(agent(*outputs[:end]), ANTHROPIC)
        assert request.plan.is_trimmed
        with fitting.parse(dict(request), ANTHROPIC) as sent:
            planners.append(sent.planner)
    assert planners[0] is planners[1] is planners[2]


def test_a_message_that_was_changed_in_place_is_noticed() -> None:
    cache, body = PrefixCache(), chat("one", "two", "three")
    planner = planner_of(body, cache)
    body["messages"][1]["content"] = "something else"
    assert planner_of(body, cache) is not planner


def test_a_later_system_message_replaces_the_one_of_the_template() -> None:
    """The template prints its own system text only if the conversation has none."""
    rules = TemplateRules("printed", default_system=50)
    counter = wrap_counter(counter_for("my-local-model"), rules)
    remembering, fresh = (
        BodyFitter(counter, Budget(1_001, 1), POLICIES["steady"], PrefixCache(), rules)
        for _ in range(2)
    )
    question = {"messages": [words("What is a prime number?")]}
    fit_body(question, remembering)
    body = {"messages": [*question["messages"], {"role": "system", "content": "Be brief."}]}
    assert fit_body(body, remembering) == fit_body(body, fresh)


@pytest.mark.parametrize("other", [{"a": 1.0, "b": 2}, {"a": True, "b": 2}, {"b": 2, "a": 1}])
def test_equal_values_with_different_json_are_another_conversation(other: Raw) -> None:
    """The arguments of a call are counted as JSON."""
    cache = PrefixCache()
    planner = planner_of(agent("done", a=1, b=2), cache)
    assert planner_of(agent("done", "more", **other), cache) is not planner
    assert planner_of(agent("done", "more", a=1, b=2), cache) is planner


@pytest.mark.parametrize("key", ["system", "tools"])
def test_other_system_text_or_tools_are_another_conversation(key: str) -> None:
    cache = PrefixCache()
    tools = [{"name": "run", "input_schema": {"type": "object"}}]
    planner = planner_of(agent("done") | {"tools": tools}, cache)
    other = {"system": "Be long.", "tools": [*tools, *tools]}
    grown = agent("done", "more") | {"tools": tools}
    assert planner_of(grown | {key: other[key]}, cache) is not planner
    assert planner_of(grown, cache) is planner


def test_the_same_messages_in_another_format_are_another_conversation() -> None:
    cache, body = PrefixCache(), chat("one")
    planner = planner_of(body, cache)
    assert planner_of(body | {"anthropic_version": "x"}, cache) is not planner


def test_a_planner_with_a_requested_trim_is_not_cached() -> None:
    cache, body = PrefixCache(), agent(*(text(200, seed) for seed in range(8)))
    with fitter(cache).parse(body, ANTHROPIC) as parsed:
        parsed.planner.trim(1_000)
    assert planner_of(body, cache) is not parsed.planner


def test_values_that_are_not_plain_json_are_fitted_but_not_cached() -> None:
    cache = PrefixCache()
    body = {"messages": [{"role": "user", "content": "one", "seen": object()}]}
    assert fitter(cache).fit(body, CHAT).messages == body["messages"]
    assert planner_of(body, cache) is not planner_of(body, cache)


def test_a_conversation_in_use_is_not_shared() -> None:
    cache, body = PrefixCache(), chat("one")
    planner = planner_of(body, cache)
    with fitter(cache).parse(body, CHAT) as parsed:
        assert parsed.planner is planner
        assert planner_of(body, cache) is not planner


# Size of the cache


def test_the_oldest_conversations_are_evicted_first() -> None:
    cache = PrefixCache(max_conversations=2)
    one, two = planner_of(chat("one"), cache), planner_of(chat("two"), cache)
    assert planner_of(chat("one", "yes"), cache) is one
    planner_of(chat("three"), cache)
    assert planner_of(chat("one", "yes"), cache) is one
    assert planner_of(chat("two"), cache) is not two


def test_the_cache_respects_its_maximum_size() -> None:
    cache = PrefixCache(max_bytes=5_000)
    one, two, three = (planner_of(chat(f"{number} " * 1_000), cache) for number in "123")
    assert planner_of(chat("1 " * 1_000), cache) is not one, "three would be too large"
    assert planner_of(chat("3 " * 1_000), cache) is three
    assert planner_of(chat("2 " * 1_000), cache) is not two, "the first was stored in its place"


def test_a_conversation_above_the_maximum_evicts_no_other() -> None:
    cache = PrefixCache(max_bytes=5_000)
    planner = planner_of(chat("one"), cache)
    planner_of(chat("much " * 2_000), cache)
    assert planner_of(chat("one", "two"), cache) is planner


def test_clear_empties_the_cache() -> None:
    cache = PrefixCache()
    planner = planner_of(chat("one"), cache)
    cache.clear()
    assert planner_of(chat("one", "two"), cache) is not planner
