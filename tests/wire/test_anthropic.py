"""Anthropic messages: reading bodies and writing them back."""

from __future__ import annotations

from typing import Any

import pytest

import brim
from brim.fitting.policies import PolicyName
from brim.messages import Call, Media
from brim.wire.formats import ANTHROPIC, detect_format, read_messages
from tests.support.strategies import Raw, text
from tests.support.wire.bodies import MARK, PIXEL, find_anthropic_violations
from tests.support.wire.trims import MODEL, drop_thinking, drop_units, output, trim_body

LONG = text(300, 1)


def user(*content: Any, **more: Any) -> Raw:
    value = content[0] if len(content) == 1 and isinstance(content[0], str) else list(content)
    return {"role": "user", "content": value, **more}


def assistant(*content: Any, **more: Any) -> Raw:
    return user(*content, **more) | {"role": "assistant"}


def text_block(words: str, **more: Any) -> Raw:
    return {"type": "text", "text": words, **more}


def thinking_block(words: str) -> Raw:
    return {"type": "thinking", "thinking": words, "signature": f"signed {words[:9]}"}


def call_block(name: str, **more: Any) -> Raw:
    return {"type": "tool_use", "id": name, "name": "run", "input": {"a": [1]}, **more}


def result(name: str, content: Any = "done", **more: Any) -> Raw:
    return {"type": "tool_result", "tool_use_id": name, "content": content, **more}


def body(*messages: Raw, **more: Any) -> Raw:
    return {"max_tokens": 1, "anthropic_version": "x", "messages": list(messages), **more}


IMAGE: Raw = {"type": "image", "source": {"type": "base64", "data": PIXEL}}


# Reading


def test_results_and_text_of_one_message_are_separate_turns() -> None:
    turns = read_messages(
        body(
            user("go"),
            assistant(call_block("a"), call_block("b")),
            user(result("b", "two"), result("a", "one"), text_block("now this"), IMAGE),
            system="Be brief.",
        ),
        ANTHROPIC,
    )
    assert [turn.role for turn in turns] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert [turn.answers for turn in turns[3:5]] == ["b", "a"]
    assert turns[4].outputs == ("one",)
    assert turns[5].words == ("now this",)
    assert turns[5].media == (Media("image", 1, 1, size=72),)
    assert turns[2].calls == (Call("a", "run", '{"a":[1]}'), Call("b", "run", '{"a":[1]}'))


