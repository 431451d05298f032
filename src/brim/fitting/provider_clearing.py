"""What a provider removes from a request before the model reads it (`context_management`).

Anthropic clears old tool results on its side if a request is larger than a trigger. A request that
fits after that needs no trim, so the client's history and the cached prefix stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from brim.fitting.plan import Plan
from brim.wire.body_parts import filter_mappings, get_mapping

CLEAR_TOOL_USES: Final = "clear_tool_uses"
DEFAULT_TRIGGER: Final = 100_000
"""Tokens from which on results are cleared."""
DEFAULT_KEEP: Final = 3
"""The newest results, which stay."""
PLACEHOLDER_TOKENS: Final = 12
"""Tokens of the text that replaces a result."""


def apply_clearing(plan: Plan, body: Mapping[str, Any]) -> Plan | None:
    """Return a plan that sends everything with its size after the provider's clearing.

    None if the provider clears nothing, or too little for the request to fit.
    """
    for edit in _iter_edits(body):
        tokens = plan.tokens - _count_cleared(plan, edit)
        if tokens < plan.tokens and tokens <= plan.budget.limit:
            return replace(plan, calibrated_tokens=tokens)
    return None


def _iter_edits(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for edit in filter_mappings(get_mapping(body, "context_management").get("edits")):
        if str(edit.get("type", "")).startswith(CLEAR_TOOL_USES):
            yield edit


def _count_cleared(plan: Plan, edit: Mapping[str, Any]) -> int:
    """Return the tokens that an edit removes from the request."""
    messages, history = plan.history.messages[: plan.length], plan.history
    names = {call.id: call.name for message in messages for call in message.calls}
    results = [index for index, message in enumerate(messages) if message.answers is not None]
    trigger = get_mapping(edit, "trigger")
    reached = len(results) if trigger.get("type") == "tool_uses" else plan.tokens
    if reached <= _read_number(trigger, DEFAULT_TRIGGER):
        return 0
    keep = _read_number(get_mapping(edit, "keep"), DEFAULT_KEEP)
    excluded = edit.get("exclude_tools") or ()
    old = (
        index
        for index in results[: max(0, len(results) - keep)]
        if names.get(messages[index].answers or "") not in excluded
    )
    cleared = sum(max(0, history.tokens(index) - PLACEHOLDER_TOKENS) for index in old)
    return cleared if cleared >= _read_number(get_mapping(edit, "clear_at_least"), 0) else 0


def _read_number(setting: Mapping[str, Any], default: int) -> int:
    value = setting.get("value", default)
    return value if isinstance(value, int) else default
