"""A conversation on disk, and how a killed shell resumes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError, StoreError
from brim.fitting.flow import run_flow
from brim.session.session import Session, get_driver
from brim.shell.conversation import INCOMPLETE, NO_RESULT, SavedConversation, resume_conversation
from brim.shell.session_setup import find_saved
from brim.storage import ConversationStore, Database

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
OTHER = {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ConversationStore]:
    database = Database(tmp_path / "state")
    yield ConversationStore(database)
    database.close()


def session(data: dict[str, Any] | None = None) -> Session:
    settings: dict[str, Any] = {"model": "gpt-4o", "window": 1_000, "reply": 100}
    return Session(**settings) if data is None else Session.from_dict(data, **settings)


def begun(log: ConversationStore) -> SavedConversation:
    return SavedConversation(session(), log, log.create(Path("/"), "fast"))


def answer(conversation: SavedConversation, words: str) -> None:
    conversation.session.request()
    message = {"role": "assistant", "content": words}
    usage = {"prompt_tokens": 20, "completion_tokens": 3}
    conversation.session.receive({"choices": [{"message": message}], "usage": usage})
    conversation.save()


def again(conversation: SavedConversation) -> SavedConversation:
    """Return the same conversation, as another process resumes it."""
    conversation.log.unlock(conversation.name)
    return resume_conversation(conversation.log, conversation.name, session)


def test_the_last_conversation_that_is_not_open_elsewhere_is_resumed(
    log: ConversationStore, tmp_path: Path
) -> None:
    older, newer = begun(log), begun(log)
    for each in (older, newer):
        each.add_message("hello")
    log.unlock(older.name)
    with closing(Database(tmp_path / "state")) as database:
        other = ConversationStore(database)
        assert find_saved(other, "", Path("/")) == older.name
        other.unlock(older.name)
        log.lock(older.name)
        with pytest.raises(StoreError, match="are open in other shells"):
            find_saved(other, "", Path("/"))


def list_contents(conversation: SavedConversation) -> list[Any]:
    return [turn["content"] for turn in conversation.session.history]


def test_a_resumed_conversation_is_the_same(log: ConversationStore) -> None:
    first = begun(log)
    first.add_output("$ ls\nfile")
    first.add_message("what is that?")
    answer(first, "a file")
    first.add_output("$ pwd\n/")
    second = again(first)
    assert second.session.to_dict() == first.session.to_dict()
    assert get_driver(second.session).joined_outputs == "$ pwd\n/"
    second.add_message("and now?")
    answer(second, "the root")
    assert list_contents(again(second)) == ["what is that?", "a file", "and now?", "the root"]


def test_a_resumed_long_conversation_sends_the_same_request(log: ConversationStore) -> None:
    first = begun(log)
    for number in range(40):
        first.add_message(f"question {number} " + "word " * 30)
        answer(first, f"answer {number} " + "text " * 30)
    second = again(first)
    for conversation in (first, second):
        conversation.session.user("and now?")
    assert dict(second.session.request()) == dict(first.session.request())
    assert second.session.request().plan.is_trimmed


def test_a_message_without_a_reply_is_resumed(log: ConversationStore) -> None:
    first = begun(log)
    first.add_message("why?")
    assert list_contents(again(first)) == ["why?"]


def test_an_interrupted_reply_is_kept(log: ConversationStore) -> None:
    first = begun(log)
    first.add_message("why?")
    first.save_draft("Because it")
    second = again(first)
    assert second.session.history[-1] == {
        "role": "assistant",
        "content": "Because it",
        INCOMPLETE: True,
    }
    assert list_contents(again(second)) == ["why?", "Because it"]
    second.add_message("go on")
    assert INCOMPLETE not in json.dumps(dict(second.session.request()))


def test_open_calls_of_a_killed_shell_get_a_result(log: ConversationStore) -> None:
    first = begun(log)
    first.add_message("look")
    first.session.append({"role": "assistant", "content": None, "tool_calls": [CALL, OTHER]})
    first.save()
    first.add_result("c1", "seen")
    second = again(first)
    assert [turn.get("tool_call_id") for turn in second.session.history[2:]] == ["c1", "c2"]
    assert second.session.history[-1]["content"] == NO_RESULT
    second.add_message("and?")
    assert second.session.request()


def test_output_of_a_removed_exchange_waits_again(log: ConversationStore) -> None:
    first = begun(log)
    first.add_message("one")
    answer(first, "two")
    first.add_output("$ ls\nfile")
    first.add_message("three")
    answer(first, "four")
    first.add_output("$ pwd\n/")
    first.rewind(first.last_exchange())
    for conversation in (first, again(first)):
        assert list_contents(conversation) == ["one", "two"]
        assert get_driver(conversation.session).joined_outputs == "$ ls\nfile\n\n$ pwd\n/"


def test_an_empty_conversation_cannot_be_rewound(log: ConversationStore) -> None:
    with pytest.raises(InputError, match="no messages yet"):
        begun(log).last_exchange()


def test_the_store_keeps_removed_turns(log: ConversationStore) -> None:
    first = begun(log)
    first.add_message("one")
    answer(first, "two")
    first.rewind(0)
    assert [event.kind for event in log.events(first.name)] == ["turn", "turn", "rewind"]
    assert list_contents(again(first)) == []


def test_a_new_conversation_keeps_the_old_one(log: ConversationStore) -> None:
    first = begun(log)
    first.add_message("one")
    answer(first, "two")
    old = first.name
    first.start_new(log.create(Path("/"), "fast"))
    assert list_contents(first) == []
    assert first.session.ledger.total.calls == 1
    first.add_message("three")
    assert list_contents(again(first)) == ["three"]
    assert list_contents(resume_conversation(log, old, session)) == ["one", "two"]


def test_removed_turns_can_be_restored(log: ConversationStore) -> None:
    first = begun(log)
    first.add_output("$ ls\nfile")
    first.add_message("one")
    answer(first, "two")
    first.add_output("$ pwd\n/")
    waiting = get_driver(first.session).outputs
    first.restore(first.rewind(0), waiting)
    for conversation in (first, again(first)):
        assert list_contents(conversation) == ["one", "two"]
        assert get_driver(conversation.session).joined_outputs == "$ pwd\n/"


def test_an_interrupted_write_duplicates_nothing(log: ConversationStore) -> None:
    first = begun(log)
    first.add_message("one")
    answer(first, "two")
    first.saved_turns = 1  # as if interrupted right after the write
    first.add_message("three")
    assert list_contents(again(first)) == ["one", "two", "three"]


def test_the_next_shell_can_undo_a_compaction(log: ConversationStore) -> None:
    first = begun(log)
    for number in range(8):
        first.add_message(f"question {number} " + "word " * 20)
        answer(first, "text " * 20)
    whole = first.session.tokens
    first.compact(first.driver.plan_compaction(0.5, with_summary=True), lambda *_: "SUMMARY")
    small = first.session.tokens
    assert small < 0.8 * whole
    second = again(first)
    assert second.session.tokens == small
    assert get_driver(second.session).composer.is_compacted
    second.undo_compaction()
    third = again(second)
    assert not get_driver(third.session).composer.is_compacted
    assert third.session.summary is None
    assert third.session.tokens == whole


def test_a_compaction_cannot_be_undone_after_another_message(log: ConversationStore) -> None:
    first = begun(log)
    for _ in range(8):
        first.add_message("word " * 20)
        answer(first, "text " * 20)
    whole = first.session.tokens
    first.compact(first.driver.plan_compaction(0.5, with_summary=False), lambda *_: None)
    small = first.session.tokens
    first.compact(first.driver.plan_compaction(0.5, with_summary=False), lambda *_: None)
    first.add_message("more")
    assert not get_driver(first.session).composer.is_compacted
    first.rewind(first.last_exchange())
    assert get_driver(first.session).composer.is_compacted
    first.undo_compaction()
    assert first.session.tokens == small < whole
    first.rewind(first.last_exchange())
    assert not again(first).driver.composer.is_compacted


def test_an_interrupted_compaction_changes_nothing(log: ConversationStore) -> None:
    first = begun(log)
    for _ in range(8):
        first.add_message("word " * 20)
        answer(first, "text " * 20)
    before: Any = first.session.to_dict()

    def stopped(_job: object) -> None:
        raise KeyboardInterrupt

    making = get_driver(first.session).composer.compact(
        first.driver.plan_compaction(0.5, with_summary=True)
    )
    with pytest.raises(KeyboardInterrupt):
        run_flow(making, stopped)
    making.close()
    assert not get_driver(first.session).composer.is_compacted
    after: Any = first.session.to_dict()
    assert after["composer"]["compacted"] == before["composer"]["compacted"]
    assert first.session.current_plan.dropped_runs == ()


def test_instructions_of_brim_are_not_an_exchange(log: ConversationStore) -> None:
    first = begun(log)
    first.add_message("reach the goal")
    answer(first, "well")
    first.add_output("$ ls\nfile")
    first.add_message("go on", from_brim=True)
    assert first.last_exchange() == 0
    assert first.session.history[2]["_output"] == "$ ls\nfile"
    assert again(first).last_exchange() == 0


ACTIONS = ("say", "answer", "output", "back", "reset", "pin", "draft", "recall", "again")


@given(st.lists(st.sampled_from(ACTIONS), max_size=30))
def test_any_sequence_of_changes_is_resumed_unchanged(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str]
) -> None:
    database = Database(tmp_path_factory.mktemp("state"))
    conversation = begun(ConversationStore(database))
    for number, action in enumerate(actions):
        turns = conversation.session.history
        match action:
            case "say":
                conversation.add_message(f"words {number}")
            case "answer" if turns and turns[-1]["role"] == "user":
                answer(conversation, f"answer {number}")
            case "output":
                conversation.add_output(f"output {number}")
            case "back" if any(turn["role"] == "user" for turn in turns):
                conversation.rewind(conversation.last_exchange())
            case "reset":
                conversation.start_new(conversation.log.create(Path("/"), "fast"))
            case "pin" if turns:
                conversation.session.pin(len(turns) - 1)
                conversation.save()
            case "recall" if turns:
                conversation.recall(0)
            case "again":
                conversation = again(conversation)
    found = again(conversation)
    assert found.session.to_dict() == conversation.session.to_dict()
    database.close()


def test_messages_survive_an_unreadable_state(log: ConversationStore) -> None:
    first = begun(log)
    first.add_message("one")
    answer(first, "two")
    first.add_output("$ ls\nfile")
    log.record(first.name, [], {"version": 1, "nonsense": True})
    second = again(first)
    assert list_contents(second) == ["one", "two"]
    assert get_driver(second.session).joined_outputs == "$ ls\nfile"
