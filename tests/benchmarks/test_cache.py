"""The cache simulator, with requests small enough to price by hand."""

from __future__ import annotations

import pytest

from benchmarks import cache, ruler

SIZES = [2_000, 1_000, 1_000, 1_000, 1_000]
"""Message 0 is the system prompt; the others are turns."""


def session(*requests: list[int]) -> list[cache.Prompt]:
    return cache.prompts(requests, SIZES, [1] * len(requests))


def test_after_an_appended_turn_everything_before_it_is_shared() -> None:
    _, second = session([0, 1], [0, 1, 2])
    assert (second.shared, second.known, second.ends) == (2, 2, (0, 2_000, 3_000, 4_000))


def test_after_a_dropped_turn_only_the_start_is_shared() -> None:
    _, second = session([0, 1, 2], [0, 2, 3])
    assert second.shared == second.known == 1


def test_a_prefix_sent_long_ago_is_known_but_not_shared() -> None:
    *_, third = session([0, 1, 2], [0, 3], [0, 1, 2, 3])
    assert (third.shared, third.known) == (1, 3)


def test_anthropic_reads_cached_tokens_and_writes_new_ones() -> None:
    paid = cache.anthropic(session([0, 1], [0, 1, 2]), first=1)
    # Reading 3,000 and leaving the last turn unmarked would need a mark that was never made.
    assert paid == pytest.approx(0.1 * 3_000 + 1.25 * 1_000 + ruler.REQUEST)


def test_anthropic_does_not_write_tokens_that_are_never_read() -> None:
    # Every request after the head is new: marking the head alone is the cheapest way.
    paid = cache.anthropic(session([0, 1], [0, 2], [0, 3]), first=1)
    assert paid == pytest.approx(2 * (0.1 * 2_000 + 1_000 + ruler.REQUEST))


def test_anthropic_does_not_cache_below_its_minimum() -> None:
    small = cache.prompts([[0, 1], [0, 1]], [500, 500], [1, 1])
    assert cache.anthropic(small, first=1) == 1_000 + ruler.REQUEST


def test_anthropic_finds_no_entry_more_than_twenty_messages_back() -> None:
    sizes = [2_000] + [100] * 40
    near, far = list(range(21)), list(range(40))
    read = cache.anthropic(cache.prompts([[0, 1], near], sizes, [2, 2]), first=1)
    missed = cache._price_marked(cache.prompts([[0, 1], far], sizes, [2, 2]), 1, ["tail"])
    assert read < 0.1 * 2_100 + 1.25 * 1_900 + 2 * ruler.REQUEST
    assert missed == pytest.approx(1.25 * (2_000 + 39 * 100) + ruler.REQUEST)


def test_openai_reads_in_blocks_and_writes_for_free() -> None:
    paid = cache.openai(session([0, 1], [0, 1, 2]), first=1)
    grains = 3_000 - 3_000 % 128
    assert paid == pytest.approx(0.1 * grains + 4_000 - grains + ruler.REQUEST)


def test_a_local_server_evaluates_only_tokens_after_the_shared_prefix() -> None:
    requests = session([0, 1], [0, 1, 2], [0, 2])
    assert cache.local(requests, first=1) == 1_000 + 1_000 + 2 * ruler.REQUEST


def test_requests_before_the_first_fill_the_cache_for_free() -> None:
    requests = session([0, 1], [0, 1, 2])
    for price in cache.RULES.values():
        assert price(requests, 2) == 0


def test_a_trim_is_a_request_that_does_not_start_with_the_previous_one() -> None:
    requests = session([0, 1], [0, 1, 2], [0, 2], [0, 2, 3])
    assert cache.trims(requests, first=0) == 1
    assert cache.trims(requests, first=3) == 0