def test_text_before_the_results_is_a_turn_after_them() -> None:
    given = body(user("go"), assistant(call_block("a")), user(text_block("see"), result("a")))
    assert [turn.role for turn in read_messages(given, ANTHROPIC)] == [
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert not brim.fit(given, model=MODEL, window=9_999).plan.warnings


def test_media_and_documents() -> None:
    (turn,) = read_messages(
        body(
            user(
                {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
                {"type": "image", "source": {"type": "file", "file_id": "f"}},
                {"type": "document", "source": {"type": "base64", "data": "abcd" * 100}},
                {"type": "document", "source": {"type": "text", "data": "plain words"}},
            )
        ),
        ANTHROPIC,
    )
    assert turn.media == (Media("image"), Media("image"), Media("file", size=300))
    assert len(turn.extras) == 1
    assert "plain words" in turn.extras[0]


def test_thinking_counts_its_text_and_a_part_of_its_signature() -> None:
    shown = assistant(thinking_block("I see"), text_block("ok"))
    hidden = assistant(
        {"type": "thinking", "thinking": "", "signature": "x" * 300}, text_block("ok")
    )
    redacted = assistant({"type": "redacted_thinking", "data": "x" * 300}, text_block("ok"))
    turns = read_messages(body(shown, hidden, redacted), ANTHROPIC)
    assert [turn.thinking for turn in turns] == [("I see",), ("x" * 100,), ("x" * 100,)]


def test_system_is_text_or_blocks() -> None:
    blocks = [text_block("one", cache_control=MARK), text_block("two")]
    assert read_messages(body(system=blocks), ANTHROPIC)[0].words == ("one", "two")
    assert read_messages(body(system=""), ANTHROPIC) == []


def test_text_blocks_are_text_with_or_without_a_cache_mark() -> None:
    given = body(
        user("a"),
        assistant(text_block("b", cache_control=MARK), text_block("")),
        user(text_block("c")),
    )
    turns = read_messages(given, ANTHROPIC)
    assert [turn.role for turn in turns] == ["user", "assistant", "user"]
    assert [turn.words for turn in turns] == [("a",), ("b", ""), ("c",)]
    assert all(turn.is_text_only and not turn.private for turn in turns)


def test_a_reader_continues_where_it_stopped() -> None:
    reader, given = ANTHROPIC.create_reader(), body(system="Be brief.")
    heads = reader.read(given), reader.read(given)
    assert [[turn.words for turn in turns or ()] for turns in heads] == [[("Be brief.",)], []]
    given["messages"] += [user("a"), user(text_block("b", _pin=True))]
    grown = reader.read(given), reader.read(given)
    assert [[turn.pin for turn in turns or ()] for turns in grown] == [[False, True], []]


def test_earlier_thinking_is_read_again_when_text_closes_its_step() -> None:
    step = [assistant(thinking_block("I see"), call_block("a")), user(result("a"))]
    reader, given = ANTHROPIC.create_reader(), body(user("go"), assistant("yes"), *step)
    assert reader.read(given)
    given["messages"].append({"role": "system", "content": "hush"})
    assert reader.read(given)
    given["messages"].append(user("on"))
    assert reader.read(given) is None
    assert read_messages(given, ANTHROPIC)[2].words == ("I see", "")


def test_a_pin_on_a_block_pins_only_its_turn() -> None:
    pinned = result("a", _pin=True, _priority=2)
    turns = read_messages(
        body(assistant(call_block("a")), user(pinned, text_block("go on"))), ANTHROPIC
    )
    assert [(turn.pin, turn.priority) for turn in turns] == [(False, 0), (True, 2), (False, 0)]
    turns = read_messages(
        body(user(result("a"), text_block("go on"), _pin=True, _priority=-1)), ANTHROPIC
    )
    assert [(turn.pin, turn.priority) for turn in turns] == [(True, -1), (True, -1)]


def test_a_compaction_is_pinned() -> None:
    compaction = {"type": "compaction", "content": "what was before"}
    (turn,) = read_messages(body(assistant(compaction, text_block("yes"))), ANTHROPIC)
    assert turn.pin


def test_a_program_and_the_calls_it_makes_are_one_turn() -> None:
    by_program = {"caller": {"type": "code_execution_20250825", "tool_id": "srv"}}
    served = {"type": "server_tool_use", "id": "srv", "name": "code_execution", "input": {}}
    ended = {"type": "code_execution_tool_result", "tool_use_id": "srv", "content": {}}
    given = body(
        user("go"),
        assistant(served, call_block("a", **by_program)),
        user(result("a")),
        assistant(call_block("b", **by_program)),
        user(result("b")),
    )
    turns = read_messages(given, ANTHROPIC)
    assert [turn.role for turn in turns] == ["user", "assistant", "tool"]
    assert [call.id for call in turns[1].calls] == ["b"]
    given["messages"] += [assistant(ended, text_block("seven")), user(LONG)]
    assert [turn.role for turn in read_messages(given, ANTHROPIC)] == ["user", "assistant", "user"]
    assert trim_body(given, drop_units(1)).messages[0] is given["messages"][0]
    assert len(trim_body(given, drop_units(1)).messages) == 3, (
        "what stands between the users is a note"
    )


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("hello", "must be a mapping, but is a str"),
        ({"content": "hello"}, "has no role"),
        ({"role": "user", "content": 7}, "content must be text or a list, but is an int"),
        ({"role": "user", "content": [object()]}, "part 0 of content must be a mapping"),
        ({"role": "user", "content": [result("a", 7)]}, "content must be text or a list"),
        ({"role": "user", "content": "x", "_priority": "high"}, "_priority must be a whole number"),
    ],
)
def test_the_error_names_an_invalid_message(message: Any, reason: str) -> None:
    with pytest.raises(brim.MessageError, match=reason) as caught:
        read_messages(body(user("go"), message), ANTHROPIC)
    assert caught.value.index == 1


