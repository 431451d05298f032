"""Reading recordings, and chaining them into long sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import material, recordings, ruler


def task(number: int, file: str = "one") -> recordings.Recording:
    turns: list[recordings.Message] = [
        {"role": "system", "content": "Fix issues."},
        {"role": "user", "content": f"Fix {number}."},
        {"role": "assistant", "content": "Fixed."},
    ]
    return recordings.Recording(
        f"task-{number}", f"a/b:trajs/acme__tool-{number}.traj", file, turns, []
    )


def test_a_session_is_eight_tasks_of_one_repository_by_number() -> None:
    first, second = recordings.sessions([task(number) for number in reversed(range(12))])
    contents = [message["content"] for message in first.messages if message["role"] == "user"]
    assert contents == [f"Fix {number}." for number in range(8)]
    assert [message["role"] for message in first.messages].count("system") == 1
    assert len(second.messages) == 1 + 4 * 2


def test_fewer_than_four_tasks_and_tasks_of_two_models_make_no_session() -> None:
    assert recordings.sessions([task(1), task(2), task(3), task(4, "two")]) == []


def test_an_issue_is_used_once() -> None:
    mixed = recordings.sessions([*[task(1)] * 4, *map(task, range(2, 5))])
    assert [len(session.messages) for session in mixed] == [1 + 4 * 2]
    assert mixed[0].starts == (0, 3, 5, 7)


def test_a_third_of_the_tasks_of_a_repository_is_held_aside() -> None:
    tasks = [task(number) for number in range(7)]
    held = recordings.select(tasks, "held")
    assert [recording.id for recording in held] == ["task-2", "task-5"]
    chosen = recordings.select(tasks, "chosen")
    assert {recording.id for recording in [*held, *chosen]} == {task.id for task in tasks}
    assert len(chosen) == 5


def test_a_request_point_is_where_the_model_answered() -> None:
    roles = ["system", "user", "user", "assistant", "tool", "tool", "assistant", "user"]
    messages: list[recordings.Message] = [{"role": role} for role in roles]
    assert recordings.request_points(messages) == [3, 6]


def test_the_shipped_recordings_contain_chats_tasks_and_a_session() -> None:
    shipped = recordings.load()
    assert {recording.chat for recording in shipped} == {True, False}
    assert recordings.sessions(shipped)


def test_an_empty_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=tmp_path.name):
        recordings.load(tmp_path)


def test_mixed_conversations_repeat_only_with_the_same_seed() -> None:
    assert material.of_turns(40, seed=1) == material.of_turns(40, seed=1)
    once = {message["content"] for message in material.of_turns(40, seed=1)[1:]}
    again = {message["content"] for message in material.of_turns(40, seed=2)[1:]}
    assert not once & again


def test_a_mixed_conversation_has_the_requested_size_and_ends_with_a_request() -> None:
    messages = material.of_tokens(5_000, seed=3)
    assert 5_000 <= ruler.request_tokens(messages) < 9_000
    assert messages[-1]["role"] in {"user", "tool"}
