"""Turns in the chat shape, converted to bodies of the other two formats."""

from __future__ import annotations

import copy
import json
from functools import cache
from itertools import groupby
from typing import Any

import anthropic
import openai.types.responses
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from brim.messages import Message
from brim.wire import formats, openai_chat
from brim.wire.formats import detect_format, read_messages
from brim.wire.notes import CONVERSATION_CONTINUES, NO_RESULT
from brim.wire.reply_parser import parse_reply
from brim.wire.to_anthropic import add_cache_marks, find_message_index
from tests.support.strategies import Raw, histories, history
from tests.support.wire.bodies import PIXEL, find_anthropic_violations
from tests.support.wire.replies import ANTHROPIC, BLOCKS, ITEMS, RESPONSE

MARK = {"type": "ephemeral"}


@cache
def find_library_type(name: str) -> TypeAdapter[Any]:
    """Return the validator of a parameter type of the provider's own library."""
    types: Any = openai.types.responses if name.startswith("Response") else anthropic.types
    return TypeAdapter(getattr(types, name))


def messages_body(messages: list[Raw], tools: Any = None, **options: Any) -> dict[str, Any]:
    return formats.ANTHROPIC.build(
        messages, model="claude-sonnet-4-5", reply=100, tools=tools, options=options
    )


def responses_body(messages: list[Raw], tools: Any = None, **options: Any) -> dict[str, Any]:
    return formats.RESPONSES.build(
        messages, model="gpt-5-mini", reply=100, tools=tools, options=options
    )


# Properties of every history


def has_content(message: Message) -> bool:
    """Whether a turn has anything that can be sent."""
    has_words = any(text.strip() for text in (*message.words, *message.extras))
    return has_words or bool(message.calls or message.media) or message.role == "tool"


def roles(turns: list[Message]) -> list[str]:
    return [role for role, _ in groupby(turn.role for turn in turns)]


def calls(turns: list[Message]) -> list[tuple[str, Any]]:
    return [
        (call.name, json.loads(call.arguments, strict=False))
        for turn in turns
        for call in turn.calls
    ]


def results(turns: list[Message]) -> list[tuple[Any, str]]:
    """Return every result with the arguments of its call."""
    found: list[tuple[Any, str]] = []
    waiting: dict[str | None, str] = {}
    for turn in turns:
        if turn.role == "assistant":
            waiting = {call.id: call.arguments for call in turn.calls}
        elif turn.role == "tool":
            arguments = json.loads(waiting[turn.answers], strict=False)
            found.append((arguments, "".join(text for text in turn.outputs if is_own(text))))
    return found


def words(turns: list[Message]) -> list[str]:
    return [text for turn in turns for text in turn.words if is_own(text)]


def is_own(text: str) -> bool:
    """Whether a text is original, not a placeholder."""
    titles = (CONVERSATION_CONTINUES, "[system]", "[developer]")
    return bool(text.strip()) and text not in titles and not text.startswith(("[im", '{"type":'))


@given(histories())
def test_every_history_becomes_a_valid_anthropic_body(messages: list[Raw]) -> None:
    before = copy.deepcopy(messages)
    body = messages_body(messages)
    violations = [violation for violation in find_anthropic_violations(body) if violation]
    assert not violations
    assert messages == before
    if messages and body["messages"]:
        last = body["messages"][-1]
        assert last["role"] == "user" or last["content"][-1]["text"][-1].strip()
    for message in body["messages"]:
        for block in message["content"]:
            find_library_type("ContentBlockParam").validate_python(block)


@given(histories(faults=False))
def test_an_anthropic_body_has_all_the_text_of_the_chat(messages: list[Raw]) -> None:
    chat = [
        turn for turn in read_messages({"messages": messages}, formats.CHAT) if has_content(turn)
    ]
    body = messages_body(messages)
    built = read_messages(body, formats.ANTHROPIC)
    assert calls(built) == calls(chat)
    assert results(built) == results(chat)
    built_words = [text.rstrip() for text in words(built)]
    assert built_words == [text.rstrip() for text in words(chat)]


