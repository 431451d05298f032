"""Strict templates: the rules of each model, and conversations adapted to them."""

from __future__ import annotations

import copy
import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import ContextOverflowError, InputError
from brim.fitting.budget import Budget
from brim.fitting.history import History
from brim.fitting.planner import Planner
from brim.fitting.policies import resolve_policy
from brim.messages import Message
from brim.tokens import Counter, counter_for
from brim.tokens.counter import CalibratedCounter, RequestCounter
from brim.wire import openai_chat
from brim.wire.formats import CHAT, read_messages
from brim.wire.notes import CONVERSATION_CONTINUES, INTERRUPTED, NO_RESULT, RESULTS_ABOVE
from brim.wire.template_adapter import apply_template, make_short_id
from brim.wire.template_counter import wrap_counter
from brim.wire.template_rules import PERMISSIVE, TemplateRules, rules_for
from brim.wire.template_source import find_rules
from tests.support.strategies import Raw, call, histories, limits, policies, text
from tests.support.wire.template_validator import find_violation

NAMES = (
    *("free", "mistral", "mistral-nemo", "ministral-3", "gemma", "llama-3", "qwen3.5"),
    *("apertus", "gpt-oss", "minimax", "phi-3", "strict"),
)
MISTRAL, GEMMA, LLAMA = find_rules("mistral"), find_rules("gemma"), find_rules("llama-3")
IMAGE: Raw = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


def system(content: Any) -> Raw:
    return {"role": "system", "content": content}


def user(content: Any) -> Raw:
    return {"role": "user", "content": content}


def assistant(content: Any) -> Raw:
    return {"role": "assistant", "content": content}


def calls(*ids: str, content: Any = None) -> Raw:
    return {"role": "assistant", "content": content, "tool_calls": [call(i, i) for i in ids]}


def result(name: str, content: Any = "done") -> Raw:
    return {"role": "tool", "tool_call_id": name, "content": content}


def roles(messages: list[Any]) -> str:
    """Return a sequence of roles as letters: s, u, a, c (an assistant's call), t."""
    return "".join("c" if each.get("tool_calls") else each["role"][0] for each in messages)


def texts(message: Any) -> str:
    return "\n".join(word for word in openai_chat.read_message(message, 0).words)


# Finding rules


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral"),
        ("mistral-small3.2:24b", "mistral"),
        ("mistralai/Ministral-3-8B-Instruct-2512", "ministral-3"),
        ("Mistral-Nemo-Instruct-2407-Q4_K_M.gguf", "mistral-nemo"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-nemo"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "gemma"),
        ("google/gemma-2-9b-it", "gemma"),
        ("gemma3:4b", "gemma"),
        ("google/gemma-4-12b-it", "free"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3"),
        ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "llama-3"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "free"),
        ("Qwen/Qwen3.5-27B", "qwen3.5"),
        ("Qwen/Qwen3-32B", "free"),
        ("swiss-ai/Apertus-8B-Instruct-2509", "apertus"),
        ("openai/gpt-oss-20b", "gpt-oss"),
        ("MiniMaxAI/MiniMax-M2", "minimax"),
        ("MiniMax-M3", "minimax"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3"),
        ("microsoft/Phi-3.5-mini-instruct", "phi-3"),
        ("gpt-5-mini", "free"),
        ("acme/something", "free"),
        (None, "free"),
    ],
)
def test_a_model_has_the_rules_of_its_template(model: str | None, name: str) -> None:
    assert rules_for(model).name == name
    assert find_rules(name) is rules_for(model)


def test_rules_are_found_by_name() -> None:
    assert find_rules(" Mistral ").ids == "nine"
    assert find_rules("free") is PERMISSIVE


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="Unknown template rules: 'mistrel'") as caught:
        find_rules("mistrel")
    for name in NAMES:
        assert name in str(caught.value)


def test_strict_sets_every_rule() -> None:
    strict = find_rules("strict")
    counts = {"tools", "own_text", "default_system", "tool_text"}
    for field in fields(TemplateRules):
        is_strict = getattr(strict, field.name) != getattr(PERMISSIVE, field.name)
        assert is_strict is (field.name not in counts), "which change counts, not requests"


