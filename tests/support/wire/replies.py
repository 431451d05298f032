"""One reply in each of the three formats."""

from __future__ import annotations

from brim.messages import Call
from tests.support.strategies import Raw

CHAT: Raw = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o-2024-08-06",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "Let me look.",
                "reasoning_content": "They want a file.",
                "tool_calls": [
                    {
                        "id": "call_a",
                        "type": "function",
                        "function": {"name": "read", "arguments": '{"path": "a"}'},
                    },
                    {
                        "id": "call_b",
                        "type": "function",
                        "function": {"name": "read", "arguments": '{"path": "b'},
                    },
                ],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 60},
    },
}
CALLS = (Call("call_a", "read", '{"path": "a"}'), Call("call_b", "read", '{"path": "b'))

BLOCKS: list[Raw] = [
    {"type": "thinking", "thinking": "They want a file.", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "Zm9v" * 9},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}},
]
ANTHROPIC: Raw = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": BLOCKS,
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 10,
        "cache_read_input_tokens": 80,
        "cache_creation_input_tokens": 10,
        "output_tokens": 20,
    },
}

ITEMS: list[Raw] = [
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "They want a file."}],
        "encrypted_content": "Zm9v" * 9,
    },
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_a",
        "name": "read",
        "arguments": '{"path": "a"}',
        "status": "completed",
    },
]
RESPONSE: Raw = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "gpt-5-mini",
    "status": "completed",
    "error": None,
    "output": ITEMS,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 0},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 8},
        "total_tokens": 120,
    },
}
