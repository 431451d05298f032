"""What a server's reports and errors change in a profile, and what they cannot change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import Overflow
from brim.fitting import feedback
from brim.fitting.calibration import MAX_REPORTS, UNCALIBRATED, Calibration
from brim.fitting.plan import Plan
from brim.fitting.planner import Planner
from brim.fitting.policies import POLICIES
from brim.fitting.profile import MAX_OFFSET_SHARE, ModelProfile
from brim.messages import Media, Message

WINDOW = 8_000
EXACT = ModelProfile("gpt-4o", window=WINDOW, reply=500)
ESTIMATED = ModelProfile("acme/unknown-model", window=WINDOW, reply=500)


def make_plan(target: ModelProfile, *messages: Message) -> tuple[Planner, Plan]:
    counter = target.counter()
    planner = Planner(counter, target.budget(counter), POLICIES["steady"])
    planner.extend(messages)
    return planner, planner.plan_all()


def words(number: int) -> Message:
    return Message("user", words=("word " * number,))


def handle_error(
    overflow: Overflow, target: ModelProfile = EXACT, accepted: int = 0
) -> ModelProfile:
    """Return the profile after a context-length error about 6,000 tokens."""
    _, plan = make_plan(target, words(6_000))
    return feedback.evaluate_rejection(plan, overflow, replace(target, accepted=accepted))[0]


def handle_report(
    target: ModelProfile, tokens: int, *messages: Message, accepted: int = 0
) -> Calibration:
    planner, plan = make_plan(target, *messages)
    known = target.calibration
    target = replace(target, accepted=accepted)
    result = feedback.evaluate_report(plan, tokens, planner, target, known)
    return known if result is None else result.profile.calibration


# Limits


@pytest.mark.parametrize(
    "overflow_error",
    [
        Overflow(5_000, 6_100),
        Overflow(5_000, None),
        Overflow(6_500, 6_100, output=500),
        Overflow(7_000, 8_100, at_least=True),
        Overflow(5_000, 5_000, at_least=True),
    ],
)
def test_a_limit_that_explains_the_error_is_recorded_as_the_window(
    overflow_error: Overflow,
) -> None:
    target = handle_error(overflow_error)
    assert (target.calibration.window, target.ceiling) == (overflow_error.limit, None)


@pytest.mark.parametrize(
    ("overflow_error", "accepted"),
    [
        pytest.param(Overflow(5_000, 6_100, kind="rate"), 0, id="what a key may send in a minute"),
        pytest.param(Overflow(5_000, 6_100), 5_000, id="less than was answered"),
        pytest.param(Overflow(5_000, 4_000), 0, id="more than was sent"),
        pytest.param(Overflow(7_900, None), 0, id="more than we count"),
        pytest.param(Overflow(900, 1_000), 0, id="of something smaller"),
        pytest.param(Overflow(7_000, 90_000), 0, id="of something larger"),
    ],
)
def test_any_other_limit_is_a_ceiling_for_the_sender_only(
    overflow_error: Overflow, accepted: int
) -> None:
    target = handle_error(overflow_error, accepted=accepted)
    assert (target.calibration, target.ceiling) == (UNCALIBRATED, overflow_error.limit)


@given(
    st.builds(
        Overflow,
        st.none() | st.integers(1, 2 * WINDOW),
        st.none() | st.integers(1, 2 * WINDOW),
        st.none() | st.integers(1, 2 * WINDOW),
        st.sampled_from(["window", "rate", "size"]),
        st.booleans(),
    ),
    st.integers(0, WINDOW),
)
def test_no_error_records_a_window_below_an_answered_request(
    overflow_error: Overflow, most: int
) -> None:
    new_window = handle_error(overflow_error, accepted=most).calibration.window
    assert new_window is None or new_window > most


# Ratios


IMAGE = Message("user", words=("look",), media=(Media("image"),))
UNKNOWN_PART = Message("user", words=("look",), extras=('{"type":"container_upload"}',))
NAMED = Message("user", words=("look",), extras=("Ada",))


@pytest.mark.parametrize("unreadable", [IMAGE, UNKNOWN_PART])
@pytest.mark.parametrize("target", [EXACT, ESTIMATED])
def test_unreadable_content_does_not_calibrate(target: ModelProfile, unreadable: Message) -> None:
    assert handle_report(target, 7_000, words(5_000), unreadable) == UNCALIBRATED


def test_a_message_with_a_name_calibrates() -> None:
    assert handle_report(ESTIMATED, 6_000, words(5_000), NAMED).ratio > 1.1


@pytest.mark.parametrize("tokens", [3_100, 7_000, 90_000])
def test_a_report_far_above_the_estimate_does_not_calibrate(tokens: int) -> None:
    assert handle_report(ESTIMATED, tokens, words(1_000)) == UNCALIBRATED


# What a server adds


def test_tokens_that_a_server_adds_to_large_requests_are_kept_free() -> None:
    known = handle_report(EXACT, 7_200, words(6_000))
    target = EXACT.with_calibration(known)
    before, after = (each.budget(each.counter()) for each in (EXACT, target))
    _, plan = make_plan(EXACT, words(6_000))
    missing = 7_200 - plan.tokens
    assert missing <= known.offset <= 1.25 * missing + 1
    assert (after.window, after.room) == (before.window, before.room)
    assert after.limit == before.limit - known.offset


def test_a_small_request_records_no_shortfall() -> None:
    assert handle_report(EXACT, 1_400, words(1_000)) == UNCALIBRATED


def test_a_shortfall_does_not_change_the_budget_of_calibrated_estimates() -> None:
    known = replace(UNCALIBRATED, shortfalls=(1_000,))
    assert ESTIMATED.with_calibration(known).budget(ESTIMATED.counter()) == ESTIMATED.budget(
        ESTIMATED.counter()
    )


def test_one_outlier_among_many_reports_changes_no_shortfall() -> None:
    known = UNCALIBRATED
    for missing in (0, 0, 0, 0, 1_200):
        known = known.add_shortfall(missing)
    assert known.offset == 0
    assert known.add_shortfall(1_200).offset >= 1_200


def test_a_shortfall_rises_immediately_and_falls_with_later_reports() -> None:
    known = UNCALIBRATED.add_shortfall(1_200)
    assert known.offset >= 1_200
    for _ in range(MAX_REPORTS):
        known = known.add_shortfall(-50)
    assert known.offset == 0


@given(st.lists(st.integers(-WINDOW, 10 * WINDOW), max_size=20), st.integers(0, WINDOW))
def test_a_shortfall_never_takes_most_of_the_room(extra: list[int], accepted: int) -> None:
    target = EXACT
    for tokens in extra:
        count = 6_000 + tokens
        target = target.with_calibration(
            handle_report(target, max(0, count), words(6_000), accepted=accepted)
        )
    budget = target.budget(target.counter())
    assert budget.limit >= (1 - MAX_OFFSET_SHARE) * budget.room
    assert budget.window - budget.margin >= min(accepted, budget.window)
