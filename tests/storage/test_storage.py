"""State kept between runs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from brim.errors import InputError, StoreError
from brim.models.pricing import SpendingTotal, Usage
from brim.session.system_prompt import Fact
from brim.storage import (
    ConversationEvent,
    ConversationStore,
    Database,
    FactStore,
    SpendLog,
    replay_events,
)
from brim.storage.database import FILE, MIGRATIONS

DAY = 86_400.0


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "state")
    yield opened
    opened.close()


def turn(role: str, words: str, place: int = 0) -> ConversationEvent:
    return ConversationEvent.turn(place, {"role": role, "content": words})


def test_events_are_read_in_their_order(database: Database, tmp_path: Path) -> None:
    log = ConversationStore(database)
    name = log.create(tmp_path, "fast")
    log.record(name, [turn("user", "hi"), turn("assistant", "ho", 1)], {"a": 1})
    log.record(name, [turn("user", "and?", 2)])
    found = log.events(name)
    assert [event.data["message"]["content"] for event in found] == ["hi", "ho", "and?"]
    assert log.load_state(name) == ({"a": 1}, None)


def test_events_and_state_are_written_in_one_transaction(
    database: Database, tmp_path: Path
) -> None:
    log = ConversationStore(database)
    name = log.create(tmp_path, "fast")
    with pytest.raises(TypeError):
        log.record(
            name, [turn("user", "hi"), ConversationEvent("turn", {"message": object()})], {"a": 1}
        )
    assert log.events(name) == []
    assert log.load_state(name) == (None, None)
    assert log.list() == []


@pytest.mark.parametrize(
    ("events", "turns", "waiting"),
    [
        ([turn("user", "a"), turn("assistant", "b", 1)], ["a", "b"], []),
        ([ConversationEvent.output("x")], [], ["x"]),
        ([ConversationEvent.output("x"), turn("user", "a")], ["a"], []),
        ([ConversationEvent.output("x"), turn("assistant", "a")], ["a"], ["x"]),
        (
            [turn("user", "a"), turn("assistant", "b", 1), ConversationEvent.rewind(0, ["x"])],
            [],
            ["x"],
        ),
        ([ConversationEvent("asked", {"command": "ls"}), turn("user", "a")], ["a"], []),
        # Written twice, and rewound without a recorded event:
        ([turn("user", "a"), turn("assistant", "b", 1), turn("assistant", "b", 1)], ["a", "b"], []),
        ([turn("user", "a"), turn("assistant", "b", 1), turn("user", "c", 0)], ["c"], []),
    ],
)
def test_events_replay_to_turns_and_pending_outputs(
    events: list[ConversationEvent], turns: list[str], waiting: list[str]
) -> None:
    found = replay_events(events)
    assert [message["content"] for message in found.turns] == turns
    assert found.pending_outputs == waiting


def test_a_conversation_is_listed_by_its_first_message(database: Database, tmp_path: Path) -> None:
    log = ConversationStore(database)
    empty, name = log.create(tmp_path, "fast"), log.create(tmp_path, "fast")
    log.record(name, [turn("user", "why  is\nthe sky blue? " * 20), turn("assistant", "so", 1)])
    (saved,) = log.list(tmp_path)
    assert saved.id == name != empty
    assert saved.title.startswith("why is the sky blue? why is")
    assert len(saved.title) == 72
    assert saved.turns == 2
    assert log.list(tmp_path / "other") == []
    log.rename(name, "sky")
    log.record(name, [turn("user", "more")])
    assert log.list()[0].title == "sky"


def test_a_conversation_is_found_by_a_prefix_or_suffix(database: Database, tmp_path: Path) -> None:
    log = ConversationStore(database)
    one, _ = log.create(tmp_path, "fast"), log.create(tmp_path, "fast")
    log.record(one, [turn("user", "hi")])
    assert log.find(one).id == one
    assert log.find(one.rsplit("-", 1)[1]).id == one
    with pytest.raises(StoreError, match="matches 2"):
        log.find(one[:2])
    with pytest.raises(StoreError, match=f"Did you mean {one}"):
        log.find(one[:-1] + "zz")
    with pytest.raises(StoreError, match="sessions list"):
        log.find("")
    for sign in ("%", "_"):
        with pytest.raises(StoreError, match="Unknown conversation"):
            log.find(sign)


def test_only_the_user_can_read_the_database(database: Database, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log = ConversationStore(database)
        name = log.create(tmp_path, "fast")
        log.record(name, [turn("user", "secret")])
    finally:
        os.umask(before)
    for path in database.folder.rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert stat.S_IMODE(database.folder.stat().st_mode) == 0o700


def test_a_conversation_is_locked_by_one_process(database: Database, tmp_path: Path) -> None:
    name = ConversationStore(database).create(tmp_path, "fast")
    script = (
        "import sys; from pathlib import Path\n"
        "from brim.storage import ConversationStore, Database\n"
        "ConversationStore(Database(Path(sys.argv[1]))).lock(sys.argv[2])"
    )
    command = [sys.executable, "-c", script, str(database.folder), name]
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"{name} is open in another shell" in other.stderr


def _write_and_die(folder: str, name: str) -> None:
    log = ConversationStore(Database(Path(folder)))
    log.lock(name)
    for number in range(10):
        log.record(name, [turn("user", str(number), number)], {"number": number})
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_loses_nothing_and_keeps_no_lock(
    database: Database, tmp_path: Path
) -> None:
    log = ConversationStore(database)
    name = log.create(tmp_path, "fast")
    log.unlock(name)
    database.close()
    child = multiprocessing.get_context("spawn").Process(
        target=_write_and_die, args=(str(database.folder), name)
    )
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    log.lock(name)
    assert [event.data["message"]["content"] for event in log.events(name)] == list("0123456789")
    assert log.load_state(name) == ({"number": 9}, None)


def _write(folder: str, tag: str) -> None:
    log = ConversationStore(Database(Path(folder)))
    name = log.create(Path(tag), "fast")
    for number in range(40):
        log.record(name, [turn("user", f"{tag}{number}")], {"number": number})


def test_two_processes_write_concurrently(database: Database) -> None:
    context = multiprocessing.get_context("spawn")
    children = [
        context.Process(target=_write, args=(str(database.folder), tag)) for tag in ("a", "b", "c")
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    log = ConversationStore(database)
    assert sorted(saved.folder for saved in log.list()) == ["a", "b", "c"]
    for saved in log.list():
        contents = [event.data["message"]["content"] for event in log.events(saved.id)]
        assert contents == [f"{saved.folder}{number}" for number in range(40)]


def test_old_conversations_are_pruned_but_their_spending_is_kept(tmp_path: Path) -> None:
    now = [100 * DAY]
    database = Database(tmp_path)
    log = ConversationStore(database, lambda: now[0])
    spending = SpendLog(database, lambda: now[0])
    old, empty = log.create(tmp_path, "fast"), log.create(tmp_path, "fast")
    log.record(old, [turn("user", "hi")])
    log.outputs_folder(old).mkdir(parents=True)
    spending.add(SpendingTotal(1), session=old, project="p", model="m", category="main")
    for name in (old, empty):
        log.unlock(name)
    now[0] += 50 * DAY
    new = log.create(tmp_path, "fast")
    log.record(new, [turn("user", "hi")])
    log.unlock(new)
    assert log.prune(90) == 1  # the one without turns
    assert log.prune(0) == 0
    assert log.prune(30) == 1
    assert [saved.id for saved in log.list()] == [new]
    assert not log.outputs_folder(old).exists()
    assert sum(spent.total.calls for spent in spending.by("model")) == 1
    database.close()


def test_a_conversation_open_elsewhere_is_not_removed(tmp_path: Path) -> None:
    now = [100 * DAY]
    first = ConversationStore(Database(tmp_path), lambda: now[0])
    name = first.create(tmp_path, "fast")
    first.record(name, [turn("user", "hi")])
    now[0] += 500 * DAY
    second = ConversationStore(Database(tmp_path), lambda: now[0])
    assert second.prune(30) == 0
    with pytest.raises(StoreError, match="open in another shell"):
        second.remove(name)
    assert [saved.id for saved in second.list()] == [name]


def test_a_draft_is_kept_until_the_next_state(database: Database, tmp_path: Path) -> None:
    log = ConversationStore(database)
    name = log.create(tmp_path, "fast")
    log.record(name, [turn("user", "hi")], {"a": 1})
    log.save_draft(name, "The sky is")
    assert log.load_state(name) == ({"a": 1}, "The sky is")
    log.record(name, [ConversationEvent("ran", {})])
    assert log.load_state(name)[1] == "The sky is"
    log.record(name, [turn("assistant", "The sky is blue", 1)], {"a": 2})
    assert log.load_state(name) == ({"a": 2}, None)


def test_spending_is_grouped_by_the_given_keys(tmp_path: Path) -> None:
    now = [datetime(2026, 11, 14, 12).astimezone().timestamp()]
    database = Database(tmp_path)
    spending = SpendLog(database, lambda: now[0])

    def spend(cost: str, model: str, **more: str) -> None:
        call = SpendingTotal(
            1, Usage(input=10, cached=4, output=2), Decimal(cost), 11, unknown=cost == "0"
        )
        known = {"session": "s", "project": "p", "category": "main", **more}
        spending.add(call, model=model, **known)

    spend("0.5", "a")
    now[0] += DAY
    spend("0.25", "a")
    spend("0", "b", project="q")
    assert spending.today().cost == Decimal("0.25")
    assert spending.today().format_cost() == "at least $0.2500"
    by_model = {spent.keys: spent.total for spent in spending.by("model")}
    assert by_model["a",].cost == Decimal("0.75")
    assert by_model["a",].usage == Usage(input=20, cached=8, output=4)
    assert by_model["b",].format_cost() == "unknown"
    since = spending.by("day", "project", since=date(2026, 11, 15))
    assert [spent.keys for spent in since] == [("2026-11-15", "p"), ("2026-11-15", "q")]
    database.close()


def test_facts_and_settings_persist(database: Database) -> None:
    facts = FactStore(database)
    first = facts.add("fact", "  the build\nneeds make ")
    second = facts.add("preference", "short answers")
    assert facts.all() == {
        first: Fact("fact", "the build needs make"),
        second: Fact("preference", "short answers"),
    }
    assert facts.forget(first) == Fact("fact", "the build needs make")
    with pytest.raises(InputError, match="Unknown fact"):
        facts.forget(first)
    with pytest.raises(InputError, match="fact is empty"):
        facts.add("fact", " \n")
    assert facts.clear() == 1
    assert facts.setting("fitting", True) is True
    facts.save_setting("fitting", False)
    facts.save_setting("fitting", False)
    assert FactStore(Database(database.folder)).setting("fitting", True) is False


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no database at all, but long enough to be told from an empty file" * 20, "cannot be"),
        (None, "newer brim"),
    ],
)
def test_the_error_names_an_unusable_file(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    if content is None:
        with sqlite3.connect(tmp_path / FILE) as base:
            base.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
        base.close()
    else:
        (tmp_path / FILE).write_bytes(content)
    with pytest.raises(StoreError, match=problem) as caught:
        ConversationStore(Database(tmp_path)).list()
    assert str(tmp_path / FILE) in str(caught.value)


def test_the_error_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="BRIM_STATE"):
        FactStore(Database(tmp_path / "file" / "state")).all()


def test_an_unpaired_surrogate_is_stored_unchanged(database: Database, tmp_path: Path) -> None:
    log = ConversationStore(database)
    name = log.create(tmp_path, "fast")
    log.record(name, [turn("user", "half \ud83d of it")], {"a": "\ud83d"})
    assert log.events(name)[0].data["message"]["content"] == "half \ud83d of it"


def test_an_open_conversation_is_not_pruned(tmp_path: Path) -> None:
    now = [100 * DAY]
    log = ConversationStore(Database(tmp_path), lambda: now[0])
    name = log.create(tmp_path, "fast")
    log.record(name, [turn("user", "hi")])
    now[0] += 500 * DAY
    assert log.prune(30) == 0
    log.record(name, [turn("assistant", "ho", 1)])


def test_the_error_names_a_removed_conversation(database: Database, tmp_path: Path) -> None:
    log = ConversationStore(database)
    name = log.create(tmp_path, "fast")
    log.remove(name)
    with pytest.raises(StoreError, match=f"{name} was removed"):
        log.record(name, [ConversationEvent("ran", {})])