@given(histories(faults=False, marks=False))
def test_an_anthropic_body_keeps_the_order_of_roles(messages: list[Raw]) -> None:
    messages = [turn for turn in messages if turn["role"] not in ("system", "developer")]
    chat = [
        turn for turn in read_messages({"messages": messages}, formats.CHAT) if has_content(turn)
    ]
    built = read_messages(messages_body(messages), formats.ANTHROPIC)
    opening = ["user"] if chat and chat[0].role == "assistant" else []
    assert roles(built) == opening + roles(chat)


@given(histories())
def test_every_history_becomes_a_valid_responses_body(messages: list[Raw]) -> None:
    before = copy.deepcopy(messages)
    items = responses_body(messages)["input"]
    assert messages == before
    make_call: list[str] = []
    answered: list[str] = []
    for item in items:
        find_library_type("ResponseInputItemParam").validate_python(item)
        assert not any(key.startswith("_") for key in item)
        if item.get("type") == "function_call":
            make_call.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            assert item["call_id"] in make_call
            answered.append(item["call_id"])
    assert sorted(make_call) == sorted(answered) == sorted(set(make_call))


@given(histories(faults=False))
def test_a_responses_body_has_all_the_text_of_the_chat(messages: list[Raw]) -> None:
    head = next(
        (at for at, turn in enumerate(messages) if turn["role"] not in ("system", "developer")),
        len(messages),
    )
    chat = read_messages({"messages": messages[head:]}, formats.CHAT)
    body = responses_body(messages)
    built = read_messages({"input": body["input"]}, formats.RESPONSES)
    assert calls(built) == calls(chat)
    assert results(built) == results(chat)
    assert words(built) == words(chat)
    filled = [turn for turn in chat if has_content(turn)]
    assert roles(built) == roles(filled)
    system_texts = words(read_messages({"messages": messages[:head]}, formats.CHAT))
    assert all(text in body.get("instructions", "") for text in system_texts)


@given(histories())
def test_a_longer_history_has_the_same_prefix(messages: list[Raw]) -> None:
    """Messages that were sent before do not change when others follow them."""
    whole = messages_body(messages)["messages"]
    prefix = messages_body(messages[: len(messages) // 2])["messages"]
    assert prefix[:-2] == whole[: max(len(prefix) - 2, 0)]


@given(histories(faults=False))
def test_a_turn_is_found_in_its_message(messages: list[Raw]) -> None:
    body = messages_body(messages)
    for index, turn in enumerate(messages):
        place = find_message_index(messages, index)
        if turn["role"] == "tool" and isinstance(turn["content"], str):
            assert place is not None
            shown = body["messages"][place]["content"]
            texts = [block.get("content") for block in shown]
            assert turn["content"] in texts or not turn["content"].strip()


# Turns, one by one


def test_a_built_body_is_detected_as_anthropic() -> None:
    body = messages_body(history("s2 u2 cc3 r4 r5 a2 u1"), temperature=0.5)
    assert detect_format(body) is formats.ANTHROPIC
    assert list(body) == ["model", "max_tokens", "system", "messages", "temperature"]
    assert [message["role"] for message in body["messages"]] == [
        *("user", "assistant", "user", "assistant", "user"),
    ]
    assert [block["type"] for block in body["messages"][2]["content"]] == ["tool_result"] * 2


def test_adjacent_turns_are_one_message_with_results_first() -> None:
    messages: list[Raw] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "a", "tool_calls": [make_call("x")]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "two"},
        {"role": "tool", "tool_call_id": "x", "content": "out"},
        {"role": "system", "content": "now"},
    ]
    sent = messages_body(messages)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert [block["type"] for block in sent[1]["content"]] == ["text", "tool_use", "text"]
    assert sent[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "x", "content": "out"},
        {"type": "text", "text": "two"},
        {"type": "text", "text": "[system]"},
        {"type": "text", "text": "now"},
    ]