def test_alternating_turns_require_the_related_rules() -> None:
    with pytest.raises(InputError, match="Alternating turns require"):
        TemplateRules("odd", alternate=True)


# What templates reject: a row for each sequence that was tried with real ones

HI, YES, AGAIN = user("hi"), assistant("yes"), user("again")
STEP = [calls("abcdefgh1"), result("abcdefgh1")]
MISTRALS = {"mistral", "mistral-nemo", "ministral-3"}
ALTERNATING = {*MISTRALS, "gemma"}
NO_NULL = {"ministral-3", "gpt-oss"}
NO_TEXT = {"mistral", "mistral-nemo", "llama-3", "gpt-oss"}


@pytest.mark.parametrize(
    ("messages", "rejected"),
    [
        ([HI, YES, AGAIN], set()),
        ([HI, AGAIN], ALTERNATING),
        ([HI, YES, YES], ALTERNATING),
        ([YES, AGAIN], ALTERNATING),
        ([HI, *STEP], {"gemma", "phi-3", *NO_NULL}),
        ([HI, *STEP, YES, AGAIN], {"gemma", "phi-3", *NO_NULL}),
        ([HI, *STEP, AGAIN], {*ALTERNATING, "phi-3", *NO_NULL}),
        ([HI, STEP[0], YES], {*ALTERNATING, "phi-3", *NO_NULL}),
        ([HI, calls("abcdefgh1", content="now"), STEP[1]], {"gemma", "phi-3", *NO_TEXT}),
        ([HI, calls("abcdefgh1", content=""), STEP[1]], {"gemma", "phi-3"}),
        ([HI, YES, HI], {"mistral", "mistral-nemo"}),
        ([system("a"), HI], {"gemma", "mistral-nemo"}),
        ([system("a"), system("b"), HI], {*ALTERNATING, "apertus", "qwen3.5"}),
        ([HI, YES, system("b"), AGAIN], {*ALTERNATING, "apertus", "qwen3.5"}),
        (
            [HI, YES, result("abcdefgh1"), YES],
            {*ALTERNATING, "apertus", "minimax", "gpt-oss", "phi-3"},
        ),
        (
            [HI, calls("abcdefgh1", "abcdefgh2"), result("abcdefgh1"), result("abcdefgh2")],
            {"gemma", "llama-3", "phi-3", *NO_NULL},
        ),
        (
            [HI, calls("call-1"), result("call-1")],
            {"mistral", "mistral-nemo", "gemma", "phi-3", *NO_NULL},
        ),
        ([system("a"), YES], {*ALTERNATING, "qwen3.5"}),
        (
            [HI, YES, {"role": "banana", "content": "x"}],
            {*ALTERNATING, "qwen3.5", "apertus", "gpt-oss", "minimax"},
        ),
    ],
)
def test_rules_reject_what_real_templates_reject(messages: list[Raw], rejected: set[str]) -> None:
    found = {name for name in NAMES if find_violation(messages, find_rules(name))}
    assert found - {"strict"} == rejected
    assert ("strict" in found) == bool(rejected)


# Adapting conversations


def test_accepted_conversations_are_not_changed() -> None:
    messages = [system("s"), HI, calls("abcdefgh1"), result("abcdefgh1"), YES, AGAIN]
    assert all(a is b for a, b in zip(apply_template(messages, MISTRAL), messages, strict=True))


def test_adjacent_turns_of_one_role_are_merged() -> None:
    messages = [user("one"), user("two"), assistant("three"), assistant("four")]
    assert apply_template(messages, MISTRAL) == [user("one\n\ntwo"), assistant("three\n\nfour")]


def test_text_before_a_call_joins_the_calling_turn() -> None:
    messages = [HI, assistant("let me see"), calls("abcdefgh1", content="now"), result("abcdefgh1")]
    out = apply_template(messages, find_rules("ministral-3"))
    assert roles(out) == "uct"
    assert out[1] == calls("abcdefgh1", content="let me see\n\nnow")


