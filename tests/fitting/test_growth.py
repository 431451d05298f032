"""How many tokens new messages add, by the differences of a server's reports."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.fitting.calibration import UNCALIBRATED, Calibration
from brim.fitting.growth import UNMEASURED_GROWTH, Content, Growth

sizes = st.builds(
    Content,
    latin=st.floats(0, 1e6),
    messages=st.integers(0, 500),
    steps=st.integers(0, 500),
    non_latin=st.integers(0, 1_000_000),
)


def report(growth: Growth, count: int, per_token: float, per_message: int) -> Growth:
    """Return the growth after reports of a server that counts like this."""
    for place in range(count):
        content = Content(50 + 90 * (place % 5), 1 + place % 3, 0, 0)
        tokens = round(per_token * content.latin + per_message * content.messages)
        growth = growth.add_report(content, tokens)
    return growth


@pytest.mark.parametrize("per_token", [0.6, 1.0, 1.4, 2.5])
@pytest.mark.parametrize("per_message", [0, 20])
def test_a_few_reports_show_what_a_server_counts(per_token: float, per_message: int) -> None:
    growth = report(UNMEASURED_GROWTH, 12, per_token, per_message)
    expected, deviation = growth.estimate(Content(1_000, 2, 0, 0))
    true = 1_000 * per_token + 2 * per_message
    assert abs(expected - true) <= 0.05 * true
    assert deviation <= 0.06 * true


def test_text_of_a_kind_that_was_not_reported_yet_stays_uncertain() -> None:
    growth = report(UNMEASURED_GROWTH, 30, 1.2, 4)
    latin, foreign = Content(1_000, 2, 0, 0), Content(0, 2, 0, 5_000)
    shares = [deviation / tokens for tokens, deviation in map(growth.estimate, (latin, foreign))]
    assert shares[0] < 0.06 < 0.3 < shares[1]


def test_a_report_that_does_not_fit_makes_the_estimate_uncertain_again() -> None:
    growth = report(UNMEASURED_GROWTH, 30, 1.0, 4)
    odd = growth.add_report(Content(400, 2, 0, 0), 1_200)
    content = Content(1_000, 2, 0, 300)
    assert odd.estimate(content)[1] > 2 * growth.estimate(content)[1]


@given(st.lists(st.tuples(sizes, st.integers(1, 2_000_000)), max_size=20), sizes)
def test_any_reports_leave_a_usable_estimate(
    reports: list[tuple[Content, int]], content: Content
) -> None:
    calibration = UNCALIBRATED
    for new, tokens in reports:
        calibration = calibration.add_growth(new, tokens)
    expected, deviation = calibration.growth.estimate(content)
    assert 0 <= expected < float("inf")
    assert 0 < deviation < float("inf")
    assert Calibration.from_dict(json.loads(json.dumps(calibration.to_dict()))) == calibration


@pytest.mark.parametrize(
    "broken",
    [
        None,
        7,
        {},
        {"weights": [1, 2], "covariance": []},
        {"weights": None, "covariance": [[1]] * 4},
    ],
)
def test_saved_data_that_cannot_be_read_is_ignored(broken: object) -> None:
    assert Calibration.from_dict({"growth": broken}).growth == UNMEASURED_GROWTH
