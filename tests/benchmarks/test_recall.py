"""Recall: entities, spans, and what counts as needed."""

from __future__ import annotations

import json

import pytest

from benchmarks import marks, recall, recordings, replay


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see src/main/App.java.", {"src/main/App.java"}),
        ("open pom.xml now", {"pom.xml"}),
        ("mail ann.lee@example.com", {"ann.lee@example.com"}),
        ("call readValue and max_depth", {"readValue", "max_depth"}),
        ("order #W2378156 of 1024", {"W2378156", "1024"}),
        ("reservation 4WQ150", {"4WQ150"}),
        ("a plain sentence with 42 words", set()),
    ],
)
def test_entities_are_texts_that_an_agent_may_need_verbatim(text: str, found: set[str]) -> None:
    assert recall.entities(text) == found


def say(role: str, content: str) -> recordings.Message:
    return {"role": role, "content": content}


def call(command: str) -> recordings.Message:
    function = {"name": "run", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}


HISTORY = [
    say("user", "Fix bug_zero."),
    call("cat other_task"),
    say("tool", "nothing in other_task"),
    say("user", "Fix bug_one."),
    call("cat old_file seen_again"),
    say("tool", "old_file calls seen_again and unused_name"),
    call("ls"),
    say("tool", "new_file"),
    call("cat old_file new_file other_task"),
    say("tool", "seen_again"),
    call("sed seen_again made_up"),
]
POINT = 8


def replay_request(kept: list[int]) -> tuple[replay.Replay, replay.Pool]:
    """Return a request of all policies before the third call that contained the messages `kept`."""
    pool = replay.Pool()
    history = tuple(map(pool.number, HISTORY))
    sent = {policy: [tuple(history[place] for place in kept)] for policy in replay.POLICIES}
    return replay.Replay(history, (0, 3), (POINT,), 0, 0, sent), pool


def find_needs(near: int) -> frozenset[str]:
    session, pool = replay_request([])
    (needs,) = recall.find_needs(session, near, pool, recall.entities)
    return needs


def test_needed_is_what_the_task_named_before_and_uses_before_it_is_delivered_again() -> None:
    assert find_needs(near=2) == {"old_file"}


def test_what_the_newest_messages_contain_is_not_needed() -> None:
    assert find_needs(near=1) == {"old_file"}
    assert find_needs(near=0) == {"old_file", "new_file"}
    assert find_needs(near=4) == set()


@pytest.mark.parametrize(("kept", "recall_found"), [([3, 4, 7], 100), ([2, 3, 6, 7], 0)])
def test_recall_is_the_share_of_the_needed_entities_in_the_request(
    kept: list[int], recall_found: int
) -> None:
    session, pool = replay_request(kept)
    total = recall.totals([session], 2, pool)["steady"]
    assert total.entities.recall == recall_found
    assert total.entities.needed == 1


def test_arguments_of_calls_are_read_as_text() -> None:
    assert recall.text_of(call("cat a\nb")).endswith("run\ncat a\nb")
    assert recall.spans("one two three four five") == {"one two three four", "two three four five"}


def test_controls_have_the_size_of_the_request_and_keep_its_newest_messages() -> None:
    session, pool = replay_request([3, 4, 5, 6, 7])
    order = [2, 1, 0, 5, 4, 3]
    (changed,) = recall.replace_older(session, 2, pool, order)
    places = [session.history.index(number) for number in changed]
    assert places[-2:] == [6, 7]
    assert {3, 2, 1} <= set(places), "the user message of the task, and the first of the order"
    assert pool.size(changed) <= pool.size(session.sent["steady"][0])


def test_a_higher_mark_costs_more(capsys: pytest.CaptureFixture[str]) -> None:
    chats = [recording for recording in recordings.load() if recording.chat]
    entities, spans = marks.tables(chats[:3])
    (row,) = entities.rows
    assert row["sessions"] == "support chats, 4k"
    assert spans.rows[0].keys() == row.keys() == {"sessions", *marks.POLICIES}
    bills = [float(str(row[f"{mark} %"]).partition("(")[2].rstrip(")")) for mark in (60, 95)]
    assert bills == sorted(bills)
    assert "support chats, 4k" in capsys.readouterr().err
