"""Counts of whole requests: texts, and what templates and providers add."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.messages import Call, Media, Message
from brim.tokens import Counter, counter_for

messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    words=st.lists(st.text(max_size=40), max_size=3).map(tuple),
    outputs=st.lists(st.text(max_size=40), max_size=3).map(tuple),
    thinking=st.lists(st.text(max_size=40), max_size=2).map(tuple),
    calls=st.lists(
        st.builds(
            Call, id=st.just("call_1"), name=st.text(max_size=9), arguments=st.text(max_size=40)
        ),
        max_size=2,
    ).map(tuple),
    answers=st.none() | st.just("call_1"),
    media=st.lists(st.just(Media("image", 640, 480)), max_size=2).map(tuple),
    extras=st.lists(st.text(max_size=20), max_size=2).map(tuple),
)
models = st.sampled_from(
    ["gpt-4o", "gpt-4", "gpt-5", "claude-opus-5", "qwen3", "mistral-nemo", None]
)

COOKBOOK = [
    Message(
        "system",
        (
            "You are a helpful, pattern-following assistant that translates corporate jargon into"
            " plain English.",
        ),
    ),
    Message(
        "system", ("New synergies will help drive top-line growth.",), extras=("example_user",)
    ),
    Message(
        "system",
        ("Things working well together will increase revenue.",),
        extras=("example_assistant",),
    ),
    Message(
        "system",
        (
            "Let's circle back when we have more bandwidth to touch base on opportunities for"
            " increased leverage.",
        ),
        extras=("example_user",),
    ),
    Message(
        "system",
        ("Let's talk later when we're less busy about how to do better.",),
        extras=("example_assistant",),
    ),
    Message(
        "user",
        ("This late pivot means we don't have time to boil the ocean for the client deliverable.",),
    ),
]


def count_request(counter: Counter, history: list[Message]) -> int:
    return counter.overhead + sum(map(counter.message, history))


@pytest.mark.parametrize(
    ("model", "tokens"),
    [("gpt-3.5-turbo", 129), ("gpt-4-0613", 129), ("gpt-4o", 124), ("gpt-4o-mini", 124)],
)
def test_a_request_counts_what_openai_billed(model: str, tokens: int) -> None:
    counter = counter_for(model)
    assert count_request(counter, COOKBOOK) == tokens
    assert counter.exact(COOKBOOK, ())


def test_the_example_of_the_api_reference_has_its_count() -> None:
    hello = [Message("system", ("You are a helpful assistant.",)), Message("user", ("Hello!",))]
    assert count_request(counter_for("gpt-4o"), hello) == 19


def test_short_turns_are_not_free() -> None:
    counter = counter_for("gpt-4o")
    assert count_request(counter, [Message("user", ("yes",))] * 100) == 3 + 100 * 5


@given(messages, models)
def test_a_message_is_the_sum_of_its_parts(message: Message, model: str | None) -> None:
    counter = counter_for(model)
    structure = counter.message(message._replace(words=(), outputs=(), thinking=()))
    texts = (*message.words, *message.outputs, *message.thinking)
    assert counter.message(message) == structure + sum(map(counter.text, texts))


@given(messages, models, st.text(max_size=60))
def test_a_changed_output_changes_the_count_by_the_difference(
    message: Message, model: str | None, text: str
) -> None:
    counter = counter_for(model)
    before, after = message.with_outputs(("something",)), message.with_outputs((text,))
    difference = counter.text(text) - counter.text("something")
    assert counter.message(after) - counter.message(before) == difference


@given(messages, models)
def test_counts_are_never_zero_or_negative(message: Message, model: str | None) -> None:
    counter = counter_for(model)
    assert counter.message(message) >= 3
    assert counter.overhead >= 0
    assert 0 <= counter.uncertainty < 1


def test_a_call_counts_its_name_its_raw_arguments_and_ten() -> None:
    counter = counter_for("gpt-4o")
    arguments = '{"path": "a \\"quoted\\" name"}'
    message = Message("assistant", calls=(Call("call_1", "read", arguments),))
    assert counter.message(message) == 4 + counter.text("read") + counter.text(arguments) + 10


def test_long_arguments_count() -> None:
    counter = counter_for("gpt-4o")
    message = Message("assistant", calls=(Call("1", "write", "lorem ipsum " * 3_500),))
    assert counter.message(message) > 7_000


def test_ids_count_only_if_the_template_prints_them() -> None:
    result = Message("tool", outputs=("ok",), answers="abcdefghi")
    call = Message("assistant", calls=(Call("abcdefghi", "f", "{}"),))
    for message in (result, call):
        renamed = message._replace(
            answers=message.answers and "x",
            calls=tuple(replace(call, id="x") for call in message.calls),
        )
        openai, mistral = counter_for("gpt-4o"), counter_for("mistral-nemo")
        assert openai.message(message) == openai.message(renamed)
        assert mistral.message(message) > mistral.message(renamed)


def test_an_unknown_model_has_a_margin_for_tools() -> None:
    unknown, claude = counter_for("unheard-of"), counter_for("claude-opus-4-7")
    plain = unknown.tool_margin([], 8_000)
    tools = unknown.tool_margin([TOOL], 8_000)
    assert (plain, claude.tool_margin([TOOL], 8_000)) == (0, 0)
    assert 8_000 - tools <= (8_000 - 200 - unknown.tools([TOOL]) / 2) / 1.25
    assert unknown.tool_margin([TOOL] * 99, 400) < 400


@pytest.mark.parametrize("media", [Media("image"), Media("audio"), Media("file")])
def test_media_are_counted(media: Media) -> None:
    counter = counter_for("gpt-4o")
    plain, with_media = Message("user", ("look",)), Message("user", ("look",), media=(media,))
    assert counter.message(with_media) > counter.message(plain) + 50


TOOL = {
    "type": "function",
    "function": {"name": "größe", "parameters": {"type": "object", "properties": {}}},
}


def test_a_tool_counts_its_compact_json_and_sixteen() -> None:
    counter = counter_for("gpt-4o")
    definition = json.dumps(TOOL, ensure_ascii=False, separators=(",", ":"))
    assert counter.tools([]) == 0
    assert counter.tools([TOOL, TOOL]) == 2 * (counter.text(definition) + 16)


def test_claude_counts_the_hidden_prompt_about_tools() -> None:
    claude, gpt = counter_for("claude-opus-4-7"), counter_for("gpt-4o")
    assert 804 <= claude.tools([TOOL]) - gpt.tools([TOOL]) < 840
    assert claude.tools([]) == 0


@pytest.mark.parametrize(
    ("message", "exact"),
    [
        (Message("user", ("hello",)), True),
        (Message("user", ("hello",), extras=("Ada",)), True),
        (Message("user", ("hello",), extras=('{"type":"video"}',)), False),
        (Message("user", ("hello", "again")), False),
        (Message("assistant", ("hello",), thinking=("hm",)), False),
        (Message("user", ("hello",), media=(Media("image", 10, 10),)), False),
        (Message("assistant", calls=(Call("1", "f", "{}"),)), False),
        (Message("tool", outputs=("done",), answers="1"), False),
    ],
)
def test_only_plain_turns_are_exact(message: Message, exact: bool) -> None:
    assert counter_for("gpt-4o").exact([message], ()) is exact


@pytest.mark.parametrize("model", ["claude-opus-5", "qwen3", "smollm2", "gpt-6-sol", None])
def test_exact_requires_the_own_vocabulary_and_a_known_template(model: str | None) -> None:
    assert not counter_for(model).exact([Message("user", ("hello",))], ())


def test_a_request_with_tools_is_not_exact() -> None:
    assert not counter_for("gpt-4o").exact([Message("user", ("hello",))], [TOOL])
