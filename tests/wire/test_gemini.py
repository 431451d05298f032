"""Gemini bodies: read as turns, and written back with what a plan changes."""

from __future__ import annotations

from typing import Any

import pytest

import brim
from brim.errors import InputError
from brim.wire.formats import GEMINI, detect_format, read_messages
from brim.wire.reply_parser import parse_reply
from brim.wire.streams import StreamAccumulator

MODEL = "gemini-2.5-pro"
CALL = {"functionCall": {"name": "read", "args": {"path": "a"}}, "thoughtSignature": "c2lnbg=="}
RESULT = {"functionResponse": {"name": "read", "response": {"text": "word " * 600}}}


def content(role: str, *parts: Any) -> dict[str, Any]:
    return {"role": role, "parts": [{"text": p} if isinstance(p, str) else p for p in parts]}


def step(number: int, text: str = "word " * 600) -> list[dict[str, Any]]:
    call = {"functionCall": {"name": "read", "args": {"path": f"{number}"}}}
    result = {"functionResponse": {"name": "read", "response": {"text": text}}}
    return [content("user", f"Read {number}."), content("model", call), content("user", result)]


def test_parts_are_turns() -> None:
    body = {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            content("user", "Read both."),
            content("model", {"text": "Hm.", "thought": True}, "Reading.", CALL, CALL),
            content("user", RESULT, RESULT, "And now?"),
            content("user", {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}),
            content("user", {"executableCode": {"code": "1"}}),
        ],
    }
    assert detect_format(body) is GEMINI
    turns = read_messages(body, GEMINI)
    roles = ["system", "user", "assistant", "tool", "tool", "user", "user", "user"]
    assert [turn.role for turn in turns] == roles
    calls = turns[2].calls
    assert [call.name for call in calls] == ["read", "read"]
    assert [turn.answers for turn in turns[3:5]] == [call.id for call in calls]
    assert turns[6].media[0].kind == "image"
    assert "executableCode" in turns[7].extras[0]


def test_snake_case_is_read_too() -> None:
    body = {"contents": [
        content("user", "Read."),
        content("model", {"function_call": {"name": "read", "args": {}}}),
        content("user", {"function_response": {"name": "read", "response": {"a": 1}}}),
    ], "system_instruction": {"parts": [{"text": "Be brief."}]}}  # fmt: skip
    assert [turn.role for turn in read_messages(body, GEMINI)] == [
        "system", "user", "assistant", "tool",
    ]  # fmt: skip


@pytest.mark.parametrize("window", [2_000, 4_000, 8_000])
@pytest.mark.parametrize("policy", ["steady", "rolling", "sliding", "thrift"])
def test_a_long_body_is_fitted(policy: Any, window: int) -> None:
    contents = [each for number in range(20) for each in step(number)]
    body = {"contents": [*contents, content("user", "What now?")], "safetySettings": []}
    request = brim.fit(body, model=MODEL, window=window, reply=100, policy=policy)
    assert brim.count(dict(request), model=MODEL) <= window - 100
    assert request["safetySettings"] == []
    kept = request["contents"]
    assert kept[-1]["parts"][-1] == {"text": "What now?"}
    kinds = [next(iter(part)) for each in kept for part in each["parts"]]
    assert kinds.count("functionCall") == kinds.count("functionResponse")
    assert all(each in contents for each in kept if "functionCall" in each["parts"][0])


def test_a_body_that_fits_keeps_its_objects() -> None:
    body = {"contents": [*step(1, "short"), content("model", "Done."), content("user", "Next?")]}
    request = brim.fit(body, model=MODEL, window=8_000)
    assert all(a is b for a, b in zip(request["contents"], body["contents"], strict=True))


def test_a_clipped_result_is_an_object_and_keeps_its_name() -> None:
    body = {"contents": [*step(1, "word " * 5_000), content("user", "What now?")]}
    request = brim.fit(body, model=MODEL, window=3_000, reply=100)
    results = [
        part["functionResponse"]
        for each in request["contents"]
        for part in each["parts"]
        if "functionResponse" in part
    ]
    assert results
    for result in results:
        assert result["name"] == "read"
        assert isinstance(result["response"]["text"], str)


def test_the_output_limit_is_lowered_where_it_is() -> None:
    options = {"maxOutputTokens": 60_000, "temperature": 0.5}
    body = {"contents": [content("user", "word " * 500)], "generationConfig": options}
    request = brim.fit(body, model=MODEL, window=2_000, reply=100)
    assert request["generationConfig"]["temperature"] == 0.5
    assert request["generationConfig"]["maxOutputTokens"] < 2_000


@pytest.mark.parametrize(
    "contents", ["text", [1], [{"role": "user", "parts": "x"}], [{"parts": [1]}]]
)
def test_invalid_contents_are_named(contents: Any) -> None:
    with pytest.raises(InputError):
        brim.fit({"contents": contents}, model=MODEL, window=2_000)


USAGE = {"promptTokenCount": 10, "candidatesTokenCount": 3, "thoughtsTokenCount": 4}


def chunk(*parts: Any, finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": content("model", *parts)}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "usageMetadata": USAGE, "modelVersion": MODEL}


def test_a_stream_is_the_reply_of_an_unstreamed_request() -> None:
    thought = {"text": "Hm.", "thought": True}
    stream = StreamAccumulator()
    spoken = [stream.add(event) for event in (chunk(thought), chunk("It"), chunk(" is."))]
    assert not stream.is_whole
    stream.add(chunk(CALL, finish="STOP"))
    assert stream.is_whole
    whole = parse_reply(chunk(thought, "It is.", CALL, finish="STOP"))
    assert "".join(spoken) == whole.text == stream.reply().text
    assert whole.thinking == stream.reply().thinking == "Hm."
    assert whole.calls[0].name == stream.reply().calls[0].name == "read"
    assert whole.usage is not None
    assert (whole.usage.input, whole.usage.output) == (10, 7)
    assert (whole.finish, whole.model) == ("STOP", MODEL)


def test_a_blocked_prompt_is_a_reply_without_text() -> None:
    reply = parse_reply({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": USAGE})
    assert reply.is_empty
    assert reply.finish == "SAFETY"
