"""Sessions that are saved with `to_dict` and restored with `from_dict`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import brim
from brim.fitting.policies import PolicyName, resolve_policy
from brim.session.session import get_driver
from tests.support.sessions import (
    CALL,
    UNKNOWN,
    completion,
    session,
)
from tests.support.strategies import history, policies, text


def restore(chat: brim.Session, **settings_: Any) -> brim.Session:
    return brim.Session.from_dict(json.loads(json.dumps(chat.to_dict())), **settings_)


def summarize(previous: str | None, evicted: Any) -> str:
    return f"{previous or 'NOTES'}+{len(evicted or ())}"


@given(
    policies,
    st.sampled_from((UNKNOWN, "gpt-4o", "gemma-2-9b-it")),
    st.booleans(),
    st.booleans(),
    st.sampled_from(("", "Be brief. " * 40)),
    st.sampled_from((None, 0.8, 1.0, 1.2)),
    st.integers(0, 10**6),
)
@example("thrift", UNKNOWN, True, False, "Be brief. " * 40, None, 26)
def test_a_restored_session_continues_with_the_same_requests(
    policy: PolicyName,
    model: str,
    with_summary: bool,
    with_tools: bool,
    system: str,
    share: float | None,
    seed: int,
) -> None:
    settings_: Any = {"summarize": summarize} if with_summary else {}
    tools = [{"type": "function", "function": {"name": "run"}}] if with_tools else None
    chat = brim.Session(
        model, window=1_001, reply=1, policy=policy, system=system, tools=tools, **settings_
    )
    chat.user(text(20, seed))
    other = restore(chat, **settings_)
    for number in range(12):
        kind = (seed >> number) % 3
        for one in (chat, other):
            if kind == 0:
                one.add_output(text(150, number))
            elif kind == 1:
                one.assistant(None, [CALL])
                one.tool("call_1", text(120, number + seed))
            one.user(text(1 + (seed + number) % 40, number))
        sent = chat.request()
        again = other.request()
        assert dict(again) == dict(sent)
        assert again.plan.decisions == sent.plan.decisions
        tokens = None
        if share is not None:
            tokens = round(share * brim.count(sent.messages, model="gpt-4o"))
        for one in (chat, other):
            one.receive(completion(text(9, number), tokens))
        assert other.summary == chat.summary
        other = restore(other if number % 2 else chat, **settings_)
        assert other.history == chat.history
        assert other.usage == chat.usage
        assert other.log.statistics() == chat.log.statistics()
        assert other.tokens == chat.tokens


def test_settings_override_saved_settings() -> None:
    chat = session(system="Be brief.")
    for turn in history("u20 " + "a60 u60 " * 30):
        chat.append(turn)
    assert chat.request().plan.is_trimmed
    larger = restore(chat, window=100_000)
    assert not larger.request().plan.is_trimmed
    other = restore(chat, policy="sliding")
    assert other.request().plan.policy == "sliding"
    assert restore(chat, system="Explain.").request().messages[0]["content"] == "Explain."


def test_to_dict_saves_the_whole_session() -> None:
    policy = resolve_policy("rolling", keep_recent=2, max_turns=9)
    chat = session(system="", policy=policy, cache_marks=True)
    chat.append({"role": "developer", "content": "Be brief."})
    prompt = get_driver(chat).prompt
    prompt.blocks["project"], prompt.instructions = "src/", "Be done."
    chat.user("hi")
    chat.add_output("waiting")
    chat.pin(0)
    again = restore(chat)
    assert again.to_dict() == chat.to_dict()
    assert again.request().messages == chat.request().messages
    assert again.request().messages[0]["role"] == "developer"
    assert (get_driver(again).joined_outputs, again.pins) == ("waiting", [0])
    assert get_driver(again).prompt == prompt


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"version": 1},
        {"version": 99},
        [],
        None,
        "x",
    ],
)
def test_invalid_saved_data_raises(data: Any) -> None:
    with pytest.raises(brim.InputError):
        brim.Session.from_dict(data)


@pytest.mark.parametrize(
    "key", ["settings", "turns", "composer", "ledger", "log", "blocks", "policy"]
)
@pytest.mark.parametrize("value", [None, 7, "x", [7], {"a": 1}])
def test_an_invalid_part_of_saved_data_raises(key: str, value: Any) -> None:
    chat = session()
    chat.user("hi")
    data = chat.to_dict()
    data[key] = value
    with pytest.raises(brim.InputError):
        brim.Session.from_dict(data)


def test_a_session_with_custom_passes_cannot_be_saved() -> None:
    from brim.fitting.passes import drop_oldest

    chat = session(policy=[drop_oldest])
    chat.user("hi")
    with pytest.raises(brim.InputError, match="passes"):
        chat.to_dict()
