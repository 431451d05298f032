"""Future-reference recall: entities, references and distances."""

from __future__ import annotations

import pytest

from benchmarks import recall, recordings, replay


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


HISTORY = [
    say("system", "Work in app_root."),
    say("user", "Fix bug_one."),
    say("assistant", "It is in old_file."),
    say("user", "And new_file?"),
    say("assistant", "Both old_file and new_file, under app_root, for bug_one, with made_up."),
]


def score(kept: list[int], near: int) -> recall.Score:
    """Score a request at the fourth message that contained the messages `kept`."""
    pool = replay.Pool()
    history = tuple(map(pool.number, HISTORY))
    sent = {policy: [tuple(history[place] for place in kept)] for policy in replay.POLICIES}
    replayed = replay.Replay(history, (4,), 0, 0, sent)
    return recall.scores([replayed], near, pool)["steady"]


def test_references_exclude_the_system_prompt_and_the_first_user_message() -> None:
    assert score([0, 1, 2, 3], near=1).wanted == len({"old_file", "new_file"})


def test_dropped_entities_are_not_found() -> None:
    cut = score([0, 1, 3], near=1)
    assert (cut.found, cut.recall) == (1, 50)


def test_far_references_are_not_in_the_newest_messages() -> None:
    cut = score([0, 1, 3], near=1)
    assert (cut.far, cut.far_found, cut.far_recall) == (1, 0, 0)
    assert score([0, 1, 3], near=2).far_recall is None
