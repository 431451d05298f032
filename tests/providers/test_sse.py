from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.providers.sse import EventParser, ServerSentEvent


def read(*pieces: bytes) -> list[ServerSentEvent]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.finish()


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("data: a\n\n", [("message", "a")]),
        ("data:a\n\ndata:  b\n\n", [("message", "a"), ("message", " b")]),
        ("data: a\r\n\r\ndata: b\r\n\r\n", [("message", "a"), ("message", "b")]),
        ("data: a\r\rdata: b\r\r", [("message", "a"), ("message", "b")]),
        ("event: ping\ndata: {\ndata: }\n\n", [("ping", "{\n}")]),
        (": hello\n\ndata: a\nid: 7\nretry: 5\n\n", [("message", "a")]),
        ("event: ping\n\ndata: a\n\n", [("message", "a")]),
        ("data: a", [("message", "a")]),
        ("data: a\n", [("message", "a")]),
        ("data: a\r", [("message", "a")]),
        ("data\n\ndata:\n\n", []),
        ("\ufeffdata: ü\n\n", [("message", "ü")]),
        ('error: {"code":400}\n\n', [("error", '{"code":400}')]),
        ("", []),
        ("<html>\n<body>\n\n", []),
    ],
)
def test_events_are_parsed_as_servers_send_them(text: str, events: list[tuple[str, str]]) -> None:
    expected = [ServerSentEvent(*event) for event in events]
    assert read(text.encode()) == expected
    assert read(*(bytes([byte]) for byte in text.encode())) == expected


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), min_size=1)),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.data(),
)
def test_chunk_boundaries_do_not_matter(lines: list[str], end: str, data: st.DataObject) -> None:
    raw = "".join(f"data: {line}{end}{end}" for line in lines).encode()
    cuts = data.draw(st.lists(st.integers(0, len(raw))).map(sorted))
    edges = [0, *cuts, len(raw)]
    pieces = [raw[start:stop] for start, stop in pairwise(edges)]
    assert read(*pieces) == [ServerSentEvent("message", line) for line in lines if line.strip()]


def test_a_long_line_in_small_chunks_is_joined_once() -> None:
    parser = EventParser()
    for _ in range(20_000):
        assert parser.feed(b"data: " if not parser.pending_bytes else b"x" * 100) == []
    assert parser.pending_bytes == 6 + 19_999 * 100
    assert len(parser.feed(b"\n\n")[0].data) == 19_999 * 100
    assert parser.pending_bytes == 0