def test_text_that_is_not_printed_with_a_call_becomes_a_turn() -> None:
    messages = [HI, calls("abcdefgh1", content="now"), STEP[1]]
    assert apply_template(messages, LLAMA) == [HI, assistant("now"), *STEP]
    assert apply_template(messages, MISTRAL) == [
        HI,
        assistant("now"),
        user(CONVERSATION_CONTINUES),
        *STEP,
    ]


@pytest.mark.parametrize("given", [None, ""])
@pytest.mark.parametrize(("wanted", "content"), [("null", None), ("empty", "")])
def test_a_call_without_text_has_the_content_that_the_template_accepts(
    given: str | None, wanted: Any, content: str | None
) -> None:
    rules = TemplateRules("drawn", call_content=wanted)
    out = apply_template([HI, calls("a", content=given), result("a")], rules)
    assert out[1] == calls("a", content=content)


def test_repeated_user_turns_differ_in_white_space() -> None:
    out = apply_template([HI, YES, HI, YES, HI, YES, AGAIN], find_rules("mistral-nemo"))
    texts = [turn["content"] for turn in out if turn["role"] == "user"]
    assert texts == ["hi", "hi\n", "hi\n ", "again"]


def test_parts_stay_parts() -> None:
    messages = [user([{"type": "text", "text": "look"}, IMAGE]), user("and say")]
    assert apply_template(messages, GEMMA) == [
        user([{"type": "text", "text": "look"}, IMAGE, {"type": "text", "text": "and say"}])
    ]


def test_reserved_fields_stay() -> None:
    messages = [{**user("one"), "_pin": True}, {**user("two"), "_priority": 3}]
    assert apply_template(messages, MISTRAL) == [
        {**user("one\n\ntwo"), "_pin": True, "_priority": 3}
    ]


def test_a_user_turn_is_inserted_before_a_leading_assistant_turn() -> None:
    assert apply_template([system("s"), YES, AGAIN], MISTRAL) == [
        system("s"),
        user(CONVERSATION_CONTINUES),
        YES,
        AGAIN,
    ]


def test_a_turn_is_inserted_between_a_result_and_a_user_turn() -> None:
    out = apply_template([HI, *STEP, AGAIN], MISTRAL)
    assert out == [HI, *STEP, assistant(INTERRUPTED), AGAIN]


def test_a_required_user_turn_is_inserted() -> None:
    rules = find_rules("qwen3.5")
    assert apply_template([system("s"), YES], rules) == [
        system("s"),
        user(CONVERSATION_CONTINUES),
        YES,
    ]
    assert apply_template([system("s"), YES, AGAIN], rules) == [system("s"), YES, AGAIN]


def test_leading_system_messages_are_merged() -> None:
    messages = [system("a"), {"role": "developer", "content": "b"}, HI]
    assert apply_template(messages, MISTRAL) == [system("a\n\nb"), HI]


def test_a_later_system_message_becomes_a_user_turn() -> None:
    messages = [system("a"), HI, YES, system("be brief"), AGAIN]
    turn = user("[system]\nbe brief")
    assert apply_template(messages, find_rules("qwen3.5")) == [system("a"), HI, YES, turn, AGAIN]
    assert apply_template(messages, MISTRAL)[-1] == user("[system]\nbe brief\n\nagain")


def test_a_system_message_within_a_step_moves_after_it() -> None:
    messages = [HI, STEP[0], system("note"), STEP[1]]
    turn = user("[system]\nnote")
    assert apply_template(messages, find_rules("qwen3.5")) == [HI, *STEP, turn]
    assert apply_template(messages, MISTRAL) == [HI, *STEP, assistant(INTERRUPTED), turn]
    assert apply_template(messages, LLAMA) == messages


def test_without_a_system_role_its_text_precedes_the_first_user_text() -> None:
    assert apply_template([system("a"), system("b"), HI], GEMMA) == [user("a\n\nb\n\nhi")]
    assert apply_template([system("a"), YES], GEMMA) == [user("a"), YES]


