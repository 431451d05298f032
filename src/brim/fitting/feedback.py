"""What an answer or a refusal teaches about a server: values in, values out.

A report of what a prompt took corrects the estimates to come, unless it cannot be of the whole
prompt, or may be of more than that. A refusal is always believed of the request that was refused;
what it says decides how much smaller the next one is. A limit that it names is taken for the
window, and kept, only where nothing speaks against that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from brim.fitting.calibration import SHORTFALL_STEP
from brim.fitting.flow import MAX_UNDERESTIMATE, Measurement, estimate_bounds
from brim.messages import Message
from brim.tokens.calibrated_counter import measure_non_latin

if TYPE_CHECKING:
    from brim.errors import Overflow
    from brim.fitting.calibration import Calibration
    from brim.fitting.plan import Plan
    from brim.fitting.planner import Planner
    from brim.fitting.profile import ModelProfile
    from brim.tokens import Counter

RETRY_SHARE: Final = 0.85
"""What is tried of a request that a server refused without giving numbers."""
MIN_REPORT_SHARE: Final = 0.75
"""A report below that share of the least that a request can take is not of the whole of it."""
MAX_REPORT_RATIO: Final = 3.0
"""One of more than that many times the estimate is of something else beside what was sent."""
LARGE_REQUEST_SHARE: Final = 0.5
"""A request that fills that share of the room says what a server adds to all of them."""
MIN_WINDOW: Final = 64
"""A refusal that names a lower limit speaks of something else."""


class ReportFeedback(NamedTuple):
    """What a report says that was believed."""

    calibration: Calibration
    is_base: bool
    """Whether the next estimate may be added to it."""


def evaluate_report(
    plan: Plan,
    tokens: int,
    planner: Planner,
    target: ModelProfile,
    known: Calibration,
    accepted: int = 0,
) -> ReportFeedback | None:
    """What the server reported of a plan; `known` is what its planner counted with.

    `accepted` is the largest request that it has answered: what it adds must leave room for that.
    """
    ratio = known.ratio if planner.counter.density else 1.0
    if tokens > max(plan.budget.window, MAX_REPORT_RATIO * plan.tokens / ratio):
        return None
    if target.server_window is not None and tokens <= target.server_window < plan.size:
        return None  # more was sent than it holds, so it must have left out the rest
    least = estimate_bounds(plan, planner, None)[0]
    learned = target.calibration
    # Without what was learned before: else one report that was far too high would stay.
    is_odd = _is_partial(tokens, plan.tokens / ratio, least / ratio)
    is_odd = is_odd or tokens > MAX_REPORT_RATIO * plan.tokens / ratio
    if is_informative(plan, planner.counter) and not is_odd and is_text(plan):
        if planner.counter.density:
            foreign = planner.foreign_bytes + measure_non_latin(_sent_messages(plan))
            learned = learned.learn(plan.tokens, foreign, tokens, known)
        else:
            most = int(max(0, plan.budget.window - accepted) / SHORTFALL_STEP)
            learned = learned.missing(min(tokens - plan.tokens, most))
    return ReportFeedback(learned, is_base=not _is_partial(tokens, plan.tokens, least))


def is_informative(plan: Plan, counter: Counter) -> bool:
    """Whether a report can change what is counted: of an exact count, that of a large request."""
    return counter.density > 0 or plan.tokens >= LARGE_REQUEST_SHARE * plan.budget.room


def is_text(plan: Plan) -> bool:
    """Whether all that goes out can be read here: no images and files, and nothing unknown."""
    return not any(
        message.media or any(extra.startswith("{") for extra in message.extras)
        for message in plan.sent
    )


def _is_partial(tokens: int, estimate: float, least: float) -> bool:
    """Whether a report is too low; some servers leave out what they had in their cache."""
    return tokens < estimate // 2 and tokens < MIN_REPORT_SHARE * least


def _sent_messages(plan: Plan) -> list[Message]:
    """The messages of a plan as they are sent, without the notes between them."""
    changed = plan.changed_messages
    return [changed.get(index, plan.history.messages[index]) for index in plan.sent_indices]


def calibrate_from_text(text: str, tokens: int, target: ModelProfile) -> Calibration:
    """What a server that only counts texts says of one."""
    counter = target.counter()
    if not counter.density:
        return target.calibration
    foreign = measure_non_latin([Message("user", words=(text,))])
    return target.calibration.learn(counter.text(text), foreign, tokens)


def evaluate_rejection(
    plan: Plan, overflow: Overflow, target: ModelProfile, accepted: int
) -> tuple[ModelProfile, Measurement]:
    """The target as it is known now, and what the plan is taken for.

    `accepted` is the largest request that the server has answered. A limit that may be the window
    of all requests is learned; any other is a ceiling, for whoever was refused.
    """
    limit = overflow.limit
    if limit is None and overflow.output is None:
        return _evaluate_without_limit(plan, overflow, target, accepted)
    if limit and MIN_WINDOW <= limit < plan.budget.window:
        if is_window(limit, plan, overflow, accepted):
            target = target.learned(target.calibration.with_window(limit, target.server_window))
        else:
            target = replace(target, ceiling=limit)
    tokens, room = overflow.sent or 0, _room(target)
    if overflow.output is not None and 0 < tokens <= room:
        return target, Measurement.of(plan, tokens)  # a shorter answer is enough
    if overflow.at_least or tokens <= room:
        tokens = max(tokens, _smaller_step(plan, room))
    return target, Measurement.of(plan, tokens, rejected=True)


def is_window(limit: int, plan: Plan, overflow: Overflow, accepted: int) -> bool:
    """Whether a limit that a refusal names can be the window that the model has for everybody.

    It is not what a key is allowed in a minute, nor less than what was answered before; and the
    request was above it by a count that is not far from ours.
    """
    if overflow.kind != "window" or limit <= accepted:
        return False
    sent, output = overflow.sent, overflow.output or 0
    if sent is None:
        return (1 + MAX_UNDERESTIMATE) * plan.size + output > limit
    is_ours = plan.size / MAX_REPORT_RATIO <= sent or overflow.at_least
    return is_ours and sent <= MAX_REPORT_RATIO * plan.size and sent + output >= limit


def _evaluate_without_limit(
    plan: Plan, overflow: Overflow, target: ModelProfile, accepted: int
) -> tuple[ModelProfile, Measurement]:
    """Stay below what was refused from now on, but not below what was answered before."""
    tokens = max(overflow.sent or 0, plan.size, plan.tokens)
    if tokens > accepted:
        most = max(int(RETRY_SHARE * tokens), accepted) + plan.budget.reply
        target = replace(target, ceiling=min(most, plan.budget.window))
    else:
        tokens = max(tokens, _smaller_step(plan, _room(target)))
    return target, Measurement.of(plan, tokens, rejected=True)


def _room(target: ModelProfile) -> int:
    return target.budget(target.counter()).room


def _smaller_step(plan: Plan, room: int) -> int:
    """A size so far above the room that the next request is smaller by a clear step."""
    return int(max(plan.tokens, room) / RETRY_SHARE)