def make_call(name: str, arguments: str = "{}", tool: str = "run") -> Raw:
    return {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ("", {}),
        ('{"a": ', {"_raw": '{"a": '}),
        ("[1]", {"_raw": "[1]"}),
        ("ls -l", {"_raw": "ls -l"}),
    ],
)
def test_arguments_are_always_an_object(arguments: str, sent: Raw) -> None:
    turn = {"role": "assistant", "content": None, "tool_calls": [make_call("x", arguments)]}
    block = messages_body([turn])["messages"][1]["content"][0]
    assert block == {"type": "tool_use", "id": "x", "name": "run", "input": sent}
    item = responses_body([turn])["input"][0]
    assert item["arguments"] == arguments


def test_only_invalid_ids_are_changed() -> None:
    def step(name: str) -> list[Raw]:
        return [
            {"role": "assistant", "content": None, "tool_calls": [make_call(name, tool="a.b")]},
            {"role": "tool", "tool_call_id": name, "content": "out"},
        ]

    names = ["toolu_01-a", "functions.run:0", "toolu_01-a", "x" * 80, "x" * 79 + "y"]
    messages = [turn for name in names for turn in step(name)]
    built = read_messages(messages_body(messages), formats.ANTHROPIC)
    sent = [call.id for turn in built for call in turn.calls]
    assert sent == ["toolu_01-a", "functions_run_0", "toolu_01-a_2", *names[3:]]
    assert [turn.answers for turn in built if turn.role == "tool"] == sent
    assert {call.name for turn in built for call in turn.calls} == {"a_b"}
    built = read_messages(responses_body(messages), formats.RESPONSES)
    sent = [call.id for turn in built for call in turn.calls]
    assert sent[:3] == ["toolu_01-a", "functions.run:0", "toolu_01-a_2"]
    assert max(map(len, sent)) <= 64
    assert len(set(sent)) == len(sent)
    assert [turn.answers for turn in built if turn.role == "tool"] == sent


def test_open_calls_and_orphaned_results_become_text() -> None:
    messages: list[Raw] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [make_call("x"), make_call("y")]},
        {"role": "tool", "tool_call_id": "y", "content": "out"},
        {"role": "tool", "tool_call_id": "z", "content": "lost"},
    ]
    sent = messages_body(messages)["messages"][2]["content"]
    assert [block.get("tool_use_id") for block in sent] == ["y", "x", None, None]
    assert sent[1]["content"] == NO_RESULT
    assert [block["text"] for block in sent[2:]] == ["[result]", "lost"]
    items = responses_body(messages)["input"]
    assert [item.get("output") for item in items[3:]] == [NO_RESULT, "out", None]
    assert [part["text"] for part in items[5]["content"]] == ["[result]", "lost"]


URL = f"data:image/png;base64,{PIXEL}"
PDF = "data:application/pdf;base64,JVBERi0="


@pytest.mark.parametrize(
    ("part", "block", "item"),
    [
        (
            {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
            },
            {"type": "input_image", "image_url": URL, "detail": "low"},
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://a/b.png"}},
            {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}},
            {"type": "input_image", "image_url": "https://a/b.png"},
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}},
            {"type": "text", "text": "[image: not supported by this model]"},
            {"type": "input_image", "image_url": "data:image/tiff;base64,AAAA"},
        ),
        (
            {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
            {
                "type": "document",
                "source": {
                    "type": "base64",
                    "media_type": "application/pdf",
                    "data": "JVBERi0=",
                },
                "title": "a.pdf",
            },
            {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"type": "text", "text": "[audio: not supported by this model]"},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        ),
        (
            {"type": "odd", "value": [1]},
            {"type": "text", "text": '{"type":"odd","value":[1]}'},
            {"type": "input_text", "text": '{"type":"odd","value":[1]}'},
        ),
        (
            {"type": "text", "text": "a", "cache_control": MARK, "_pin": True},
            {"type": "text", "text": "a", "cache_control": MARK},
            {"type": "input_text", "text": "a"},
        ),
    ],
)
def test_parts_are_converted_or_become_text(part: Raw, block: Raw, item: Raw) -> None:
    messages = [{"role": "user", "content": [part]}]
    assert messages_body(messages)["messages"][0]["content"] == [block]
    assert responses_body(messages)["input"][0]["content"] == [item]
    find_library_type("ContentBlockParam").validate_python(block)


