"""Conversations that do not fit a small window."""

from __future__ import annotations

from typing import Any

LONG = "many words in a row, " * 30
CHAT = [{"role": "user", "content": "hello"}]
TOO_MUCH = [{"role": "user", "content": LONG * 10}]


def make_chat(number: int, turns: int = 6) -> list[dict[str, Any]]:
    """Return a chat that does not fit 400 tokens; every number gives another text."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": f"{number}.{i} {LONG}"} for i in range(turns)]
    return [*messages, {"role": "user", "content": f"question {number}"}]


def make_sharegpt(number: int, turns: int = 6) -> list[dict[str, Any]]:
    """Return the same chat as ShareGPT stores it."""
    names = {"user": "human", "assistant": "gpt"}
    chat = make_chat(number, turns)
    return [{"from": names[turn["role"]], "value": turn["content"]} for turn in chat]
