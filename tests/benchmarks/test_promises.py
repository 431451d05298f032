"""A small part of `make proof`, on the real server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.promises import cache
from benchmarks.promises.counts import compare_counts
from benchmarks.promises.fitting import Fitting, Tally
from benchmarks.promises.material import Conversation, generate
from benchmarks.promises.reference_server import TEMPLATE
from brim.fitting.flow import CountMode
from brim.storage.calibration_store import CalibrationStore
from tests.support.fixtures import LlamaWith


@pytest.fixture
def calibration(tmp_path: Path) -> CalibrationStore:
    return CalibrationStore(tmp_path / "calibration.sqlite3")


def conversations(number: int = 7, turns: int = 24) -> list[Conversation]:
    return list(generate(number, turns))


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["its own template", "with tools"])
def test_the_count_before_sending_equals_the_servers_count(
    template: str | None, llama_with: LlamaWith, calibration: CalibrationStore
) -> None:
    server = llama_with(window=2048, template=template)
    chats = [chat for chat in conversations() if chat.kind in ("words", "emoji", "mixed")]
    with closing(compare_counts(server, chats, calibration)) as comparing:
        results = list(islice(comparing, 9))
    assert len(results) == 9
    assert [result.brim for result in results] == [result.server for result in results]


@pytest.fixture
def fitted(short_weights: Path, calibration: CalibrationStore) -> Iterator[object]:
    opened: list[Fitting] = []

    def fit(ask: CountMode, most: int, sends: int) -> list[Tally]:
        opened.append(Fitting(short_weights, calibration, ask, (256, 512)))
        opened[-1].run(conversations(), most, sends)
        return list(opened[-1].tallies.values())

    yield fit
    for fitting in opened:
        fitting.close()


def test_server_counts_near_the_limit_prevent_errors_and_needless_trims(
    fitted: object,
) -> None:
    assert callable(fitted)
    for tally in fitted("near", 120, 6):
        assert tally.requests > 30
        assert tally.naive > 10
        assert (tally.over, tally.template_errors, tally.needless, tally.rejected) == (0, 0, 0, 0)


def test_with_estimates_alone_context_length_errors_are_rare_and_recovered(fitted: object) -> None:
    assert callable(fitted)
    tallies = fitted("off", 120, 0)
    assert sum(tally.rejected for tally in tallies) <= 2
    assert sum(tally.over + tally.lost + tally.template_errors for tally in tallies) == 0


def test_steady_preserves_the_prefix_cache(short_weights: Path) -> None:
    sliding, steady = (
        cache.count_evaluated_tokens(short_weights, policy, window=256, turns=12, parts=1)
        for policy in ("sliding", "steady")
    )
    assert steady < sliding
