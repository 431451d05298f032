"""The promises, for whole bodies of Anthropic messages and OpenAI responses."""

from __future__ import annotations

import copy
import json
from types import MappingProxyType
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

import brim
from brim.fitting.policies import PolicyName
from brim.wire.formats import ANTHROPIC, RESPONSES, BodyFormat, detect_format, read_messages
from tests.support.strategies import Raw
from tests.support.wire.bodies import (
    anthropic_bodies,
    find_anthropic_violations,
    find_responses_violations,
    models,
    odd_bodies,
    policies,
    responses_bodies,
    shares,
)

JUNK = (
    *("role", "content", "type", "text", "user", "assistant", "tool", "thinking", "_pin", "id", ""),
    *("tool_use", "tool_result", "tool_use_id", "function_call", "function_call_output", "call_id"),
    *("output", "message", "input_text", "source", "base64", "image", "input_image", "image_url"),
    *("server_tool_use", "caller", "tool_id", "program", "data", "signature", "url", "reasoning"),
)
OWN = ("text", "input_text", "message")
"""Types of the blocks and items that brim adds."""
bodies = st.one_of(anthropic_bodies(), responses_bodies())


def format_of(body: Any) -> BodyFormat:
    return RESPONSES if "input" in body else ANTHROPIC


def messages_of(body: Any) -> list[Any]:
    return list(body[format_of(body).messages_key])


def find_violations(body: Any) -> list[str]:
    return find_responses_violations(body) if "input" in body else find_anthropic_violations(body)


def window_of(body: Raw, share: int, model: str | None) -> int:
    return 30 + int(brim.count(body, model=model)) * share // 100


def fit(body: Raw, share: int, policy: PolicyName, model: str | None) -> brim.Request | None:
    """Return the fitted request; None if it cannot fit."""
    window = window_of(body, share, model)
    try:
        return brim.fit(body, model=model, window=window, reply=1, policy=policy)
    except brim.ContextOverflowError:
        return None


def is_private(part: Any) -> bool:
    content = part.get("content") if isinstance(part.get("content"), list) else []
    return any(key.startswith("_") for source in (part, *content) for key in source)


@given(bodies)
def test_generated_bodies_are_valid(body: Raw) -> None:
    found = [violation for violation in find_violations(body) if "private" not in violation]
    assert not found


def replace_dicts(body: Raw) -> Raw:
    """Return the body with mappings that are not dicts, which the fast path does not read."""
    messages = [
        {**message, "content": _replace_dicts(message["content"])} for message in body["messages"]
    ]
    return {
        **body,
        "system": _replace_dicts(body.get("system")),
        "messages": _replace_dicts(messages),
    }


def _replace_dicts(items: Any) -> Any:
    return [*map(MappingProxyType, items)] if isinstance(items, list) else items


@given(anthropic_bodies())
def test_the_fast_path_reads_the_same_messages(body: Raw) -> None:
    assert read_messages(body, ANTHROPIC) == read_messages(replace_dicts(body), ANTHROPIC)


junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from(JUNK)),
    lambda values: st.one_of(
        st.lists(values, max_size=4), st.dictionaries(st.sampled_from(JUNK), values, max_size=5)
    ),
    max_leaves=20,
)


@given(st.sampled_from(("messages", "input", "system")), st.lists(junk, max_size=4), junk)
def test_invalid_bodies_are_rejected_or_passed_through(key: str, items: Any, more: Any) -> None:
    body = {"messages": items, "system": more} if key == "system" else {key: items}
    before = copy.deepcopy(body)
    try:
        out = brim.fit(body, model="gpt-4o", window=10_000_000)
    except brim.InputError:
        return
    private = any(message.private for message in read_messages(body, detect_format(body)))
    assert private or dict(out) == body | {"model": "gpt-4o"}
    assert body == before


@given(bodies, models)
def test_unchanged_bodies_are_the_same_objects(body: Raw, model: str | None) -> None:
    before = copy.deepcopy(body)
    out = brim.fit(body, model=model, window=10_000_000, reply=1)
    for key in body:
        if key not in ("messages", "input", "system"):
            assert out[key] is body[key]
    for old, new in zip(messages_of(body), out.messages, strict=True):
        if is_private(old):
            assert not is_private(new)
        else:
            assert new is old
    assert body == before


@given(bodies)
def test_a_body_without_private_fields_is_byte_equal(body: Raw) -> None:
    form = format_of(body)
    assume(not any(message.private for message in read_messages(body, form)))
    out = brim.fit(body, model="gpt-4o", window=10_000_000, reply=1)
    assert json.dumps(dict(out)) == json.dumps(body | {"model": "gpt-4o"})


@given(bodies, shares, policies, models)
def test_a_fitted_body_counts_what_the_plan_says_within_the_limit(
    body: Raw, share: int, policy: PolicyName, model: str | None
) -> None:
    request = fit(body, share, policy, model)
    if request is not None:
        assert brim.count(dict(request)) == request.plan.tokens <= request.plan.limit


@given(odd_bodies(), shares, policies, models)
def test_unusual_bodies_count_what_the_plan_says_and_are_not_mutated(
    body: Raw, share: int, policy: PolicyName, model: str | None
) -> None:
    before = copy.deepcopy(body)
    request = fit(body, share, policy, model)
    if request is not None:
        assert brim.count(dict(request)) == request.plan.tokens <= request.plan.limit
    assert body == before


@given(bodies, shares, policies, models)
def test_trimmed_bodies_are_valid(
    body: Raw, share: int, policy: PolicyName, model: str | None
) -> None:
    request = fit(body, share, policy, model)
    assert request is None or not find_violations(request)


@given(bodies, shares, policies, models)
def test_the_input_is_never_mutated(
    body: Raw, share: int, policy: PolicyName, model: str | None
) -> None:
    before = copy.deepcopy(body)
    fit(body, share, policy, model)
    assert body == before


@given(bodies, shares, policies, models)
def test_fitting_twice_changes_nothing(
    body: Raw, share: int, policy: PolicyName, model: str | None
) -> None:
    first = fit(body, share, policy, model)
    if first is None:
        return
    window = window_of(body, share, model)
    second = brim.fit(dict(first), window=window, reply=1, policy=policy)
    assert dict(second) == dict(first)
    assert not second.plan.is_trimmed


@given(bodies, shares, policies, models)
def test_kept_messages_lose_only_trimmed_text(
    body: Raw, share: int, policy: PolicyName, model: str | None
) -> None:
    """Every block and item of the output was in the input, except for texts and thinking."""
    request = fit(body, share, policy, model)
    if request is None:
        return
    came = [_without_text(part) for part in _parts(body)]
    for part in _parts(request):
        bare = _without_text(part)
        assert bare in came or bare in ({}, *({"type": kind} for kind in OWN))


def _parts(body: Any) -> list[Any]:
    parts: list[Any] = []
    for message in messages_of(body):
        content = message.get("content")
        if "input" not in body and isinstance(content, str):
            parts.append({"type": "text", "text": content})
        elif "input" not in body:
            parts += content or ()
        else:
            parts.append(message)
    return parts


def _without_text(part: Any) -> Any:
    """Return the part of a block or an item that no trim may change."""
    bare = {key: value for key, value in part.items() if not key.startswith("_")}
    for key in ("content", "output", "text", "role", "is_error"):
        value = bare.pop(key, None)
        if isinstance(value, list):
            bare[key] = [item for item in value if "text" not in item]
            if not bare[key]:
                del bare[key]
    return bare