def test_an_unknown_role_becomes_a_heading() -> None:
    messages = [HI, YES, {"role": "banana", "content": "peel"}]
    assert apply_template(messages, MISTRAL)[-1] == user("[banana]\npeel")
    assert apply_template(messages, LLAMA)[-1] is messages[-1]


def test_a_legacy_function_call_becomes_a_tool_call() -> None:
    legacy = {"name": "run", "arguments": '{"a": 1}'}
    messages = [
        HI,
        {"role": "assistant", "content": None, "function_call": legacy},
        {"role": "function", "name": "run", "content": "done"},
    ]
    out = apply_template(messages, find_rules("minimax"))
    assert out[1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "run", "type": "function", "function": legacy}],
    }
    assert out[2] == result("run")


@pytest.mark.parametrize("empty", [[], None])
def test_an_empty_list_of_calls_is_no_call(empty: object) -> None:
    messages = [HI, {**YES, "tool_calls": empty}]
    for rules in (MISTRAL, LLAMA):
        assert find_violation(messages, rules)
        assert apply_template(messages, rules) == [HI, YES]


# Steps


def test_a_call_without_a_result_is_labeled() -> None:
    messages = [HI, calls("abcdefgh1", "abcdefgh2"), result("abcdefgh2"), user("STOP")]
    assert apply_template(messages, MISTRAL) == [
        *messages[:3],
        result("abcdefgh1", NO_RESULT),
        assistant(INTERRUPTED),
        user("STOP"),
    ]


def test_a_result_without_its_call_is_dropped() -> None:
    messages = [HI, *STEP, result("abcdefgh1", "twice"), YES, result("orphan")]
    assert apply_template(messages, MISTRAL) == [HI, *STEP, YES, user(RESULTS_ABOVE)]
    assert apply_template(messages, LLAMA) == messages


def test_an_emptied_conversation_gets_a_user_turn() -> None:
    assert apply_template([result("orphan")], MISTRAL) == [user(RESULTS_ABOVE)]
    assert apply_template([], MISTRAL) == []


def test_a_late_result_is_kept_after_an_orphan() -> None:
    messages = [HI, calls("abcdefgh1"), result("orphan"), result("abcdefgh1")]
    assert apply_template(messages, MISTRAL) == [HI, *STEP]


def test_parallel_calls_become_sequential() -> None:
    messages = [HI, calls("a", "b", content="both"), result("b", "B"), result("a", "A"), YES]
    assert apply_template(messages, LLAMA) == [
        HI,
        assistant("both"),
        calls("a"),
        result("a", "A"),
        calls("b"),
        result("b", "B"),
        YES,
    ]


def test_without_a_tool_role_a_step_becomes_text() -> None:
    messages = [HI, calls("a", "b", content="both"), result("b", "B"), result("a", "A")]
    out = apply_template(messages, GEMMA)
    assert out == [
        HI,
        assistant(
            "both\n\n"
            '[tool: run]\n{"command": "a"}\n[result]\nA\n\n'
            '[tool: run]\n{"command": "b"}\n[result]\nB'
        ),
        user(RESULTS_ABOVE),
    ]


def test_a_folded_step_keeps_all_user_text() -> None:
    messages = [HI, calls("a", "b"), result("b", "B"), user("STOP"), result("a", "late")]
    out = apply_template(messages, GEMMA)
    assert roles(out) == "uau"
    assert out[-1] == user("STOP")
    assert out[1]["content"].startswith(f'[tool: run]\n{{"command": "a"}}\n{NO_RESULT}\n\n')
    assert "late" not in json.dumps(out)


def test_object_arguments_are_folded_as_json() -> None:
    calling = calls("a")
    calling["tool_calls"][0]["function"]["arguments"] = {"path": "é", "deep": [1]}
    content = apply_template([HI, calling, result("a")], GEMMA)[1]["content"]
    assert '\n{"path":"é","deep":[1]}\n' in content


