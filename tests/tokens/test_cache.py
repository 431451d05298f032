"""Cached counts."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from brim.tokens import cache, counter_for
from brim.tokens.cache import CAPACITY, ENTRY_WEIGHT, MAX_STORED_LENGTH, CountCache, make_safe_count


def make_recorder(counted: list[str]) -> Callable[[str], int]:
    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    return count


def sum_entries(table: CountCache) -> int:
    return sum(len(text) + ENTRY_WEIGHT for text in (*table.young, *table._old))


def test_a_text_is_counted_once() -> None:
    counted: list[str] = []
    table = CountCache(make_recorder(counted))
    assert [table.find("hello"), table.young["hello"], table.find("hello")] == [5, 5, 5]
    assert counted == ["hello"]


def test_a_long_text_is_counted_once_and_not_stored() -> None:
    counted: list[str] = []
    table = CountCache(make_recorder(counted))
    text = "x" * (MAX_STORED_LENGTH + 1)
    assert table.find(text) == table.find(text) == MAX_STORED_LENGTH + 1
    assert len(counted) == 1
    assert sum_entries(table) == ENTRY_WEIGHT  # the empty text


def test_the_cache_is_bounded_and_keeps_used_entries() -> None:
    counted: list[str] = []
    table = CountCache(make_recorder(counted))
    for number in range(200):
        table.find(f"{number:03}" * 300_000)
        if "often" not in table.young:
            table.find("often")
        assert sum_entries(table) <= CAPACITY + MAX_STORED_LENGTH
    assert counted.count("often") == 1
    assert len(set(counted)) == 201


def test_all_caches_share_one_bound() -> None:
    tables = [CountCache(len) for _ in range(20)]
    for table in tables:
        for number in range(10):
            table.find(f"{number}" * 900_000)
    assert sum(map(sum_entries, tables)) <= CAPACITY + MAX_STORED_LENGTH


@pytest.mark.parametrize("outcome", [-1, RuntimeError("broken")])
def test_a_failing_tokenizer_falls_back_to_the_bytes(outcome: int | Exception) -> None:
    def count(_: str) -> int:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert make_safe_count(count)("größe") == 7
    assert make_safe_count(len)("größe") == 5


def test_an_interrupt_is_not_suppressed() -> None:
    def count(_: str) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_safe_count(count)("text")


def test_threads_get_the_same_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "CAPACITY", 40_000)  # so that the generations turn over all the time
    counter = counter_for("gpt-4o")
    texts = [f"line {number} of a log, as long as it has to be" for number in range(500)]
    truth = [counter.text(text) for text in texts]
    mismatches: list[str] = []

    def count() -> None:
        for _ in range(20):
            for text, tokens in zip(texts, truth, strict=True):
                if counter.text(text) != tokens:
                    mismatches.append(text)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mismatches == []