def test_names_of_speakers_are_kept() -> None:
    messages = [{"role": "user", "name": "Ada", "content": "hi"}]
    assert words(read_messages(messages_body(messages), formats.ANTHROPIC)) == ["[name: Ada]", "hi"]
    assert words(read_messages(responses_body(messages), formats.RESPONSES)) == [
        "[name: Ada]",
        "hi",
    ]


TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run it.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def test_tools_are_converted() -> None:
    function = TOOL["function"]
    assert isinstance(function, dict)
    native = {"type": "bash_20250124", "name": "bash"}
    bare = {"type": "function", "function": {"name": "bare"}}
    tools = messages_body([], tools=[TOOL, native, bare])["tools"]
    assert tools == [
        {"name": "run", "description": "Run it.", "input_schema": function["parameters"]},
        native,
        {"name": "bare", "input_schema": {"type": "object"}},
    ]
    find_library_type("ToolParam").validate_python(tools[0])
    search = {"type": "web_search"}
    custom = {"type": "custom", "custom": {"name": "sql"}}
    assert responses_body([], tools=[TOOL, search, custom])["tools"] == [
        {"type": "function", **function, "strict": False},
        search,
        {"type": "custom", "name": "sql"},
    ]


# Turns that came from the provider


def turn_of(response: Raw) -> Raw:
    return dict(parse_reply(response).message)


def anthropic_blocks(turn: Raw) -> list[Raw]:
    messages: list[Raw] = [{"role": "user", "content": "go"}, turn]
    blocks: list[Raw] = messages_body(messages)["messages"][1]["content"]
    return blocks


def without_thinking(turn: Raw) -> Raw:
    """Return the turn as the engine does when it drops the thinking."""
    seen = openai_chat.read_message(turn, 0)
    cut = openai_chat.rewrite_message(turn, seen, seen.without_thinking())
    return cut | {key: turn[key] for key in turn if key.startswith("_")}


def test_original_blocks_are_sent_back() -> None:
    assert anthropic_blocks(turn_of(ANTHROPIC)) == BLOCKS


def test_trimmed_thinking_is_not_sent_back() -> None:
    assert anthropic_blocks(without_thinking(turn_of(ANTHROPIC))) == BLOCKS[2:]


def test_encrypted_thinking_is_kept_until_it_is_trimmed() -> None:
    hidden = {"type": "thinking", "thinking": "", "signature": "c2ln" * 9}
    turn = turn_of(ANTHROPIC | {"content": [hidden, BLOCKS[2]]})
    assert anthropic_blocks(turn) == [hidden, BLOCKS[2]]
    assert anthropic_blocks(without_thinking(turn)) == [BLOCKS[2]]


def test_changed_text_replaces_the_blocks() -> None:
    turn = turn_of(ANTHROPIC) | {"content": "Let me look.\n\n[a note]"}
    note = {"type": "text", "text": "Let me look.\n\n[a note]"}
    assert anthropic_blocks(turn) == [*BLOCKS[:2], note, BLOCKS[3]]
    assert anthropic_blocks(turn | {"content": None}) == [*BLOCKS[:2], BLOCKS[3]]
    wordless = turn_of(ANTHROPIC | {"content": [BLOCKS[0], BLOCKS[3]]})
    assert anthropic_blocks(wordless | {"content": "new"}) == [
        *(BLOCKS[0], {"type": "text", "text": "new"}, BLOCKS[3]),
    ]


