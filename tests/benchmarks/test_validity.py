"""The validity check of fitted conversations; each example has one error."""

from __future__ import annotations

import pytest

from benchmarks import recordings, validity

SYSTEM: recordings.Message = {"role": "system", "content": "Be brief."}
USER: recordings.Message = {"role": "user", "content": "Go on."}
ANSWER: recordings.Message = {"role": "assistant", "content": "Done."}


def call(*ids: str) -> recordings.Message:
    calls = [{"id": name, "function": {"name": "run", "arguments": "{}"}} for name in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(name: str) -> recordings.Message:
    return {"role": "tool", "tool_call_id": name, "content": "ok"}


@pytest.mark.parametrize(
    ("messages", "faults"),
    [
        ([USER, call("a", "b"), result("b"), result("a"), ANSWER], []),
        ([USER, call("a"), result("a"), call("a"), result("a")], []),
        ([USER, result("a")], ["result without call"]),
        ([USER, call("a"), result("a"), result("a")], ["result without call"]),
        ([USER, call("a", "b"), result("a"), ANSWER], ["call without result"]),
        ([USER, call("a")], ["call without result"]),
        (
            [USER, call("a"), USER, result("a")],
            ["call without result", "result without call"],
        ),
    ],
)
def test_a_result_belongs_to_the_nearest_calling_turn(
    messages: list[recordings.Message], faults: list[str]
) -> None:
    assert validity.call_faults(messages) == faults


def test_a_changed_protected_message_is_reported() -> None:
    original = [SYSTEM, USER, ANSWER]
    assert validity.kept_faults(original, original) == []
    assert validity.kept_faults([USER, ANSWER], original) == ["system changed"]
    assert validity.kept_faults([SYSTEM, ANSWER], original) == ["last user changed"]
    assert validity.kept_faults([SYSTEM, USER], original) == ["last message changed"]


def test_a_user_message_comes_first_after_the_system_prompt() -> None:
    assert validity.user_first([SYSTEM, USER, ANSWER])
    assert not validity.user_first([SYSTEM, ANSWER, USER])


def test_adjacent_user_messages_are_reported_only_after_a_trim() -> None:
    other = {"role": "user", "content": "Stop."}
    assert validity.has_new_neighbors([USER, other], [USER, ANSWER, other], "user")
    assert not validity.has_new_neighbors([USER, other], [ANSWER, USER, other], "user")


def test_the_open_step_is_a_last_step_followed_only_by_its_results() -> None:
    step = [call("a"), result("a")]
    assert validity.open_step([USER, *step]) == step
    assert validity.open_step([USER, *step, USER]) == []
    assert validity.hard_parts([SYSTEM, USER, ANSWER, USER, *step]) == [SYSTEM, USER, *step]
