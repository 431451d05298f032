"""Unusual conversations, and regressions."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import brim
from brim.fitting.api import prefix_cache
from brim.fitting.policies import PolicyName
from tests.support.histories import pairs_are_whole
from tests.support.strategies import Raw, history, text

MODEL = "gpt-4o"
POLICIES = ("steady", "thrift", "rolling", "sliding", "recall")


def fit(
    messages: list[Raw], limit: int, policy: PolicyName = "steady", **more: Any
) -> brim.Request:
    return brim.fit(messages, model=MODEL, window=limit + 1, reply=1, policy=policy, **more)


def roles(request: brim.Request) -> str:
    return "".join(message["role"][0] for message in request["messages"])


every_policy = pytest.mark.parametrize("policy", POLICIES)


@every_policy
@pytest.mark.parametrize(
    ("sketch", "limit"),
    [
        ("u20 " + "ccc9 r90 r20 r40 " * 12, 900),  # parallel calls
        ("s9 s9 d9 u20 " + "a30 u30 " * 20, 600),  # several system messages, one from a developer
        ("u20 " + "a30 u30 " * 20, 600),  # no system
        ("s9 " + "c9 r90 " * 12, 600),  # no user
        ("s9 a40 u9 " + "a30 u30 " * 20, 600),  # an assistant's greeting first
        ("s9 a40 c9 r90 u9 " + "a30 u30 " * 20, 600),  # tools before the first user message
        ("s9 u20 u20 a9 a9 u20 u20 " * 4 + "u9", 500),  # consecutive messages of one role
        ("s9 u20 " + "c9 u20 " * 12, 500),  # dangling calls
        ("s9 u20 " + "c9 r90 " * 9 + "c9", 600),  # a call at the very end
        ("s9 u20 " + "c9 r90 " * 9 + "cc9 r9", 600),  # an incomplete step at the end
        ("s9 u20 o90 " + "c9 r90 o9 " * 9, 600),  # orphans
        ("s9 u20 " + "c9 s20 r90 " * 9, 900),  # system messages within steps
        ("s9 u20 " + "a30 u30 s9 " * 12, 900),
        ("s9 u20 a2000 u9", 300),  # few messages, one of them huge and old
        ("s9 u2000 a20 u9", 300),
        ("s9 u20 c9 r4000", 300),  # one giant output
    ],
)
def test_a_trimmed_request_fits_and_is_valid(sketch: str, limit: int, policy: PolicyName) -> None:
    messages = history(sketch)
    request = fit(messages, limit, policy)
    assert brim.count(request.messages, model=MODEL) == request.plan.tokens <= limit
    assert request.plan.is_trimmed
    assert pairs_are_whole(request.messages)
    assert [m for m in request.messages if m["role"] in ("system", "developer")] == [
        m for m in messages if m["role"] in ("system", "developer")
    ]
    other_roles = [m["role"] for m in request.messages if m["role"] not in ("system", "developer")]
    if any(message["role"] == "user" for message in messages):
        assert other_roles[0] == "user"


@every_policy
def test_call_ids_may_repeat_in_later_messages(policy: PolicyName) -> None:
    step = history("c9 r90")
    messages = history("s9 u20") + [copy.deepcopy(m) for _ in range(20) for m in step]
    request = fit(messages, 700, policy)
    assert pairs_are_whole(request.messages)
    assert request.messages[-1] is messages[-1]


@every_policy
def test_null_and_empty_content_is_accepted(policy: PolicyName) -> None:
    messages = history("s9 u20 " + "c9 r0 a0 u30 " * 20)
    for message in messages[4::8]:
        message["content"] = ""
    request = fit(messages, 400, policy)
    assert request.plan.tokens <= 400


@every_policy
def test_a_zero_token_budget_raises_a_context_overflow_error(policy: PolicyName) -> None:
    with pytest.raises(brim.ContextOverflowError) as caught:
        fit(history("s9 u20 c9 r90"), 0, policy)
    assert caught.value.limit == 0
    assert caught.value.tokens > 0


@every_policy
def test_ten_thousand_messages_fit(policy: PolicyName) -> None:
    messages = history("s9 u20 " + "c9 r60 " * 4_998 + "a9 u9")
    request = fit(messages, 4_000, policy)
    assert request.plan.tokens <= 4_000
    assert len(request.plan.decisions) == 10_000
    assert pairs_are_whole(request.messages)


@every_policy
def test_one_giant_new_message_is_an_error_and_the_input_is_unchanged(policy: PolicyName) -> None:
    messages = history("s9 u20 a20 u3000")
    before = copy.deepcopy(messages)
    with pytest.raises(brim.ContextOverflowError) as caught:
        fit(messages, 500, policy)
    assert max(caught.value.parts, key=caught.value.parts.__getitem__) == "last user"
    assert messages == before


@every_policy
def test_a_larger_window_restores_dropped_messages(policy: PolicyName) -> None:
    messages = history("s9 u20 " + "c9 r90 " * 20)
    assert fit(messages, 600, policy).plan.is_trimmed
    whole = fit(messages, 50_000, policy)
    assert all(a is b for a, b in zip(whole.messages, messages, strict=True))


@every_policy
def test_clipping_parts_changes_their_text_and_keeps_images(policy: PolicyName) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    messages = history("s9 u20 " + "c9 r90 " * 8)
    for message in messages[3::2]:
        message["content"] = [
            {"type": "text", "text": text(300, 1), "cache": 1},
            picture,
            {"type": "text", "text": text(50, 2)},
        ]
    size = int(brim.count(messages, model=MODEL))
    request = fit(messages, size * 2 // 3, policy)
    assert request.plan.tokens == brim.count(request.messages, model=MODEL)
    for message in request["messages"]:
        if message["role"] == "tool":
            assert picture in message["content"]


@every_policy
def test_thinking_is_removed_first_except_in_the_open_step(policy: PolicyName) -> None:
    messages = history("s9 u20 " + "c9 r30 " * 6)
    for message in messages[2::2]:
        message["reasoning_content"] = text(100)
    size = int(brim.count(messages, model=MODEL))
    request = fit(messages, size - 200, policy)
    assert not request.plan.dropped_runs
    assert "reasoning_content" not in request.messages[2]
    assert "reasoning_content" in request.messages[-2]


def test_unknown_roles_and_fields_are_preserved() -> None:
    messages: list[Raw] = [
        {"role": "critic", "content": "hm", "weight": 3},
        {"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}},
    ]
    assert fit(messages, 100).messages == messages


def test_tools_are_counted_and_never_removed() -> None:
    tools = [{"type": "function", "function": {"name": "run", "description": text(400)}}]
    with pytest.raises(brim.ContextOverflowError) as caught:
        fit(history("u5"), 300, tools=tools)
    assert max(caught.value.parts, key=caught.value.parts.__getitem__) == "tools"
    assert fit(history("u5"), 3_000, tools=tools)["tools"] is tools


def test_the_arguments_of_a_call_are_counted() -> None:
    messages = history("u5 c5 r5")
    short = brim.count(messages, model=MODEL)
    messages[1]["tool_calls"][0]["function"]["arguments"] = text(10_000)
    assert brim.count(messages, model=MODEL) > short + 10_000


def test_arguments_that_are_an_object_are_counted_as_json() -> None:
    messages = history("u5 c5 r5")
    arguments = {"path": "src/brim", "depth": 3}
    messages[1]["tool_calls"][0]["function"]["arguments"] = arguments
    as_object = brim.count(messages, model=MODEL)
    messages[1]["tool_calls"][0]["function"]["arguments"] = '{"path":"src/brim","depth":3}'
    assert as_object == brim.count(messages, model=MODEL)


def test_a_step_with_a_missing_result_is_dropped_when_trimming() -> None:
    messages = [*history("s9 u20 cc9 r9"), {"role": "user", "content": "STOP"}]
    assert fit(messages, 10_000).messages == messages
    assert fit(messages, 10_000).plan.warnings == ["message 2: a call without its result"]
    request = fit(messages, 60)
    assert request.messages[-1]["content"] == "STOP"
    assert pairs_are_whole(request.messages)


def test_the_text_of_a_plan_lists_only_outcomes_that_occurred() -> None:
    messages = history("s9 u20 " + "c5 r500 " * 4)
    size = int(brim.count(messages, model=MODEL))
    line = str(fit(messages, size - 300).plan)
    assert "; clipped " in line
    assert "dropped" not in line
    assert "nothing trimmed" in str(fit(messages, size).plan)


def test_a_message_changed_in_place_is_noticed() -> None:
    messages = history("s9 u20 " + "c9 r60 " * 10)
    fit(messages, 500)
    messages[3]["content"] = text(40, 99)
    changed = fit(messages, 500)
    prefix_cache.clear()
    assert changed.messages == fit(messages, 500).messages
    messages[2]["tool_calls"][0]["function"]["arguments"] = "{}"
    assert fit(messages, 500).plan.before < changed.plan.before


def test_changing_a_returned_request_has_no_side_effects() -> None:
    messages = history("s9 u20 " + "c9 r60 " * 10)
    first = fit(messages, 500)
    expected = copy.deepcopy(first.messages)
    for message in first.messages:
        if not any(message is given for given in messages):
            message["content"] = "spoilt"
    first.messages.clear()
    assert fit(messages, 500).messages == expected


def test_branching_conversations_are_distinguished() -> None:
    trunk = history("s9 u20 " + "c9 r60 " * 10)
    left, right = [*trunk, *history("u9 a30 u5")], [*trunk, *history("u30 a9 u5")]
    for branch in (left, right, trunk, right, left):
        remembered = fit(branch, 500)
        prefix_cache.clear()
        assert remembered.messages == fit(branch, 500).messages


def test_fitting_from_many_threads_gives_the_same_results() -> None:
    conversations = [history(f"s9 u{n + 5} " + "c9 r60 " * (8 + n)) for n in range(8)]
    expected = [fit(messages, 500).messages for messages in conversations]
    prefix_cache.clear()
    with ThreadPoolExecutor(8) as pool:
        jobs = [(messages, end) for messages in conversations * 4 for end in (9, len(messages))]
        found = list(pool.map(lambda job: fit(job[0][: job[1]], 500).messages, jobs))
    for (messages, end), got in zip(jobs, found, strict=True):
        if end == len(messages):
            assert got == expected[conversations.index(messages)]


def test_a_later_priority_does_not_change_an_earlier_trim() -> None:
    messages = history("c1! r0! ccc1! r0! r90 r0! u1! c1!+1 r0! " + "u1! " * 15)
    grown = [fit(messages[:end], 400).messages for end in range(7, len(messages))]
    for end, sent in zip(range(7, len(messages)), grown, strict=True):
        prefix_cache.clear()
        assert fit(messages[:end], 400).messages == sent


def test_a_clip_mark_counts_the_missing_tokens_of_the_original() -> None:
    log = "\n".join(f"row {n} of the log, with some words in it" for n in range(560))
    messages = history("u5 c1 r1 " + "c1 r1 " * 8)
    messages[2]["content"] = log
    request = fit(messages, 2_100, "rolling")
    reported = int(
        request["messages"][2]["content"].split("about ")[1].split(" tokens")[0].replace(",", "")
    )
    decision = request.plan.decisions[2]
    assert reported == pytest.approx(decision.before - decision.after, rel=0.1)


def test_clipping_a_text_with_dense_ends_still_fills_the_room() -> None:
    ends = " ".join(f"a{n}" for n in range(400))
    messages = history("u5 c1 r1")
    messages[2]["content"] = f"{ends}\n{'=' * 20_000}\n{ends}"
    limit = int(brim.count(messages, model=MODEL)) - 300
    assert fit(messages, limit, "sliding").plan.tokens > 0.9 * limit


def test_a_text_without_repeats_is_not_clipped_more_than_needed() -> None:
    def rows(name: str, number: int) -> str:
        return "\n".join(f"row {n} of {name} with some words in it" for n in range(number))

    outputs = [rows("one", 250), rows("two", 250), f"{rows('list', 60)}\n{rows('own', 95)}"]
    outputs += [rows("list", 60), "ok", "ok"]
    messages = history("u5 " + "c1 r1 " * 6)
    for place, output in enumerate(outputs):
        messages[2 + 2 * place]["content"] = output
    for limit in range(3_900, 4_400, 50):
        for message in fit(messages, limit)["messages"]:
            lines = (message["content"] or "").split("\n")
            assert "about -" not in (message["content"] or "")
            assert len(lines) == len(set(lines))


def test_sliding_drops_the_oldest_units_with_or_without_tools() -> None:
    messages = history("u40 " + "c1 r20 " * 20 + "a700 u5")
    request = fit(messages, 1_700, "sliding")
    assert request.messages[-2] is messages[-2]
    assert request.plan.decisions[-2].outcome == "kept"


def test_pins_after_a_trim_are_kept() -> None:
    grown = history("u5 " + "a30 u5 " * 60 + "a5! o5 c1 r1")
    request = fit(grown, 2_000)
    assert request.plan.is_trimmed
    assert request.plan.decisions[-4].outcome == "kept"


def test_changing_a_returned_history_does_not_change_the_session() -> None:
    chat = brim.Session(MODEL, window=1_000, reply=1)
    chat.append({"role": "user", "content": "hello"})
    chat.request().messages[0]["content"] = "X " * 4_000
    chat.history[0]["content"] = "Y"
    assert chat.request().messages == [{"role": "user", "content": "hello"}]


def test_notes_count_as_turns() -> None:
    messages = history("u1 o1 u1 c1 r1")
    request = fit(messages, 1_000, "sliding", max_turns=4)
    assert len(request.messages) <= 4
    again = fit(request.messages, 1_000, "sliding", max_turns=4)
    assert again.messages == request.messages


def test_equal_values_with_different_json_are_different_messages() -> None:
    whole = [{"role": "user", "content": [{"type": "odd", "v": [1] * 60}]}]
    broken = [{"role": "user", "content": [{"type": "odd", "v": [1.0] * 60}]}]
    limit = int(brim.count(whole, model=MODEL))
    assert fit(whole, limit).plan.tokens == limit
    with pytest.raises(brim.ContextOverflowError):
        fit(broken, limit)
