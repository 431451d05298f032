from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.fitting.calibration import (
    DENSITY_BOUNDS,
    MAX_SHORTFALL,
    MIN_UNCERTAINTY,
    RATIO_BOUNDS,
    RATIO_STEP,
    SHORTFALL_STEP,
    UNCALIBRATED,
    Calibration,
)
from brim.fitting.profile import ModelProfile
from brim.messages import Call, Message
from brim.session.session import get_driver
from brim.tokens import counter_for
from brim.tokens.counter import CalibratedCounter, RequestCounter, measure_non_latin
from tests.support.strategies import Raw

UNKNOWN = "acme/unknown-model"
LATIN = "the budget of the parser reads a file, and writes another one. "
JAPANESE = "日本語の文章は、ここに書かれています。"
RUSSIAN = "Здесь написан русский текст. "


def calibrate(*ratios: float, estimate: int = 1_000) -> Calibration:
    """Return the calibration after reports about requests that first counted `estimate`."""
    known = UNCALIBRATED
    for ratio in ratios:
        known = known.add_report(estimate, 0, round(estimate * ratio), UNCALIBRATED)
    return known


def test_before_the_first_report_nothing_is_scaled() -> None:
    assert (UNCALIBRATED.ratio, UNCALIBRATED.density, UNCALIBRATED.uncertainty(0.25)) == (
        1.0,
        1.0,
        0.25,
    )


@pytest.mark.parametrize("true", [0.55, 0.7, 0.9, 1.0, 1.1, 1.3, 2.0, 2.9])
def test_a_constant_ratio_is_found_immediately_and_never_underestimated(true: float) -> None:
    known = calibrate(true)
    assert true - 0.001 <= known.ratio <= true * RATIO_STEP + 0.001
    assert calibrate(*[true] * 20).ratio == known.ratio


@pytest.mark.parametrize("true", [0.7, 1.3, 2.0])
def test_a_ratio_is_found_whether_or_not_the_estimates_already_use_it(true: float) -> None:
    plain = scaled = UNCALIBRATED
    for _ in range(20):
        plain = plain.add_report(1_000, 0, round(1_000 * true), UNCALIBRATED)
        scaled = scaled.add_report(math.ceil(1_000 * scaled.ratio), 0, round(1_000 * true))
    assert plain.ratio == pytest.approx(true, rel=0.025)
    assert scaled.ratio == pytest.approx(true, rel=0.025)


def test_ratios_move_in_steps() -> None:
    steps = {calibrate(1.2 + 0.0005 * n).ratio for n in range(100)}
    assert len(steps) <= 4
    for lower, higher in zip(sorted(steps), sorted(steps)[1:], strict=False):
        assert higher / lower == pytest.approx(RATIO_STEP, abs=0.001)


@pytest.mark.parametrize("odd", [0.0, 0.01, 100.0, -3.0])
def test_an_outlier_is_bounded_and_among_many_reports_has_little_effect(odd: float) -> None:
    alone = calibrate(odd).ratio
    assert RATIO_BOUNDS[0] <= alone <= RATIO_BOUNDS[1] * RATIO_STEP
    assert calibrate(1.2, 1.2, 1.2, odd, 1.2).ratio == pytest.approx(1.2, rel=0.025)


def test_old_reports_are_discarded() -> None:
    assert calibrate(*[2.0] * 8, *[1.1] * 8).ratio == pytest.approx(1.1, rel=0.025)


def test_the_uncertainty_shrinks_with_consistent_reports() -> None:
    doubts = [calibrate(*[1.2] * number).uncertainty(0.25) for number in range(5)]
    assert doubts == [0.25, 0.125, 0.125, MIN_UNCERTAINTY, MIN_UNCERTAINTY]
    assert calibrate(1.0, 1.4, 1.0, 1.4).uncertainty(0.25) == pytest.approx(0.2)
    assert calibrate(0.5, 3.0, 0.5, 3.0).uncertainty(0.25) == 0.25


@given(st.lists(st.floats(0.01, 50), min_size=1, max_size=20), st.floats(0.01, 0.5))
def test_the_uncertainty_never_exceeds_the_initial_one(ratios: list[float], first: float) -> None:
    assert 0 < calibrate(*ratios).uncertainty(first) <= max(first, 0.01)


def test_a_small_request_does_not_calibrate() -> None:
    assert calibrate(3.0, estimate=100) == UNCALIBRATED


def test_non_latin_text_is_calibrated_separately() -> None:
    known = UNCALIBRATED.add_report(3_100, 3_000, 1_000)
    assert known.ratios == ()
    assert known.density == pytest.approx(0.3, rel=0.03)


