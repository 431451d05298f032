"""Requests that a gateway has to survive, one after the other: `python -m tests.gateway.fuzzing`.

It goes on until it is stopped, or for so many requests as it is told, with new ones each time, and
tells of each that brim failed on. The tests send the same few of them every time.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, Final

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.testing import Scripted
from tests.gateway.running import config_of, running
from tests.gateway.strategies import mutated

WINDOW: Final = 2_000
LONG: Final = "So many words that they do not fit. " * 200
CHAT: Final[dict[str, Any]] = {
    "model": "gpt-4o",
    "stream": False,
    "max_tokens": 9,
    "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is in the file?"}]},
        {"role": "assistant", "content": None, "reasoning_content": "Let me look.",
         "tool_calls": [{"id": "call_1", "type": "function",
                         "function": {"name": "read", "arguments": '{"path": "a"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": LONG},
        {"role": "assistant", "content": "Words."},
        {"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            {"type": "text", "text": "And in this picture?"}]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "Whose?"},
    ],
}  # fmt: skip
MESSAGES: Final[dict[str, Any]] = {
    "model": "claude-sonnet-5",
    "stream": False,
    "max_tokens": 9,
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "read", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": "What is in the file?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Let me look.", "signature": "abc"},
            {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1",
             "content": [{"type": "text", "text": LONG}]},
            {"type": "text", "text": "Go on."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Words."}]},
        {"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
            {"type": "text", "text": "And in this picture?"}]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "Whose?"},
    ],
}  # fmt: skip
RESPONSES: Final[dict[str, Any]] = {
    "model": "gpt-5-mini",
    "stream": False,
    "max_output_tokens": 9,
    "instructions": "Be brief.",
    "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
    "input": [
        {"role": "user", "content": "What is in the file?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "read",
         "arguments": '{"path": "a"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": LONG},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "Words.", "annotations": []}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "https://a.example/b"},
                                     {"type": "input_text", "text": "And in this picture?"}]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "Whose?"},
    ],
}  # fmt: skip
BODIES: Final[Mapping[str, dict[str, Any]]] = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": MESSAGES,
    "/v1/responses": RESPONSES,
    "/v1/messages/count_tokens": MESSAGES,
    "/v1/responses/input_tokens": RESPONSES,
}

heads: Final = st.fixed_dictionaries(
    {},
    optional={
        "brim-policy": st.sampled_from(["steady", "thrift", "rolling", "sliding"]),
        "brim-fitting": st.sampled_from(["on", "off", "dry-run"]),
        "brim-cache-marks": st.sampled_from(["on", "off"]),
    },
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes, dict[str, str]]:
    """A path, a body that was good before somebody had his hands on it, and wishes."""
    path = draw(st.sampled_from([*BODIES]))
    body = draw(mutated(BODIES[draw(st.sampled_from([path, path, *BODIES]))]))
    raw = json.dumps(body).encode()
    if draw(st.integers(0, 9)) == 0:
        place = draw(st.integers(0, len(raw)))
        raw = raw[:place] + draw(st.binary(max_size=3)) + raw[place:]
    return path, raw, draw(heads)


def ask(client: httpx.Client, path: str, raw: bytes, wishes: Mapping[str, str]) -> None:
    """Send a request that brim answers, passes on or refuses, but never fails on."""
    answer = client.post(path, content=raw, headers=dict(wishes))
    assert answer.status_code in (200, 400), f"{answer.status_code} {answer.text}"
    assert answer.status_code == 200 or "error" in answer.json()


def fuzz(number: int) -> None:
    with (
        tempfile.TemporaryDirectory() as state,
        Scripted("Hello.", window=WINDOW, counted_as="gpt-4o") as upstream,
    ):
        os.environ["BRIM_STATE"] = state
        config = config_of(upstream.url, reply=50)
        with running(config) as served, httpx.Client(base_url=served.url, timeout=20) as client:

            @settings(max_examples=number, derandomize=False, deadline=None, database=None,
                      suppress_health_check=[*HealthCheck])  # fmt: skip
            @given(requests())
            def send(request: tuple[str, bytes, dict[str, str]]) -> None:
                ask(client, *request)

            send()


if __name__ == "__main__":
    fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else sys.maxsize)
