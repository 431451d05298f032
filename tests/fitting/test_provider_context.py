"""Context management by the provider: its own clearing of results, and compaction items."""

from __future__ import annotations

from typing import Any

import pytest

import brim

CLEARING: dict[str, Any] = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "input_tokens", "value": 2_000},
    "keep": {"type": "tool_uses", "value": 2},
}


def make_body(steps: int, **fields: Any) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find the harbour."}]
    for step in range(steps):
        use = {"type": "tool_use", "id": f"t{step}", "name": "look", "input": {"place": step}}
        result = {"type": "tool_result", "tool_use_id": f"t{step}", "content": "water " * 400}
        messages.append({"role": "assistant", "content": [use]})
        messages.append({"role": "user", "content": [result]})
    return {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": messages, **fields}


def test_a_body_that_the_provider_clears_enough_is_not_trimmed() -> None:
    plain = make_body(10)
    assert brim.fit(plain, window=4_000, reply=100).plan.is_trimmed
    body = make_body(10, context_management={"edits": [CLEARING]})
    fitted = brim.fit(body, window=4_000, reply=100)
    assert fitted["messages"] == body["messages"]
    assert fitted.plan.size < 3_900 < fitted.plan.tokens


@pytest.mark.parametrize(
    "edit",
    [
        CLEARING | {"trigger": {"type": "input_tokens", "value": 50_000}},
        CLEARING | {"trigger": {"type": "tool_uses", "value": 10}},
        CLEARING | {"keep": {"type": "tool_uses", "value": 9}},
        CLEARING | {"exclude_tools": ["look"]},
        CLEARING | {"clear_at_least": {"type": "input_tokens", "value": 50_000}},
        {"type": "clear_thinking_20251015"},
        {},
    ],
)
def test_a_body_that_the_provider_does_not_clear_enough_is_trimmed(edit: dict[str, Any]) -> None:
    body = make_body(10, context_management={"edits": [edit]})
    fitted = brim.fit(body, window=4_000, reply=100)
    assert fitted.plan.is_trimmed
    assert fitted.plan.fits


@pytest.mark.parametrize("nonsense", [None, 7, [], {"edits": 7}, {"edits": [7]}])
def test_invalid_context_management_is_forwarded(nonsense: Any) -> None:
    body = make_body(2, context_management=nonsense)
    assert brim.fit(body, window=100_000)["context_management"] == nonsense


COMPACTION = {"type": "compaction", "encrypted_content": "c3VtbWFyeQ=="}


def make_items(before: int, after: int) -> list[dict[str, Any]]:
    def turn(name: str, place: int) -> dict[str, Any]:
        role = "assistant" if place % 2 else "user"
        return {"role": role, "content": f"{name} {place} " + "water " * 100}

    return [
        *(turn("old", place) for place in range(before)),
        COMPACTION,
        *(turn("new", place) for place in range(after)),
    ]


@pytest.mark.parametrize("policy", ["steady", "rolling", "sliding"])
def test_messages_before_the_newest_compaction_item_are_dropped_first(policy: Any) -> None:
    items = make_items(10, 10)
    body = {"model": "gpt-5", "input": items}
    fitted = brim.fit(body, window=1_600, reply=100, policy=policy)
    kept = [str(item.get("content", "")) for item in fitted["input"]]
    assert fitted.plan.is_trimmed
    assert COMPACTION in fitted["input"]
    assert [text for text in kept if text.startswith("new")] == [
        item["content"] for item in items[11:]
    ]


def test_a_compaction_item_that_comes_later_counts_too() -> None:
    for length in range(8, 24):
        items = make_items(10, 12)[:length]
        fitted = brim.fit({"model": "gpt-5", "input": items}, window=1_800, reply=100)
        old = [item for item in items[:10] if item in fitted["input"]]
        fresh = [item for item in items[11:] if item not in fitted["input"]]
        # The first message stays, and the question that the turn of the compaction item answers.
        assert not fresh or len(old) == 3
