"""What a reply or a context-length error shows about a model; profiles in, profiles out.

The reported size of a prompt calibrates later estimates, unless it cannot be of the whole prompt
or may be of more. After a context-length error the request has to become smaller in any case; the
error's numbers decide how much. The limit it names is recorded as the model's window only if
nothing contradicts that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from brim.errors import Overflow
from brim.fitting.calibration import SHORTFALL_STEP, Calibration
from brim.fitting.flow import (
    MAX_UNDERESTIMATE,
    Measurement,
    estimate_bounds,
    list_new_messages,
    measure_framing,
)
from brim.fitting.growth import Content
from brim.fitting.plan import Plan
from brim.fitting.planner import Planner
from brim.fitting.profile import ModelProfile
from brim.messages import Message
from brim.tokens import Counter
from brim.tokens.counter import measure_non_latin

RETRY_SHARE: Final = 0.85
"""The share of a request to try after a context-length error without numbers."""
MIN_REPORT_SHARE: Final = 0.75
"""A report below this share of the least possible size is not of the whole request."""
MAX_REPORT_RATIO: Final = 3.0
"""A report above this multiple of the estimate includes more than the request."""
LARGE_REQUEST_SHARE: Final = 0.5
"""From this share of the room on, a request shows how many tokens a server adds."""
MIN_WINDOW: Final = 64
"""A smaller limit in an error is about something else."""


class ReportFeedback(NamedTuple):
    """The conclusions from a credible report."""

    profile: ModelProfile
    is_baseline: bool
    """Whether the next estimate can be added to the reported size."""


def evaluate_report(
    plan: Plan,
    tokens: int,
    planner: Planner,
    profile: ModelProfile,
    counted_with: Calibration,
    before: Measurement | None = None,
) -> ReportFeedback | None:
    """Return the conclusions from the reported size of a prompt; None if it is not credible.

    `counted_with` is the calibration that the planner counts with, `before` the last report.
    """
    counter = planner.counter
    ratio = counted_with.ratio if counter.density else 1.0
    if tokens > max(plan.budget.window, MAX_REPORT_RATIO * plan.tokens / ratio):
        return None
    if profile.server_window is not None and tokens <= profile.server_window < plan.size:
        return None  # the server must have truncated the prompt
    profile = profile.with_accepted(min(plan.size, tokens))
    profile = add_size(plan, tokens, planner, profile, counted_with, before)
    least = estimate_bounds(plan, planner, None)[0]
    return ReportFeedback(profile, is_baseline=not _is_partial(tokens, plan.tokens, least))


def add_size(
    plan: Plan,
    tokens: int,
    planner: Planner,
    profile: ModelProfile,
    counted_with: Calibration,
    before: Measurement | None,
) -> ModelProfile:
    """Return the profile with the size of a request, in a reply or in a context-length error."""
    counter = planner.counter
    ratio = counted_with.ratio if counter.density else 1.0
    least = estimate_bounds(plan, planner, None)[0]
    # Compare with the uncalibrated estimate: otherwise one wrong report would justify the next.
    is_odd = _is_partial(tokens, plan.tokens / ratio, least / ratio)
    if is_odd or tokens > MAX_REPORT_RATIO * plan.tokens / ratio or not is_text(plan):
        return profile
    calibration = profile.calibration
    if is_informative(plan, counter) and not _is_framing(plan, counter):
        calibration = _calibrate(plan, tokens, planner, profile, counted_with)
    if before is not None and before.is_base_of(plan):
        calibration = _add_growth(calibration, plan, tokens, before, counter)
    return profile.with_calibration(calibration)


def _calibrate(
    plan: Plan, tokens: int, planner: Planner, profile: ModelProfile, counted_with: Calibration
) -> Calibration:
    calibration = profile.calibration
    if planner.counter.density:
        non_latin = planner.foreign_bytes + measure_non_latin(_sent_messages(plan))
        return calibration.add_report(plan.tokens, non_latin, tokens, counted_with)
    most = int(max(0, plan.budget.window - profile.accepted) / SHORTFALL_STEP)
    return calibration.add_shortfall(min(tokens - plan.tokens, most))


def _add_growth(
    calibration: Calibration, plan: Plan, tokens: int, before: Measurement, counter: Counter
) -> Calibration:
    """Return the calibration with the difference of two reports of a growing conversation."""
    new = list_new_messages(plan, before)
    if not new or tokens <= before.tokens:
        return calibration
    return calibration.add_growth(Content.of(new, counter), tokens - before.tokens)


def is_informative(plan: Plan, counter: Counter) -> bool:
    """Return whether a report can change the calibration; of an exact count only a large one."""
    return counter.density > 0 or plan.tokens >= LARGE_REQUEST_SHARE * plan.budget.room


def _is_framing(plan: Plan, counter: Counter) -> bool:
    """Return whether most of an estimate is for what templates print around short messages."""
    return counter.density > 0 and measure_framing(plan.sent, counter) > plan.tokens / 2


def is_text(plan: Plan) -> bool:
    """Return whether brim can read everything that is sent: no media and no unknown parts."""
    return not any(
        message.media or any(extra.startswith("{") for extra in message.extras)
        for message in plan.sent
    )


def _is_partial(tokens: int, estimate: float, least: float) -> bool:
    """Return whether a report is too low; some servers leave out cached tokens."""
    return tokens < estimate // 2 and tokens < MIN_REPORT_SHARE * least


def _sent_messages(plan: Plan) -> list[Message]:
    """Return the messages of a plan as they are sent, without the notes between them."""
    changed = plan.changed_messages
    return [changed.get(index, plan.history.messages[index]) for index in plan.sent_indices]


def names_size(overflow: Overflow) -> bool:
    """Return whether a context-length error names the size of the whole prompt."""
    is_exact = overflow.kind == "window" and overflow.output is None and not overflow.at_least
    return is_exact and bool(overflow.sent)


def evaluate_rejection(
    plan: Plan, overflow: Overflow, profile: ModelProfile
) -> tuple[ModelProfile, Measurement]:
    """Return the profile after a context-length error, and the size to assume for the plan.

    A limit that may be the model's window is recorded in the calibration; any other limit is a
    ceiling for the sender of the request.
    """
    limit = overflow.limit
    if limit is None and overflow.output is None:
        return _evaluate_without_limit(plan, overflow, profile)
    if limit and MIN_WINDOW <= limit < plan.budget.window:
        if is_window(limit, plan, overflow, profile.accepted):
            calibration = profile.calibration.with_window(limit, profile.server_window)
            profile = profile.with_calibration(calibration)
        else:
            profile = replace(profile, ceiling=limit)
    tokens, room = overflow.sent or 0, _room(profile)
    if overflow.output is not None and 0 < tokens <= room:
        return profile, Measurement.of(plan, tokens)  # a shorter reply is enough
    if overflow.at_least or tokens <= room:
        tokens = max(tokens, _size_above(plan, room))
    return profile, Measurement.of(plan, tokens, rejected=True)


def is_window(limit: int, plan: Plan, overflow: Overflow, accepted: int) -> bool:
    """Return whether the limit of a context-length error can be the model's window.

    It is not a rate limit and not smaller than an answered request, and the size that the server
    names is above it and close to brim's own count.
    """
    if overflow.kind != "window" or limit <= accepted:
        return False
    sent, output = overflow.sent, overflow.output or 0
    if sent is None:
        return (1 + MAX_UNDERESTIMATE) * plan.size + output > limit
    is_ours = plan.size / MAX_REPORT_RATIO <= sent or overflow.at_least
    return is_ours and sent <= MAX_REPORT_RATIO * plan.size and sent + output >= limit


def _evaluate_without_limit(
    plan: Plan, overflow: Overflow, profile: ModelProfile
) -> tuple[ModelProfile, Measurement]:
    """Stay below the rejected size from now on, but not below what was answered before."""
    accepted = profile.accepted
    tokens = max(overflow.sent or 0, plan.size, plan.tokens)
    if tokens > accepted:
        profile = replace(profile, largest_prompt=max(int(RETRY_SHARE * tokens), accepted))
    else:
        tokens = max(tokens, _size_above(plan, _room(profile)))
    return profile, Measurement.of(plan, tokens, rejected=True)


def _room(profile: ModelProfile) -> int:
    return profile.budget(profile.counter()).room


def _size_above(plan: Plan, room: int) -> int:
    """Return a size so far above the room that the next request is clearly smaller."""
    return int(max(plan.tokens, room) / RETRY_SHARE)