def test_a_mixed_request_shows_how_dense_its_non_latin_text_is_at_most() -> None:
    known = UNCALIBRATED.add_report(2_000, 1_000, 1_300)
    assert known.ratios == ()
    assert known.density == pytest.approx(0.45, rel=0.03)
    assert UNCALIBRATED.add_report(2_000, 1_000, 1_900) == UNCALIBRATED


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**7))
def test_calibrations_stay_within_bounds_for_any_report(
    estimate: int, foreign: int, true: int
) -> None:
    known = UNCALIBRATED.add_report(estimate, foreign, true)
    assert RATIO_BOUNDS[0] <= known.ratio <= RATIO_BOUNDS[1] * RATIO_STEP
    assert DENSITY_BOUNDS[0] <= known.density <= 1.0


@given(
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 9_000))),
    st.one_of(st.none(), st.integers(1, 10**6)),
    st.lists(st.integers(-(10**6), 10**12)),
)
def test_a_calibration_survives_json(
    reports: list[tuple[int, int, int]], window: int | None, missing: list[int]
) -> None:
    known = UNCALIBRATED.with_window(window)
    for report in reports:
        known = known.add_report(*report)
    for tokens in missing:
        known = known.add_shortfall(tokens)
    assert Calibration.from_dict(json.loads(json.dumps(known.to_dict()))) == known


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        {},
        [],
        "x",
        7,
        {"ratios": None, "densities": 3, "window": "8k"},
        {"ratios": ["1.2", None, True, math.nan, math.inf, -math.inf, {}], "window": -5},
        {"ratios": "1.2", "densities": {"a": 1}, "window": True},
        {"window": 0},
        {"window": 8_192.0},
        {"shortfalls": 900},
        {"shortfalls": [-1, True, False, None, 2.5, "9", 10**400]},
    ],
)
def test_invalid_saved_values_are_ignored(nonsense: Any) -> None:
    assert Calibration.from_dict(nonsense) == UNCALIBRATED


def test_saved_numbers_out_of_bounds_are_clamped() -> None:
    known = Calibration.from_dict({"ratios": [-1, 99], "densities": [0, 5], "window": 8_192})
    assert known == Calibration((0.5, 3.0), DENSITY_BOUNDS, 8_192)
    assert Calibration.from_dict({"ratios": [1.1] * 50}).ratios == (1.1,) * 8
    assert Calibration.from_dict({"shortfalls": [7] * 50}).shortfalls == (7,) * 8


@given(st.lists(st.integers(-(10**6), 10**12), min_size=1, max_size=3))
def test_shortfalls_move_in_steps_and_are_never_underestimated(missing: list[int]) -> None:
    known, most = UNCALIBRATED, min(max(0, *missing), MAX_SHORTFALL)
    for tokens in missing:
        known = known.add_shortfall(tokens)
    assert most <= known.offset <= SHORTFALL_STEP * most + 1
    assert not most or known.add_shortfall(most).offset == known.offset


# Counting with it


def counter(ratio: float = 1.0, density: float = 1.0) -> CalibratedCounter:
    plain = counter_for(UNKNOWN)
    assert isinstance(plain, RequestCounter)
    return CalibratedCounter(plain, ratio, density, 0.25)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.3195, 3.0])
def test_latin_text_is_scaled_up_to_the_next_token(ratio: float) -> None:
    plain = counter_for(UNKNOWN).text(LATIN)
    assert counter(ratio).text(LATIN) == math.ceil(ratio * plain)
    assert counter(ratio).text("") == 0


@given(st.text(max_size=200))
def test_uncalibrated_non_latin_text_counts_at_its_byte_bound(
    given_: str,
) -> None:
    foreign = measure_non_latin([Message("user", words=(given_,))])
    assert counter().text(given_) >= foreign
    assert counter().text(given_) <= max(1, len(given_.encode("utf-8", "surrogatepass")) + 1)


@given(st.text(max_size=100), st.floats(0.5, 3.0), st.floats(0.2, 1.0))
def test_a_higher_ratio_or_density_never_counts_less(
    given_: str, ratio: float, density: float
) -> None:
    count = counter(ratio, density).text(given_)
    assert 0 <= count <= counter(ratio * 1.1, density).text(given_)
    assert count <= counter(ratio, min(1.0, density * 1.1)).text(given_)
    assert bool(count) is bool(given_)