def test_an_image_in_a_result_survives_folding() -> None:
    out = apply_template([HI, calls("a"), result("a", [IMAGE]), YES], GEMMA)
    assert IMAGE in out[1]["content"]
    assert texts(out[1]).endswith("[result]\nyes")


def test_an_assistant_prefix_stays_last() -> None:
    for name in NAMES:
        assert apply_template([HI, assistant("It is")], find_rules(name))[-1] == assistant("It is")


def test_a_folded_step_with_a_reply_gets_no_closing_turn() -> None:
    messages = [HI, calls("a"), result("a"), YES, AGAIN]
    assert roles(apply_template(messages, GEMMA)) == "uau"
    assert RESULTS_ABOVE not in json.dumps(apply_template(messages, GEMMA))


# Ids


def test_nine_character_ids_are_stable() -> None:
    messages = [HI, calls("call_1", "abcdefgh1"), result("abcdefgh1"), result("call_1")]
    out = apply_template(messages, MISTRAL)
    assert [each["id"] for each in out[1]["tool_calls"]] == ["uzL4sRTTW", "abcdefgh1"]
    assert out[2] is messages[2]
    assert out[3]["tool_call_id"] == "uzL4sRTTW"


def test_colliding_ids_stay_unique() -> None:
    taken = make_short_id("call_1")
    out = apply_template(
        [HI, calls("call_1", taken), result("call_1", "x"), result(taken, "y")], MISTRAL
    )
    first, second = (each["id"] for each in out[1]["tool_calls"])
    assert second == taken != first == make_short_id("call_1", 1)
    assert [each["tool_call_id"] for each in out[2:]] == [first, second]


# Every conversation with every template


@st.composite
def wild(draw: st.DrawFn) -> list[Raw]:
    """Histories with defects, including those that only a careless client sends."""
    messages = draw(histories())
    odd: st.SearchStrategy[Raw] = st.sampled_from(
        [
            {"role": "banana", "content": "peel"},
            {"role": "critic", "content": [{"type": "text", "text": "hm"}]},
            {"role": "developer", "content": "mind"},
            {"role": "assistant", "content": "", "tool_calls": []},
            {"role": "tool", "content": "orphaned"},
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
            {"role": "function", "name": "f", "content": "old"},
            calls("same", "same", "abcdefgh1"),
            result("same"),
            system("late"),
        ]
    )
    for turn in draw(st.lists(odd, max_size=4)):
        messages.insert(draw(st.integers(0, len(messages))), copy.deepcopy(turn))
    return messages


@st.composite
def any_rules(draw: st.DrawFn) -> TemplateRules:
    if draw(st.booleans()):
        return find_rules(draw(st.sampled_from(NAMES)))
    alternate = draw(st.booleans())
    return TemplateRules(
        "drawn",
        alternate=alternate,
        one_system=alternate or draw(st.booleans()),
        system=draw(st.sampled_from(("own", "user"))),
        tool_role=draw(st.booleans()),
        parallel=draw(st.booleans()),
        orphans=not alternate and draw(st.booleans()),
        unanswered=not alternate and draw(st.booleans()),
        other_roles=not alternate and draw(st.booleans()),
        needs_user=draw(st.booleans()),
        ids=draw(st.sampled_from(("any", "nine"))),
        call_content=draw(st.sampled_from(("any", "null", "empty"))),
        call_text=draw(st.booleans()),
        repeats=draw(st.booleans()),
    )


@given(wild(), any_rules())
def test_adapted_conversations_are_accepted(messages: list[Raw], rules: TemplateRules) -> None:
    assert find_violation(apply_template(messages, rules), rules) is None


@given(wild(), any_rules())
def test_adapting_is_idempotent_and_does_not_mutate(
    messages: list[Raw], rules: TemplateRules
) -> None:
    before = copy.deepcopy(messages)
    out = apply_template(messages, rules)
    assert messages == before
    assert apply_template(messages, rules) == out
    again = apply_template(out, rules)
    assert len(again) == len(out)
    assert all(a is b for a, b in zip(again, out, strict=True))


