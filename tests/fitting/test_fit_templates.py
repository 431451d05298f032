"""`fit` with the rules of strict templates: accepted, and within the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.wire.template_source import find_rules
from tests.support.strategies import Raw, histories, history
from tests.support.wire.template_validator import find_violation

NAMES = ("mistral", "mistral-nemo", "gemma", "llama-3", "qwen3.5", "gpt-oss", "phi-3", "strict")


@given(histories(), st.sampled_from(NAMES), st.sampled_from((120, 300, 900)))
def test_the_request_is_accepted_and_fits(messages: list[Raw], name: str, window: int) -> None:
    try:
        request = brim.fit(messages, model="gpt-4o", window=window, reply=10, template=name)
    except brim.ContextOverflowError:
        return
    assert find_violation(request.messages, find_rules(name)) is None
    assert brim.count(request.messages, model="gpt-4o") <= request.plan.limit


def test_without_a_template_messages_are_not_changed() -> None:
    messages = history("u5 u5 c5 r5")
    assert brim.fit(messages, window=500).messages == messages


def test_an_unknown_template_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(brim.InputError, match=r"'nix'.*mistral"):
        brim.fit([], window=500, template="nix")


def test_a_template_needs_chat_messages() -> None:
    body = {"system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(brim.InputError, match="chat messages"):
        brim.fit(body, window=500, template="mistral")
