"""The judge of fitted conversations, on conversations that are wrong in one way each."""

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


def test_what_must_stay_is_missed_when_it_changes() -> None:
    original = [SYSTEM, USER, ANSWER]
    assert validity.kept_faults(original, original) == []
    assert validity.kept_faults([USER, ANSWER], original) == ["system changed"]
    assert validity.kept_faults([SYSTEM, ANSWER], original) == ["last user changed"]
    assert validity.kept_faults([SYSTEM, USER], original) == ["last message changed"]


def test_a_user_speaks_first_after_the_system_text() -> None:
    assert validity.user_first([SYSTEM, USER, ANSWER])
    assert not validity.user_first([SYSTEM, ANSWER, USER])


def test_turns_meet_only_where_a_cut_brought_them_together() -> None:
    other = {"role": "user", "content": "Stop."}
    assert validity.met([USER, other], [USER, ANSWER, other], "user")
    assert not validity.met([USER, other], [ANSWER, USER, other], "user")


def test_the_open_step_is_the_last_one_with_nothing_but_its_results_behind_it() -> None:
    step = [call("a"), result("a")]
    assert validity.open_step([USER, *step]) == step
    assert validity.open_step([USER, *step, USER]) == []
    assert validity.hard_parts([SYSTEM, USER, ANSWER, USER, *step]) == [SYSTEM, USER, *step]