few = st.lists(
    st.sampled_from(
        [
            *(
                [HI],
                [HI, YES],
                [YES],
                [system("s")],
                [*STEP],
                [HI, *STEP, YES],
                [calls("abcdefgh1")],
            ),
            *([result("abcdefgh1")], [result("odd")], [calls("a", "b"), result("b"), result("a")]),
            *([{"role": "banana", "content": "x"}], [STEP[0], system("s"), STEP[1]]),
        ]
    ),
    max_size=4,
)


@given(few, any_rules())
def test_accepted_messages_are_the_same_objects(
    blocks: list[list[Raw]], rules: TemplateRules
) -> None:
    messages = [message for block in blocks for message in block]
    out = apply_template(messages, rules)
    same = len(out) == len(messages) and all(a is b for a, b in zip(out, messages, strict=True))
    assert same == (find_violation(messages, rules) is None)


@given(wild())
def test_permissive_rules_change_nothing(messages: list[Raw]) -> None:
    assert find_violation(messages, PERMISSIVE) is None
    assert all(a is b for a, b in zip(apply_template(messages, PERMISSIVE), messages, strict=True))


@given(wild(), any_rules())
def test_all_text_is_kept_in_order(messages: list[Raw], rules: TemplateRules) -> None:
    out = "\n".join(
        texts(each) for each in apply_template(messages, rules) if each["role"] != "system"
    )
    place = 0
    for message in messages:
        if message["role"] in ("user", "assistant", "banana"):
            for words in openai_chat.read_message(message, 0).words:
                place = out.index(words, place) + len(words)


@given(wild(), any_rules())
def test_system_texts_and_answered_results_are_kept(
    messages: list[Raw], rules: TemplateRules
) -> None:
    out = json.dumps(apply_template(messages, rules))
    history = History(counter_for("gpt-4o"))
    for index, message in enumerate(read_messages({"messages": messages}, CHAT)):
        history.extend([message])
        history.group()
        unit = history.unit_of[index]
        if message.role == "system" or not history.units[unit].defect:
            for each in (*message.words, *message.outputs):
                assert json.dumps(each)[1:-1] in out


@given(histories(), any_rules(), st.data())
def test_the_sent_prefix_is_stable_while_a_conversation_grows(
    more: list[Raw], rules: TemplateRules, data: st.DataObject
) -> None:
    """Only the last turn may change, by joined text, and a closing turn may vanish."""
    messages = [HI, *more]
    history = History(counter_for("gpt-4o"))
    history.extend(read_messages({"messages": messages}, CHAT))
    history.group()
    end, _ = data.draw(st.sampled_from(history.request_points))
    first, whole = apply_template(messages[:end], rules), apply_template(messages, rules)
    settled = len(first) - (2 if first[-1] == user(RESULTS_ABOVE) else 1)
    assert whole[:settled] == first[:settled]


# Counting


def make_counter(model: str) -> Counter:
    counter = counter_for(model)
    assert isinstance(counter, RequestCounter)
    return CalibratedCounter(counter, 2.3, 0.4, 0.2)


COUNTERS: list[Counter] = [
    counter_for("gpt-4o"),
    counter_for("gpt-4o", tokenizer="chars/4"),
    counter_for("llama-3.1-8b", tokenizer="chars/3.5"),
    make_counter("mistral-nemo"),
]


def total(counter: Counter, messages: list[Message]) -> int:
    return counter.overhead + sum(map(counter.message, messages))


def whole_units(messages: list[Raw], draw: st.DataObject) -> list[int]:
    """Return some units of a history, and all of its system turns."""
    history = History(counter_for("gpt-4o"))
    history.extend(read_messages({"messages": messages}, CHAT))
    history.group()
    kept = {unit for unit in range(len(history.units)) if draw.draw(st.booleans())}
    return [i for i, unit in enumerate(history.unit_of) if unit in kept or unit < 0]