def test_changed_calls_replace_the_blocks() -> None:
    turn = turn_of(ANTHROPIC) | {"tool_calls": [make_call("toolu_1", '{"path": "z"}', "read")]}
    assert anthropic_blocks(turn)[-1] == BLOCKS[3] | {"input": {"path": "z"}}
    assert anthropic_blocks(turn | {"tool_calls": []}) == BLOCKS[:3]


def test_blank_text_and_trailing_thinking_are_dropped() -> None:
    blank = {"type": "text", "text": "\n\n"}
    turn = turn_of(ANTHROPIC | {"content": [BLOCKS[0], blank, BLOCKS[3]]})
    assert anthropic_blocks(turn) == [BLOCKS[0], BLOCKS[3]]
    turn = turn_of(ANTHROPIC | {"content": [BLOCKS[2], BLOCKS[0]]})
    assert anthropic_blocks(turn) == [BLOCKS[2]]


def test_blocks_of_server_side_tools_are_sent_back() -> None:
    search = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
    ]
    content = [*search, BLOCKS[2]]
    assert anthropic_blocks(turn_of(ANTHROPIC | {"content": content})) == content


def responses_items(turn: Raw, **options: Any) -> list[Raw]:
    messages: list[Raw] = [{"role": "user", "content": "go"}, turn]
    items: list[Raw] = responses_body(messages, **options)["input"]
    assert items[-1]["output"] == NO_RESULT
    return items[1:-1]


def bare(item: Raw) -> Raw:
    return {key: value for key, value in item.items() if key != "id"}


def test_original_items_are_sent_back() -> None:
    assert responses_items(turn_of(RESPONSE)) == ITEMS
    assert responses_items(turn_of(RESPONSE), store=False) == ITEMS


def test_items_without_their_reasoning_have_no_id() -> None:
    cut = [bare(item) for item in ITEMS[1:]]
    assert responses_items(without_thinking(turn_of(RESPONSE))) == cut
    unsigned = {key: value for key, value in ITEMS[0].items() if key != "encrypted_content"}
    turn = turn_of(RESPONSE | {"output": [unsigned, *ITEMS[1:]]})
    assert responses_items(turn) == [unsigned, *ITEMS[1:]]
    assert responses_items(turn, store=False) == cut


def test_changed_text_replaces_the_items() -> None:
    items = responses_items(turn_of(RESPONSE) | {"content": "new"})
    new = [{"type": "output_text", "text": "new", "annotations": []}]
    assert items == [ITEMS[0], ITEMS[1] | {"content": new}, ITEMS[2]]
    items = responses_items(turn_of(RESPONSE) | {"content": None})
    assert items == [ITEMS[0], ITEMS[2]]


def test_trailing_reasoning_is_dropped() -> None:
    turn = turn_of(RESPONSE | {"output": [ITEMS[1], ITEMS[0]]})
    items = responses_body([{"role": "user", "content": "go"}, turn])["input"]
    assert items[1:] == [ITEMS[1]]


def test_a_custom_tool_has_its_own_output_type() -> None:
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "sql", "input": "x"}
    turn = turn_of(RESPONSE | {"output": [item]})
    result = {"role": "tool", "tool_call_id": "c", "content": "out"}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "out"}
    assert responses_body([turn, result])["input"] == [item, output]
    chat_only = {key: value for key, value in turn.items() if not key.startswith("_")}
    assert responses_body([chat_only, result])["input"] == [bare(item), output]


def test_store_is_set_only_if_requested() -> None:
    assert list(responses_body([])) == ["model", "input"]
    body = responses_body([], store=False, max_output_tokens=5)
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["max_output_tokens"] == 5


# Cache marks


