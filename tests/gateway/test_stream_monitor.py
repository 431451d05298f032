"""A monitored stream is relayed unchanged, however it is split into chunks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.gateway.stream_monitor import (
    MAX_EVENT_BYTES,
    MAX_KEPT_BYTES,
    MAX_OPENING_BYTES,
    StreamMonitor,
    StreamOpening,
)
from brim.providers.endpoint import Endpoint
from brim.providers.sse import EventParser
from brim.wire.reply import parse_usage
from tests.support.gateway.strategies import cut, events, streams

ENDPOINT = Endpoint("http://127.0.0.1:9", "openai", None, {}, 1.0, retries=0)
USAGE = {"prompt_tokens": 9, "completion_tokens": 5}


def chunk(delta: Any = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"object": "chat.completion.chunk", "choices": choices, **fields}


def stream(*events: dict[str, Any] | str) -> bytes:
    texts = (each if isinstance(each, str) else json.dumps(each) for each in events)
    return "".join(f"data: {each}\n\n" for each in texts).encode()


def pass_through(watch: StreamMonitor, pieces: Iterable[bytes]) -> bytes:
    return b"".join([*map(watch.feed, pieces), watch.finish()])


# What is hidden

HELLO = chunk({"role": "assistant", "content": "Hello."})
END = chunk({}, "stop")


def test_a_usage_event_that_the_client_did_not_request_is_recorded_and_hidden() -> None:
    watch = StreamMonitor(ENDPOINT, hides_usage=True)
    out = pass_through(watch, [stream(HELLO, END, chunk(usage=USAGE), "[DONE]")])
    assert out == stream(HELLO, END, "[DONE]")
    assert watch.usage == USAGE


@pytest.mark.parametrize(
    "event",
    [
        chunk({"content": "Hello."}, usage=USAGE),
        chunk({}, "stop", usage=USAGE),
        chunk({"tool_calls": [{"index": 0}]}, usage=USAGE),
        chunk(usage=USAGE, error={"message": "out of memory"}),
        chunk(usage=None),
        chunk(),
        {"usage": USAGE},
        {"type": "message_delta", "usage": USAGE, "delta": {"stop_reason": "end_turn"}},
        {"type": "response.completed", "response": {"usage": USAGE}},
        {"choices": "none", "usage": USAGE},
        chunk({"content": '"usage": {"prompt_tokens": 5}, "choices": []'}),
    ],
)
def test_an_event_with_other_content_is_relayed(event: dict[str, Any]) -> None:
    raw = stream(HELLO, event, "[DONE]")
    assert pass_through(StreamMonitor(ENDPOINT, hides_usage=True), [raw]) == raw


def test_a_requested_usage_event_is_relayed() -> None:
    watch = StreamMonitor(ENDPOINT, hides_usage=False)
    raw = stream(HELLO, chunk(usage=USAGE), "[DONE]")
    assert pass_through(watch, [raw]) == raw
    assert watch.usage == USAGE


def test_the_parts_of_a_usage_are_merged() -> None:
    begun = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}
    ended = {"type": "message_delta", "usage": {"output_tokens": 5, "input_tokens": None}}
    watch = StreamMonitor(ENDPOINT, hides_usage=True)
    assert pass_through(watch, [stream(begun, ended)]) == stream(begun, ended)
    usage = parse_usage({"usage": watch.usage})
    assert usage is not None
    assert (usage.input, usage.output) == (9, 5)


def test_an_error_in_the_middle_of_a_stream_is_recorded() -> None:
    watch = StreamMonitor(ENDPOINT, hides_usage=True)
    raw = stream(HELLO, {"error": {"message": "out of memory"}})
    assert pass_through(watch, [raw]) == raw
    assert watch.error == "out of memory"


def test_a_key_in_an_error_is_masked_and_nowhere_else() -> None:
    errors: list[dict[str, Any]] = [
        {"error": {"message": "wrong key: sk-secret"}},
        {"type": "error", "code": "no", "message": "sk-secret"},
        {"type": "response.failed", "response": {"error": {"message": "sk-secret"}}},
    ]
    for error in errors:
        watch = StreamMonitor(replace(ENDPOINT, key="sk-secret"), hides_usage=False)
        raw = stream(chunk({"content": "no error: sk-secret"}), error)
        assert pass_through(watch, [raw]) == b"[key]".join(raw.rsplit(b"sk-secret", 1))


@pytest.mark.parametrize(
    "last",
    [
        stream("[DONE]"),
        stream(END),
        stream(END, chunk(usage=USAGE)),
        stream("[DONE]").rstrip(),
        stream({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
        stream({"type": "message_stop"}),
        stream({"type": "response.incomplete", "response": {"output": ["x" * 9_000]}}),
        stream({"type": "response.completed", "response": {"output": "x" * 9_000, "usage": USAGE}}),
        stream(chunk({"content": "x" * MAX_EVENT_BYTES})).rstrip(),  # too large to be parsed
    ],
)
def test_a_complete_stream_is_recognized(last: bytes) -> None:
    watch = StreamMonitor(ENDPOINT, hides_usage=True)
    pass_through(watch, [stream(HELLO), last])
    assert watch.is_ended


@pytest.mark.parametrize(
    "last",
    [
        b"",
        b": ping\n\n",
        stream(chunk({"content": 'data: [DONE] "finish_reason": "stop"'}, finish="")),
        stream(chunk({"content": "\ndata: [DONE]\n"})),
        stream({"type": "content_block_stop"}),
        stream({"type": "message_delta", "delta": {"stop_reason": None}}),
        stream({"type": "response.output_text.done", "text": "response.completed"}),
        stream(chunk(usage=USAGE)),
    ],
)
def test_an_incomplete_stream_is_recognized(last: bytes) -> None:
    watch = StreamMonitor(ENDPOINT, hides_usage=True)
    pass_through(watch, [stream(HELLO), last])
    assert not watch.is_ended


def test_a_long_stream_is_counted_by_its_beginning() -> None:
    watch = StreamMonitor(ENDPOINT, hides_usage=True)
    piece = stream(chunk({"content": "word "}))
    for _ in range(50_000):
        watch.feed(piece)
    generated = watch.extract_text()
    assert generated is not None
    text, times = generated
    assert len(text) * len(piece) <= 5 * (MAX_KEPT_BYTES + len(piece))
    assert len(text) * times == pytest.approx(5 * 50_000, rel=0.001)


def test_a_very_long_event_is_relayed_without_waiting() -> None:
    watch = StreamMonitor(ENDPOINT, hides_usage=True)
    raw = stream(chunk(usage={**USAGE, "note": "x" * MAX_EVENT_BYTES}))
    assert watch.feed(raw[:-9]) == raw[:-9]
    assert watch.feed(raw[-9:]) == raw[-9:]


@given(streams(), st.booleans(), st.data())
def test_all_events_are_relayed_however_a_stream_is_split(
    raw: bytes, hides: bool, data: st.DataObject
) -> None:
    pieces = data.draw(cut(raw))
    one, many = (
        StreamMonitor(ENDPOINT, hides_usage=hides),
        StreamMonitor(ENDPOINT, hides_usage=hides),
    )
    whole, joined = pass_through(one, [raw]), pass_through(many, pieces)
    assert _data(joined) == _data(whole)
    assert (many.usage, many.error, many.extract_text()) == (
        one.usage,
        one.error,
        one.extract_text(),
    )
    if not hides:
        assert joined == whole == raw


def _data(raw: bytes) -> list[str]:
    parser = EventParser()
    return [event.data for event in (*parser.feed(raw), *parser.finish())]


@given(st.lists(events, max_size=8), st.data())
def test_only_usage_is_ever_hidden(sent_events: list[dict[str, Any]], data: st.DataObject) -> None:
    raw = stream(*sent_events)
    out = _data(pass_through(StreamMonitor(ENDPOINT, hides_usage=True), data.draw(cut(raw))))
    hidden = [each for each in map(json.dumps, sent_events) if each not in out]
    for each in map(json.loads, hidden):
        assert '"usage"' in json.dumps(each)
        assert not any(choice["delta"] for choice in each["choices"] if choice.get("delta"))


@given(st.binary(max_size=400) | streams(), st.booleans(), st.data())
def test_invalid_data_is_relayed(raw: bytes, hides: bool, data: st.DataObject) -> None:
    pieces = data.draw(cut(raw))
    watch = StreamMonitor(ENDPOINT, hides_usage=hides)
    out = pass_through(watch, pieces)
    assert len(out) <= len(raw)
    assert out == raw or hides
    if (generated := watch.extract_text()) is not None:
        assert generated.scale >= 1 or not raw
    parse_usage({"usage": watch.usage})


# What is held back


def open_stream(pieces: Sequence[bytes]) -> StreamOpening:
    opening = StreamOpening(ENDPOINT)
    for piece in pieces:
        opening.feed(piece)
    return opening


REFUSED = {"error": {"code": "context_length_exceeded", "message": "maximum context length is 5"}}
NOTHING_YET = [
    stream(chunk({"role": "assistant"})),
    b": ping\n\n",
    b"\n\n",
    stream({"type": "message_start"}, {"type": "ping"}),
    stream({"type": "response.created"}, {"type": "response.in_progress"}),
]


@pytest.mark.parametrize("raw", NOTHING_YET)
def test_events_without_content_are_held_back(raw: bytes) -> None:
    assert not open_stream([raw]).is_over
    rejected = open_stream([raw, stream(REFUSED)])
    assert rejected.is_over
    assert rejected.overflow is not None
    assert rejected.held == raw + stream(REFUSED)


@pytest.mark.parametrize(
    "raw",
    [stream(HELLO), stream(END), stream("[DONE]"), stream("no JSON"), stream({"type": []}),
     stream({"error": {"message": "out of memory"}}), b"x" * (MAX_OPENING_BYTES + 1)],
)  # fmt: skip
def test_the_hold_ends_with_the_first_content(raw: bytes) -> None:
    opening = open_stream([raw])
    assert opening.is_over
    assert opening.overflow is None


@pytest.mark.parametrize("raw", NOTHING_YET)
def test_an_overload_in_the_first_events_is_recognized(raw: bytes) -> None:
    for error in ({"type": "overloaded_error"}, {"code": 503}, {"code": "server_error"}):
        assert open_stream([raw, stream({"error": error})]).is_overloaded
    assert not open_stream(
        [raw, stream({"error": {"type": "invalid_request_error"}})]
    ).is_overloaded
    assert not open_stream([raw, stream(REFUSED)]).is_overloaded
    assert not open_stream([raw, stream(HELLO, {"error": {"code": 503}})]).is_overloaded


@given(streams(), st.data())
def test_the_opening_is_classified_the_same_however_it_is_split(
    raw: bytes, data: st.DataObject
) -> None:
    one, many = open_stream([raw]), open_stream(data.draw(cut(raw)))
    assert many.held == one.held == raw
    assert (many.is_over, many.overflow) == (one.is_over, one.overflow)