@pytest.mark.parametrize(
    ("given_", "bytes_"),
    [
        (LATIN, 0),
        ("naïve café — “quoted” … 5 €", 0),
        (JAPANESE, 3 * len(JAPANESE)),
        ("a日b本c", 6),
        ("🙂", 4),
    ],
)
def test_non_latin_text_is_measured_in_bytes(given_: str, bytes_: int) -> None:
    assert measure_non_latin([Message("user", words=(given_,))]) == bytes_
    assert counter(density=0.5).text(given_) <= counter(density=1.0).text(given_)


def test_all_texts_of_a_message_are_measured() -> None:
    turn = Message(
        "assistant",
        words=("日",),
        outputs=("本",),
        thinking=("語",),
        calls=(Call("1", "f", '{"a": "日"}'),),
        extras=("本",),
    )
    assert measure_non_latin([turn]) == 15


def test_counters_with_the_same_name_count_the_same() -> None:
    assert counter(1.3).name != counter(1.3 * RATIO_STEP).name
    assert counter(1.0, 0.2).name != counter(1.0, 0.2 * RATIO_STEP).name


def test_a_model_with_a_known_vocabulary_is_not_calibrated() -> None:
    known = calibrate(1.5)
    assert not isinstance(
        ModelProfile("gpt-4o").with_calibration(known).counter(), CalibratedCounter
    )
    assert isinstance(ModelProfile(UNKNOWN).with_calibration(known).counter(), CalibratedCounter)


# In a session


def answer(tokens: int) -> Raw:
    return {
        "choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 1},
    }


def exchange(chat: brim.Session, words: str, ratio: float) -> brim.Request:
    chat.user(words)
    request = chat.request()
    chat.receive(answer(round(ratio * brim.count(request.messages, model="gpt-4o"))))
    return request


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.3, 2.0])
def test_a_session_calibrates_and_stays_calibrated(ratio: float) -> None:
    chat = brim.Session(UNKNOWN, window=200_000)
    for _ in range(12):
        exchange(chat, LATIN * 40, ratio)
        assert get_driver(chat).profile.calibration.ratio == pytest.approx(ratio, rel=0.08)


@pytest.mark.parametrize("system", ["", JAPANESE * 20])
def test_a_non_latin_system_text_does_not_distort_the_ratio(system: str) -> None:
    chat = brim.Session(UNKNOWN, window=200_000, system=system)
    for _ in range(12):
        exchange(chat, LATIN * 200, 1.3)
    assert get_driver(chat).profile.calibration.ratio == pytest.approx(1.3, rel=0.1)


def test_a_clipped_non_latin_output_does_not_distort_the_ratio() -> None:
    chat = brim.Session(UNKNOWN, window=4_001, reply=1)
    chat.user("look")
    for number in range(9):
        call = {"id": f"c{number}", "function": {"name": "run", "arguments": "{}"}}
        chat.assistant(None, [call])
        chat.tool(f"c{number}", JAPANESE * 30 if number == 1 else LATIN * 40)
        request = chat.request()
        chat.receive(answer(round(1.2 * brim.count(request.messages, model="gpt-4o"))))
    assert get_driver(chat).profile.calibration.ratio == pytest.approx(1.2, rel=0.15)


def test_the_system_text_is_counted_again_after_calibration() -> None:
    chat = brim.Session(UNKNOWN, window=8_001, reply=1, system=LATIN * 300)
    truth = []
    for number in range(30):
        chat.user(f"{number} {LATIN * 10}")
        request = chat.request()
        true = round(1.24 * brim.count(request.messages, model="gpt-4o"))
        truth.append(true)
        chat.receive(answer(true))
    assert max(truth) <= 8_000


def test_after_a_switch_no_calibration_of_the_first_model_is_used() -> None:
    chat = brim.Session(UNKNOWN, window=20_000)
    exchange(chat, LATIN * 40, 2.0)
    assert get_driver(chat).profile.calibration.ratio > 1.9
    chat.switch("acme/other-model", window=20_000)
    assert get_driver(chat).profile.calibration == UNCALIBRATED
    fresh = brim.Session("acme/other-model", window=20_000)
    for turn in chat.history:
        fresh.append(turn)
    assert chat.tokens == fresh.tokens


def test_a_reply_from_before_a_switch_does_not_calibrate_the_new_model() -> None:
    chat = brim.Session(UNKNOWN, window=20_000)
    chat.user(LATIN * 40)
    chat.request()
    chat.switch("acme/other-model", window=20_000)
    chat.receive(answer(5_000))
    assert get_driver(chat).profile.calibration == UNCALIBRATED
    assert list(chat.ledger.totals) == [(UNKNOWN, "main")]