def list_marks(body: Any) -> list[str]:
    """Return the positions of the marks: `system 0`, `tool 1`, `2.0` for a block of a message."""
    out = [f"system {n}" for n, block in enumerate(body.get("system", [])) if is_marked(block)]
    out += [f"tool {n}" for n, tool in enumerate(body.get("tools", [])) if is_marked(tool)]
    for number, message in enumerate(body["messages"]):
        content = message["content"] if isinstance(message["content"], list) else []
        out += [f"{number}.{n}" for n, block in enumerate(content) if is_marked(block)]
    return out


def is_marked(block: Any) -> bool:
    return isinstance(block, dict) and "cache_control" in block


@pytest.mark.parametrize(
    ("sketch", "tools", "frontier", "expected"),
    [
        ("s3 u2 a2 u2", None, None, ["system 0", "2.0"]),
        ("s3 s3 u2", [TOOL], None, ["system 1", "0.0"]),
        ("u2 a2 u2", [TOOL, TOOL], None, ["tool 1", "2.0"]),
        ("u2", None, None, ["0.0"]),
        ("s3 u2 cc2 r3 r4 a1 u2", None, 2, ["system 0", "2.1", "4.0"]),
        ("s3 u2 a2 u2", None, 2, ["system 0", "2.0"]),
        ("s3 u2 a2 u2", None, 7, ["system 0", "2.0"]),
        ("s3 u2 a2 u2", None, -1, ["system 0", "2.0"]),
        ("s3", None, None, ["system 0"]),
    ],
)
def test_marks_are_set_at_the_head_the_frontier_and_the_end(
    sketch: str, tools: list[Raw] | None, frontier: int | None, expected: list[str]
) -> None:
    body = messages_body(history(sketch), tools=tools)
    before = copy.deepcopy(body)
    out = add_cache_marks(body, frontier)
    assert list_marks(out) == expected
    assert body == before
    assert add_cache_marks(out, frontier) == out


def test_thinking_and_empty_text_are_never_marked() -> None:
    body = {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [BLOCKS[2], BLOCKS[0], {"type": "text", "text": ""}]},
            {"role": "assistant", "content": [BLOCKS[0]]},
        ]
    }
    assert list_marks(add_cache_marks(body, 1)) == ["1.0"]
    assert list_marks(add_cache_marks(body, 0)) == ["0.0"]


def test_there_are_never_more_than_four_marks() -> None:
    text = {"type": "text", "text": "a"}
    for number in range(6):
        blocks = [text | {"cache_control": MARK}] * number + [text] * 3
        body = {
            "system": "Be brief.",
            "messages": [
                {"role": "user", "content": blocks},
                {"role": "assistant", "content": [text]},
                {"role": "user", "content": [text]},
            ],
        }
        out = add_cache_marks(body, 1)
        assert len(list_marks(out)) == max(number, min(number + 3, 4))
        if number == 3:
            assert list_marks(out)[-1] == "2.0"


def test_marks_inside_results_count() -> None:
    text = {"type": "text", "text": "a"}
    inner = {"type": "tool_result", "content": [text | {"cache_control": MARK}] * 4}
    body = {"messages": [{"role": "user", "content": [inner, text]}]}
    assert add_cache_marks(body) == body


def test_a_mark_before_a_longer_one_has_its_lifetime() -> None:
    long = {"type": "text", "text": "a", "cache_control": MARK | {"ttl": "1h"}}
    body = {
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [long]},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
    }
    out = add_cache_marks(body, 1)
    assert out["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert out["messages"][1]["content"][0]["cache_control"] == MARK
    assert out["messages"][2]["content"][0]["cache_control"] == MARK


@given(histories(), st.integers(0, 20))
def test_adding_marks_changes_nothing_else(messages: list[Raw], frontier: int) -> None:
    body = messages_body(messages, tools=[TOOL])
    out = add_cache_marks(body, frontier)
    assert len(list_marks(out)) <= 4
    assert not find_anthropic_violations(out)
    assert read_messages(out, formats.ANTHROPIC) == read_messages(body, formats.ANTHROPIC)