def test_the_error_names_a_message_that_contains_itself() -> None:
    ring: Raw = {"type": "odd"}
    ring["ring"] = ring
    with pytest.raises(brim.MessageError, match="message 1: contains itself"):
        read_messages(body(user("go"), user(ring)), ANTHROPIC)


# Results and user text in one message


def agent(*outputs: str, beside: str = "go on") -> Raw:
    """An agent whose client adds text after each result."""
    messages = [user("go")]
    for number, content in enumerate(outputs):
        messages.append(assistant(call_block(f"t{number}")))
        messages.append(user(result(f"t{number}", content), text_block(beside)))
    return body(*messages)


def fit_limited(given: Raw, limit: int, policy: PolicyName = "steady") -> brim.Request:
    return brim.fit(given, model=MODEL, window=limit + 1, reply=1, policy=policy)


@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
def test_the_newest_results_are_trimmed_last_even_with_text_after_them(policy: PolicyName) -> None:
    given = agent(*(text(300, seed) for seed in range(5)), text(900, 7))
    *_, step, last = given["messages"]
    least = int(brim.count(body(step, last), model=MODEL)) + 300
    most = int(brim.count(given, model=MODEL)) - 1
    for limit in range(most, least, -700):
        request = fit_limited(given, limit, policy)
        assert request.plan.is_trimmed
        assert request.messages[-2] is step
        assert request.messages[-1] is last


@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
def test_as_a_last_resort_they_are_clipped_and_the_text_stays_whole(policy: PolicyName) -> None:
    given = agent(*(text(300, seed) for seed in range(5)), text(900, 7))
    request = fit_limited(given, 500, policy)
    clipped, words = request["messages"][-1]["content"]
    assert request.messages[-2] is given["messages"][-2]
    assert words is given["messages"][-1]["content"][1]
    assert "brim" in clipped["content"]
    assert request.plan.tokens > 400, "no more is cut than has to be"
    assert not find_anthropic_violations(request)


def test_a_step_is_open_until_another_turn_follows() -> None:
    given = agent(text(900, 1))
    given["messages"] += [assistant("I see."), user("so?")]
    request = fit_limited(given, 400)
    assert request.messages[-1] is given["messages"][-1]
    assert given["messages"][2] not in request.messages


def test_the_overflow_error_lists_text_and_step_by_size() -> None:
    given = agent("done", beside=text(400, 3))
    with pytest.raises(brim.ContextOverflowError) as caught:
        fit_limited(given, 200)
    parts = caught.value.parts
    assert parts["last user"] > 400
    assert parts["open step"] > 0
    assert parts["pins"] == 0


def test_with_text_after_every_result_the_prefix_changes_only_at_trims() -> None:
    outputs = [text(150 + 40 * (seed % 3), seed) for seed in range(30)]
    before: list[Any] = []
    changes = 0
    for end in range(1, len(outputs) + 1):
        request = fit_limited(agent(*outputs[:end]), 3_000)
        changes += request.messages[: len(before)] != before
        before = list(request.messages)
    tokens = int(brim.count(agent(*outputs), model=MODEL))
    assert request.plan.is_trimmed
    assert changes <= 1 + tokens / 300, "the low-water mark is 10 % below such a small limit"


# Writing