@given(wild(), any_rules(), st.sampled_from(COUNTERS), st.data())
def test_adapted_messages_take_at_most_the_counted_tokens(
    messages: list[Raw], rules: TemplateRules, counter: Counter, data: st.DataObject
) -> None:
    kept = [messages[index] for index in whole_units(messages, data)]
    sent = read_messages({"messages": apply_template(kept, rules)}, CHAT)
    planned = read_messages({"messages": kept}, CHAT)
    assert total(counter, sent) <= total(wrap_counter(counter, rules), planned)


tricky = st.text(
    st.sampled_from("\n \t\r.,:;[]{}\"'/ab1é日🙂\u200d"), max_size=12
) | st.sampled_from(("", "\n", " " * 40, "\n" * 17 + "x", "]", "[", "/", "'s", "don'"))


@given(
    st.lists(st.tuples(st.sampled_from("uuacs"), tricky, tricky), max_size=12),
    st.sampled_from(NAMES),
    st.sampled_from(COUNTERS),
)
def test_texts_with_unusual_edges_take_at_most_the_counted_tokens(
    turns: list[tuple[str, str, str]], name: str, counter: Counter
) -> None:
    messages: list[Raw] = []
    for kind, first, second in turns:
        if kind == "c":
            calling = calls("a", content=first)
            calling["tool_calls"][0]["function"] = {"name": second[:3], "arguments": second}
            messages += [calling, result("a", first)]
        else:
            messages.append({"u": user, "a": assistant, "s": system}[kind](first + second))
    rules = find_rules(name)
    sent = read_messages({"messages": apply_template(messages, rules)}, CHAT)
    planned = read_messages({"messages": messages}, CHAT)
    assert total(counter, sent) <= total(wrap_counter(counter, rules), planned)


@given(histories(), any_rules(), st.sampled_from(COUNTERS), policies, limits)
def test_a_plan_that_fits_still_fits_after_adapting(
    messages: list[Raw], rules: TemplateRules, counter: Counter, policy: str, limit: int
) -> None:
    planner = Planner(wrap_counter(counter, rules), Budget(limit, 0), resolve_policy(policy))
    planner.extend(read_messages({"messages": messages}, CHAT))
    try:
        plan = planner.plan()
    except ContextOverflowError:
        return
    sent = apply_template(openai_chat.apply_to_messages(messages, plan), rules)
    assert find_violation(sent, rules) is None
    assert total(counter, read_messages({"messages": sent}, CHAT)) <= plan.tokens <= limit


def test_permissive_rules_add_no_tokens() -> None:
    counter = counter_for("gpt-4o")
    assert wrap_counter(counter, PERMISSIVE) is counter


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_long_agent_run_is_not_overestimated_much(name: str) -> None:
    counter, rules = counter_for("gpt-4o"), find_rules(name)
    messages = [system(text(300)), user(text(40, 1))]
    for place in range(40):
        messages += [calls(f"call_{place}"), result(f"call_{place}", text(150, place))]
    planned = read_messages({"messages": messages}, CHAT)
    sent = read_messages({"messages": apply_template(messages, rules)}, CHAT)
    assert total(wrap_counter(counter, rules), planned) <= 1.06 * total(counter, sent)


def test_the_name_of_the_counter_includes_the_rules() -> None:
    counter = counter_for("gpt-4o")
    names = {wrap_counter(counter, find_rules(name)).name for name in NAMES}
    assert len(names) == len(NAMES)
    assert wrap_counter(counter, MISTRAL).uncertainty == counter.uncertainty
    assert wrap_counter(counter, MISTRAL).text("some words") == counter.text("some words")
    assert wrap_counter(counter, MISTRAL).tools([]) == 0


def test_a_count_is_exact_only_if_the_rules_add_nothing() -> None:
    counter = counter_for("gpt-4o")
    plain = read_messages({"messages": [HI, YES, AGAIN]}, CHAT)
    assert counter.exact(plain)
    assert wrap_counter(counter, LLAMA).exact(plain)
    assert not wrap_counter(counter, LLAMA).exact(read_messages({"messages": [HI, *STEP]}, CHAT))
    assert not wrap_counter(counter, MISTRAL).exact(plain)
    assert not wrap_counter(counter, GEMMA).exact(plain)