def test_a_step_is_dropped_and_the_text_in_the_same_message_stays() -> None:
    words = text_block("now this", cache_control=MARK)
    step = assistant(text_block("I look"), call_block("a")), user(result("a", LONG), words)
    given = body(user("go"), *step, assistant("yes"), user("then"))
    out = trim_body(given, drop_units(1))["messages"]
    assert [message["role"] for message in out] == ["user", "assistant"] * 2 + ["user"]
    assert out[1]["content"].startswith("[brim: 2 messages")
    assert out[2] == {"role": "user", "content": [words]}
    assert out[2]["content"][0] is words


def test_text_is_dropped_and_the_results_in_the_same_message_stay() -> None:
    given = body(
        user("go"),
        assistant(call_block("a")),
        user(result("a"), text_block(LONG)),
        assistant(call_block("b")),
        user(result("b"), text_block("then")),
        assistant("yes"),
        user("and?"),
    )
    out = trim_body(given, drop_units(2))["messages"]
    assert out[2] == user(result("a"))
    assert out[2]["content"][0] is given["messages"][2]["content"][0]
    assert not find_anthropic_violations({"messages": out})


def test_text_that_follows_results_after_a_trim_joins_their_message() -> None:
    given = body(
        user("go"),
        assistant(call_block("a")),
        user(result("a")),
        assistant(text_block(LONG)),
        user("and now?"),
    )
    out = trim_body(given, drop_units(2)).messages
    assert out[2:] == [user(result("a"), text_block("and now?"))]
    messages = trim_body(given, drop_units(2), notes=True)["messages"]
    assert messages[2]["content"][1] == text_block("and now?")
    assert messages[2]["content"][0]["content"].startswith("done\n\n[brim: 1 message ")


def test_adjacent_messages_of_the_input_are_not_merged() -> None:
    given = body(
        user("go"),
        assistant(text_block(LONG)),
        user("then"),
        assistant(call_block("a")),
        user(result("a")),
        user("and now?"),
    )
    out = trim_body(given, drop_units(1)).messages
    assert out[-2:] == given["messages"][-2:]
    assert out[-1] is given["messages"][-1]


def test_a_clipped_result_keeps_its_other_fields_and_blocks() -> None:
    blocks = [
        text_block("first " + LONG, cache_control=MARK),
        IMAGE,
        text_block("last"),
        {"type": "odd"},
    ]
    given = body(
        user("go"),
        assistant(call_block("a"), call_block("b")),
        user(result("a"), result("b", blocks, is_error=True, cache_control=MARK, x=1)),
    )
    out = trim_body(given, output(3, "short"))["messages"]
    assert out[2]["content"][0] is given["messages"][2]["content"][0]
    assert out[2]["content"][1] == result(
        "b",
        [text_block("short", cache_control=MARK), IMAGE, {"type": "odd"}],
        is_error=True,
        cache_control=MARK,
        x=1,
    )


def test_an_empty_block_is_kept() -> None:
    odd = user(result("a"), {})
    given = body(user("go"), assistant(call_block("a")), odd, assistant(LONG), user("then"))
    assert trim_body(given, drop_units(3)).messages[2] is odd


@pytest.mark.parametrize("content", [LONG, [text_block(LONG)]])
def test_an_emptied_result_is_no_longer_an_error(content: Any) -> None:
    given = body(user("go"), assistant(call_block("a")), user(result("a", content, is_error=True)))
    out = trim_body(given, output(2, "")).messages
    assert out[2] == user(result("a", ""))


def test_a_note_is_the_last_paragraph_of_the_turn_before_the_gap() -> None:
    def add_note(*before: Raw) -> Any:
        given = body(user("go"), *before, user(text_block(LONG)), assistant("yes"), user("then"))
        return trim_body(given, drop_units(2, 3), notes=True).messages[len(before)]["content"]

    note = "[brim: 2 messages (about "
    blocks = add_note(assistant(text_block("one", cache_control=MARK)))
    assert blocks[0]["text"].startswith("one\n\n" + note)
    assert blocks[0]["cache_control"] == MARK
    assert add_note(assistant("one")).startswith("one\n\n" + note)
    assert add_note(assistant({"type": "odd"}))[1]["text"].startswith(note)
    assert add_note(assistant(thinking_block("hm")))[1]["text"].startswith(note)
    assert add_note(assistant(call_block("a")), user(result("a")))[0]["content"].startswith(
        "done\n\n" + note
    )
    bare = {"type": "tool_result", "tool_use_id": "a"}
    assert add_note(assistant(call_block("a")), user(bare))[0]["content"].startswith(note)
    pictures = add_note(assistant(call_block("a")), user(result("a", [IMAGE])))[0]["content"]
    assert pictures[0] == IMAGE
    assert pictures[1]["text"].startswith(note)


def test_old_thinking_is_dropped_and_that_of_the_open_step_stays() -> None:
    redacted = {"type": "redacted_thinking", "data": "x" * 900}
    old = assistant(redacted, thinking_block(LONG), text_block("one"), call_block("a"))
    new = assistant(thinking_block(text(200, 5)), text_block("two"), call_block("b"))
    given = body(user("go"), old, user(result("a")), new, user(result("b")))
    total = brim.count(given, model=MODEL)
    request = brim.fit(given, model=MODEL, window=int(total) - 300, reply=1, policy="sliding")
    assert request.messages[1] == assistant(text_block("one"), call_block("a"))
    assert request.messages[3] is new


def test_thinking_stays_if_results_and_text_share_a_message() -> None:
    step = assistant(thinking_block(LONG), text_block("one"), call_block("a"))
    given = body(user("go"), step, user(result("a", LONG), text_block("go on")))
    total = brim.count(given, model=MODEL)
    request = brim.fit(given, model=MODEL, window=int(total) - 100, reply=1)
    assert request.plan.is_trimmed
    assert request.messages[1] is step


def test_thinking_that_is_the_whole_message_stays() -> None:
    alone = assistant(thinking_block(LONG))
    assert read_messages(body(alone), ANTHROPIC)[0].thinking == ()
    given = body(
        user("go"),
        alone,
        user("and?"),
        assistant(thinking_block(LONG), text_block("yes")),
        user("so"),
    )
    out = trim_body(given, drop_thinking(3)).messages
    assert out[1] is alone
    assert out[3] == assistant(text_block("yes"))


def test_private_fields_are_removed_everywhere() -> None:
    given = body(
        user("go", _pin=True),
        user(text_block("this", _priority=1), text_block("that")),
        assistant(text_block("yes")),
        system=[text_block("Be brief.", _note=1)],
    )
    out = brim.fit(given, model=MODEL, window=9_999)
    assert out["messages"][:2] == [user("go"), user(text_block("this"), text_block("that"))]
    assert out["messages"][2] is given["messages"][2]
    assert out["system"] == [text_block("Be brief.")]
    assert given["messages"][0]["_pin"]


def test_max_tokens_is_lowered_to_the_room_but_not_below_the_thinking() -> None:
    given = body(user(LONG), max_tokens=5_000)
    out = brim.fit(given, model=MODEL, window=1_500, reply=200)
    assert out["max_tokens"] == 1_500 - out.plan.tokens
    given["thinking"] = {"type": "enabled", "budget_tokens": 2_000}
    assert brim.fit(given, model=MODEL, window=1_500, reply=200)["max_tokens"] == 2_001


def test_a_trim_does_not_change_the_detected_format() -> None:
    step = assistant(call_block("a")), user(result("a", LONG), text_block("on"))
    given = {"messages": [user("go"), *step, assistant("yes"), user("then")]}
    assert detect_format(given) is ANTHROPIC
    request = trim_body(given, drop_units(1))
    assert brim.count(dict(request)) == request.plan.tokens
