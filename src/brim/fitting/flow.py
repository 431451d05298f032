"""The flow that decides what to send, with the server's own count where only that can tell.

`plan_request` is a generator: it yields a `CountJob` when the server's count matters, is sent the
count (None: not available) and returns a plan. The owner of a connection answers the jobs; without
a connection every job may be answered with None. The session, its clients and the gateway all use
this one flow, so they send the same messages.

An estimate decides far from the limit and the server's count decides near it: a request that
certainly fits is not counted, and one that may fit is never trimmed before the server has said
that it does not fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as TallyCounter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from brim.errors import ContextOverflowError
from brim.fitting.calibration import round_up_ratio
from brim.fitting.growth import UNMEASURED_GROWTH, Content, Growth
from brim.fitting.plan import Plan, get_overflow_plan
from brim.fitting.planner import Planner
from brim.messages import Message
from brim.tokens import Counter
from brim.tokens.counter import UNKNOWN_TOOL_PROMPT, UNKNOWN_TOOL_SHARE, measure_non_latin

CountMode = Literal["near", "always", "off"]
"""When to ask a server for its count: near the limit, before each request, or never."""

T = TypeVar("T")

MAX_UNDERESTIMATE: Final = 0.25
"""By at most this share an estimate of new text is too low, regardless of calibration."""
FIRST_DEVIATIONS: Final = 1.0
LATER_DEVIATIONS: Final = 3.0
"""By so many standard deviations, the growth of a conversation may be above its estimate if the
server does not count. A first trim that is not needed costs more than a rare second try after a
context-length error; a later trim comes anyway, only a turn earlier."""
MAX_OVERESTIMATE: Final = 0.5
"""By at most this share an estimate is too high."""
MIN_TOKENS_PER_BYTE: Final = 0.05
"""The fewest tokens that a byte of non-Latin text takes."""
DENSITY_SPREAD: Final = 2.0
"""The same share of non-Latin text is this many times larger: the measured one may be of another
script."""
TRIM_MARGIN: Final = 0.06
"""By this share the messages that a trim keeps may be denser than the measured ones."""
RETRY_MARGIN: Final = 0.1
"""The same share after a context-length error: the request is sent only once more."""
KEPT_DEVIATIONS: Final = 2.0
"""By so many standard deviations, the size of what a trim keeps may be above its estimate."""
MAX_RATIO_GAIN: Final = 1.25
"""The factor by which the ratio of a trimmed request may be above that of the measured one."""
TEMPLATE_SLACK: Final = 16
"""Tokens that a template may add at the end of a turn."""
TRIM_TARGET: Final = 0.99
"""The share of the room that a trim aims for if only its ratio to the estimate is known."""
MIN_GAIN: Final = 1.1
"""The factor by which a measured ratio must raise the limit to be worth moving the trims."""
MAX_TRIM_ROUNDS: Final = 6


@dataclass(frozen=True, slots=True)
class CountJob:
    """A request for the server's token count of a body."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SummaryJob:
    """A request for a summary of turns; the result is a text, or None."""

    previous: str | None
    """The summary so far, to be extended."""
    evicted: Sequence[Mapping[str, Any]] | None
    """The turns to summarize; None asks for a shorter version of `previous`."""


Job: TypeAlias = "CountJob | SummaryJob"
PlanFlow: TypeAlias = "Generator[CountJob, int | None, Plan]"
Flow: TypeAlias = "Generator[Job, Any, T]"
NewPlanner: TypeAlias = "Callable[[], Planner]"
BuildBody: TypeAlias = "Callable[[Plan], Mapping[str, Any]]"


def run_flow(flow: Flow[T], answer: Callable[[Job], object]) -> T:
    """Return the result of a flow whose jobs can be answered synchronously."""
    result: object = None
    while True:
        try:
            job = flow.send(result)
        except StopIteration as done:
            value: T = done.value
            return value
        result = answer(job)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The tokens of a request by the server, next to brim's own count of it."""

    trim_id: int | None
    length: int
    """The number of messages at that time."""
    estimate: int
    tokens: int
    rejected: bool = False
    """The server rejected the request as too long; any request that is not smaller is too."""

    @classmethod
    def of(cls, plan: Plan, tokens: int, *, rejected: bool = False) -> Measurement:
        return cls(plan.trim_id, plan.length, plan.tokens, tokens, rejected)

    @classmethod
    def of_count(cls, plan: Plan) -> Measurement:
        """Return what the server's count of a plan says, with the margin of the count."""
        return cls.of(plan, plan.size + plan.server_margin)

    def is_base_of(self, plan: Plan) -> bool:
        """Return whether a plan begins with the measured messages."""
        return self.trim_id is not None and self.trim_id == plan.trim_id

    @property
    def ratio(self) -> float:
        """Actual tokens per estimated token."""
        return self.tokens / max(1, self.estimate)

    def ratio_within(self, room: int, slope: float) -> float:
        """Return the ratio of a request that is trimmed to the room.

        Each estimated token that is dropped makes it shorter by `slope`: what a template adds, such
        as instructions before tools, stays.
        """
        slope, most = min(slope, self.ratio), MAX_RATIO_GAIN * self.ratio
        left = self.estimate - (self.tokens - room) / slope
        return min(max(self.ratio, room / left), most) if left > 0 else most

    def rescale(self, factor: float) -> Measurement:
        """Return the measurement for a counter that estimates `factor` times as many tokens."""
        return replace(self, estimate=round(factor * self.estimate))


def plan_request(
    planner: Planner,
    build: BuildBody,
    *,
    count: CountMode = "off",
    measurement: Measurement | None = None,
    counter: Counter | None = None,
    growth: Growth = UNMEASURED_GROWTH,
    renew: NewPlanner | None = None,
    continues: bool = True,
) -> PlanFlow:
    """Decide what to send; `build` makes the body of a plan.

    Messages that continue from the last trim are sent as long as they are known to fit: by an
    exact count, by the last measurement and the messages added since, or by a count of the server.
    `counter` (by default the planner's) and `growth` have the newest calibration, for these added
    messages. If they do not fit, the conversation is trimmed, with the planner of `renew`, which
    may count better than the current one. Without `continues`, the plan depends on the history
    alone.
    """
    counter = counter or planner.counter
    if count == "off" and measurement is None:
        return planner.plan()
    held = planner.plan_current() if continues else planner.plan_unless_capped()
    if held and is_certain(held) and count != "always" and not _is_rejected(measurement):
        return planner.plan()
    if held is not None and _is_known_too_long(planner, held):
        measurement = _extend_measurement(held, measurement, counter)
    elif held is not None:
        bounds = estimate_bounds(held, planner, measurement, counter, growth)
        plan, count, measurement = yield from _try_held(held, bounds, build, count, measurement)
        if plan is not None:
            return apply_measurement(plan, measurement, counter)
        measurement = _extend_measurement(held, measurement, counter)
        if count == "off" and measurement is not None and not measurement.rejected:
            tokens = max(measurement.tokens, ceil(bounds.expected))
            measurement = replace(measurement, tokens=tokens)
    fresh = renew() if renew else planner
    if count == "off" and measurement is None and fresh.ratio is None:
        return fresh.plan()
    if fresh is not planner and held is not None and measurement:
        measurement = measurement.rescale(fresh.count_plan(held) / max(1, held.tokens))
    known = _Known(measurement, growth, held, counter)
    if _is_rejected(measurement) or (held is not None and held.is_trimmed):
        return (yield from _trim(fresh, build, count, known))
    return (yield from _replay(fresh, build, count, known))


def _try_held(
    held: Plan,
    bounds: SizeBounds,
    build: BuildBody,
    count: CountMode,
    known: Measurement | None,
) -> Generator[CountJob, int | None, tuple[Plan | None, CountMode, Measurement | None]]:
    """Return the plan without a new trim if it fits, and what is known now.

    `bounds` are of its size. Without the server's count, a plan that is likely to fit is sent: a
    needless trim costs more than a rare second try after a context-length error.
    """
    room = held.budget.room
    if bounds.most <= room and count != "always":
        return held, count, known
    if bounds.least <= room and count != "off":
        counted = yield from _count(held, build)
        if counted is not None and counted.fits:
            return counted, count, known
        if counted is None:
            count = "off"  # decide without the server
        else:
            known = Measurement.of_count(counted)
    is_likely = count == "off" and bounds.likely <= room
    return held if is_likely else None, count, known


def _count(plan: Plan, build: BuildBody) -> Generator[CountJob, int | None, Plan | None]:
    """Return the plan with the server's count of it; None if there is none."""
    tokens = yield CountJob(build(plan))
    return None if tokens is None else replace(plan, server_tokens=tokens)


def confirm_reply(
    plan: Plan, build: BuildBody, count: CountMode, reply_limit: int | None
) -> PlanFlow:
    """Return the plan with the server's count if a reply of that length may fit only by it."""
    is_known = count == "off" or plan.server_tokens is not None or is_certain(plan)
    if reply_limit is None or reply_limit <= plan.reply_room or is_known:
        return plan
    counted = yield from _count(plan, build)
    return plan if counted is None or not counted.fits else counted


def is_certain(plan: Plan) -> bool:
    """Return whether the plan's count is the server's: exact, and nothing is added to it."""
    return plan.exact and not plan.budget.margin


def _is_rejected(measurement: Measurement | None) -> bool:
    return measurement is not None and measurement.rejected


def _is_known_too_long(planner: Planner, held: Plan) -> bool:
    """Return whether the server has counted the whole conversation before and found it too long.

    It can only grow, unless it contains thinking: servers do not count old thinking.
    """
    return (
        planner.ratio is not None
        and not held.is_trimmed
        and not any(message.thinking for message in held.sent)
    )


def _extend_measurement(
    held: Plan, measurement: Measurement | None, counter: Counter
) -> Measurement | None:
    """Return a measurement of all messages so far, or None if it is of other messages."""
    if measurement is not None and measurement.rejected:
        return measurement
    if is_certain(held) or measurement is None or not measurement.is_base_of(held):
        return None
    return Measurement.of(held, apply_measurement(held, measurement, counter).size)


class SizeBounds(NamedTuple):
    """The size of a request, as far as it is known: the best estimate, and how far it may be off.

    `likely` is an upper bound that few requests exceed; `least` and `most` always hold.
    """

    least: float
    expected: float
    likely: float
    most: float


def estimate_bounds(
    plan: Plan,
    planner: Planner,
    measurement: Measurement | None = None,
    counter: Counter | None = None,
    growth: Growth = UNMEASURED_GROWTH,
) -> SizeBounds:
    """Return the bounds of a plan's size.

    `counter` and `growth` are for the messages after the measured ones; the default is the
    planner's counter.
    """
    if measurement is not None and measurement.rejected:
        tokens = plan.tokens * measurement.ratio
        return SizeBounds(tokens, tokens, tokens, tokens)
    if measurement is None or not measurement.is_base_of(plan):
        return _estimate_all(plan, planner)
    known = measurement.tokens
    if plan.tokens == measurement.estimate:
        return SizeBounds(known, known, known, known)
    counter = counter or planner.counter
    new = list_new_messages(plan, measurement)
    least, most = _bound_text(_count_since(plan, measurement, counter), new, counter)
    expected, deviation = growth.estimate(Content.of(new, counter))
    most = max(most + TEMPLATE_SLACK, expected + LATER_DEVIATIONS * deviation)
    likely = most if plan.is_trimmed else expected + FIRST_DEVIATIONS * deviation
    return SizeBounds(
        known + least - TEMPLATE_SLACK,
        known + expected,
        known + likely,
        known + most,
    )


def _estimate_all(plan: Plan, planner: Planner) -> SizeBounds:
    """Return the bounds without a measurement.

    The margin may be from reports of other conversations, in other scripts, and that of a small
    window may not cover all that a template prints for tools.
    """
    likely = plan.tokens + plan.budget.margin
    if plan.exact:
        return SizeBounds(plan.tokens, plan.tokens, likely, likely)
    counter, outside = planner.counter, planner.foreign_bytes
    least, most = _bound_text(plan.tokens, plan.sent, counter, outside)[0], float(likely)
    if counter.density:
        bytes_ = outside + measure_non_latin(plan.sent)
        latin = max(0.0, plan.tokens - counter.density * bytes_)
        most = bytes_ + latin * (1 + max(counter.uncertainty, MAX_UNDERESTIMATE))
        if planner.tool_tokens:
            most += UNKNOWN_TOOL_PROMPT + UNKNOWN_TOOL_SHARE * planner.tool_tokens
    return SizeBounds(least, plan.tokens, likely, max(likely, most))


def _bound_text(
    tokens: int, messages: Iterable[Message], counter: Counter, outside: int = 0
) -> tuple[float, float]:
    """Return the fewest and the most tokens of an estimate.

    `outside` are non-Latin bytes outside the messages. A byte of non-Latin text takes between a
    twentieth of a token and, until it was measured, a whole one. An image may take almost nothing
    if its provider's formula is unknown, and a message nothing in addition to its text.
    """
    messages = list(messages)
    bytes_ = outside + measure_non_latin(messages) if counter.density else 0
    latin = max(0.0, tokens - counter.density * bytes_)
    media = sum(_media_size(message, counter) for message in messages if message.media)
    framing = measure_framing(messages, counter)
    densest = min(1.0, (1 + DENSITY_SPREAD * MAX_UNDERESTIMATE) * counter.density)
    return (
        max(0.0, latin - media - framing) / (1 + MAX_OVERESTIMATE) + MIN_TOKENS_PER_BYTE * bytes_,
        latin * (1 + max(counter.uncertainty, MAX_UNDERESTIMATE)) + bytes_ * densest,
    )


def measure_framing(messages: Iterable[Message], counter: Counter) -> int:
    """Return the tokens of messages without their content, which a template may not print."""
    roles = TallyCounter(message.role for message in messages)
    return sum(number * counter.message(Message(role)) for role, number in roles.items())


def list_new_messages(plan: Plan, measurement: Measurement) -> list[Message]:
    """Return what a plan sends after the measured messages."""
    new = plan.sent_indices[bisect_left(plan.sent_indices, measurement.length) :]
    return [plan.history.messages[index] for index in new]


def _media_size(message: Message, counter: Counter) -> int:
    count = counter.message
    return count(message) - count(message._replace(media=()))


def _count_since(plan: Plan, measurement: Measurement, counter: Counter) -> int:
    """Return the tokens of what a plan sends after the measured messages."""
    since = plan.tokens - measurement.estimate
    new = plan.sent_indices[bisect_left(plan.sent_indices, measurement.length) :]
    estimate = sum(map(plan.history.tokens, new))
    if not estimate:
        return since
    counted = sum(map(counter.message, list_new_messages(plan, measurement)))
    return ceil(since * counted / estimate)


def apply_measurement(plan: Plan, measurement: Measurement | None, counter: Counter) -> Plan:
    """Return the plan with its size by the last measurement, if that is the plan's beginning.

    `counter` counts the messages since.
    """
    if is_certain(plan) or plan.server_tokens is not None:
        return plan
    if measurement is None or measurement.rejected or not measurement.is_base_of(plan):
        return plan
    since = _count_since(plan, measurement, counter)
    return replace(plan, calibrated_tokens=measurement.tokens + since)


class _Known(NamedTuple):
    """What is known about the size of a conversation that has to be trimmed."""

    measurement: Measurement | None
    growth: Growth
    held: Plan | None
    """The conversation without a new trim, which was measured or estimated."""
    counter: Counter

    def trim_ratio(self, planner: Planner) -> float | None:
        """Return the ratio of a request that is trimmed without the server's count."""
        if self.measurement is None:
            return planner.ratio
        slope = self.growth.text_weight / planner.counter.ratio
        return self.measurement.ratio_within(planner.budget.room, slope)

    def likely_size(self, plan: Plan) -> float:
        """Return the most tokens that a part of the conversation is likely to take; 0: unknown."""
        held, measurement = self.held, self.measurement
        if held is None or measurement is None or measurement.rejected:
            return 0.0
        dropped = Content.of(held.sent_messages, self.counter).minus(
            Content.of(plan.sent_messages, self.counter)
        )
        tokens, deviation = self.growth.estimate(dropped)
        return measurement.tokens - tokens + KEPT_DEVIATIONS * deviation


def _replay(planner: Planner, build: BuildBody, count: CountMode, known: _Known) -> PlanFlow:
    """Trim a conversation from its beginning, as if each of its requests had been seen.

    The ratio between the server's count and brim's is rounded up to a step, so that a conversation
    that grows is trimmed at the same places.
    """
    ratio, measurement = planner.ratio, known.measurement
    if measurement is not None:
        measured = (known.trim_ratio(planner) or 0.0) if count == "off" else measurement.ratio
        ratio = max(ratio or 0.0, _round_up(measured, planner))
    if ratio is None:
        plan, error = _try_plan(planner)
        if not _needs_count(plan, error, planner, count):
            return _require_fit(plan, planner)
        counted = yield from _count(plan, build)
        if counted is None:
            return _require_fit(plan, planner)
        if counted.fits and (error is not None or plan.exact):
            return counted
        if error is not None:
            raise planner.overflow_error(counted)
        ratio = _round_up(Measurement.of_count(counted).ratio, planner)
    for _ in range(MAX_TRIM_ROUNDS):
        apply_ratio(planner, ratio)
        plan, error = _try_plan(planner)
        assumed = ratio if error is None or measurement is None else measurement.ratio
        plan = replace(plan, calibrated_tokens=int(plan.tokens * assumed))
        if count == "off" and not error and known.likely_size(plan) > plan.budget.room:
            ratio = _round_up(1.02 * ratio, planner)
            continue
        if count == "off" or (count == "near" and not error and plan.tokens <= plan.budget.limit):
            return _require_fit(plan, planner)
        counted = yield from _count(plan, build)
        if counted is None:
            return _require_fit(plan, planner)
        plan = counted
        if plan.fits:
            return plan
        if error is not None:
            break
        ratio = _round_up(max(1.01 * ratio, Measurement.of_count(plan).ratio), planner)
    raise planner.overflow_error(plan)


def apply_ratio(planner: Planner, ratio: float) -> None:
    """Let a planner trim for a server that counts `ratio` tokens for each of its own."""
    planner.rescale(ratio, _choose_limit(planner, ratio))


def _choose_limit(planner: Planner, ratio: float) -> int:
    """Return the limit of a replay: the budget's own if that is safe and nearly as high."""
    own, measured = planner.budget.limit, int(_limit_for(planner, ratio) / (1 + TRIM_MARGIN))
    is_safe = own * ratio <= planner.budget.room
    return own if is_safe and measured <= MIN_GAIN * own else measured


def _round_up(ratio: float, planner: Planner) -> float:
    """Return the ratio rounded up in steps of the uncalibrated count, which stays the same."""
    return round_up_ratio(ratio * planner.counter.ratio) / planner.counter.ratio


def _try_plan(planner: Planner) -> tuple[Plan, ContextOverflowError | None]:
    """Return a plan within the planner's limit, or the smallest one and the error."""
    try:
        return planner.plan(), None
    except ContextOverflowError as error:
        return get_overflow_plan(error), error


def _needs_count(
    plan: Plan, error: ContextOverflowError | None, planner: Planner, count: CountMode
) -> bool:
    """Return whether the server has to count a plan, because that can change the decision."""
    if count != "near":
        return count == "always"
    if is_certain(plan):
        return False
    return error is None or estimate_bounds(plan, planner, None)[0] <= plan.budget.room


def _require_fit(plan: Plan, planner: Planner) -> Plan:
    """Return the plan, or raise the error that it does not fit by its best known size."""
    if not plan.fits:
        raise planner.overflow_error(plan)
    return plan


def _trim(planner: Planner, build: BuildBody, count: CountMode, known: _Known) -> PlanFlow:
    """Trim at the end of the history, smaller each time, until the server says that it fits."""
    if count == "off":
        return _trim_by_estimate(planner, known)
    room, measurement = planner.budget.room, known.measurement
    limit = room if measurement is None else _limit_for(planner, measurement.ratio)
    for _ in range(MAX_TRIM_ROUNDS):
        try:
            plan = planner.trim(limit)
        except ContextOverflowError as error:
            plan = get_overflow_plan(error)  # the smallest there is; its estimate may be too high
        if plan.exact and plan.tokens <= plan.budget.limit:
            return plan
        counted = yield from _count(plan, build)
        if counted is None:
            return _trim_by_estimate(planner, known._replace(measurement=measurement))
        plan = counted
        if plan.fits:
            return plan
        if plan.tokens > limit:
            break
        measurement = Measurement.of_count(plan)
        limit = min(_limit_for(planner, measurement.ratio), plan.tokens - 1)
    raise planner.overflow_error(plan)


def _trim_by_estimate(planner: Planner, known: _Known) -> Plan:
    """Trim without the server: as dense as what was measured, and a little more."""
    room, measurement, ratio = planner.budget.room, known.measurement, known.trim_ratio(planner)
    if ratio is None:
        return planner.trim()
    is_smallest = False
    margin = RETRY_MARGIN if _is_rejected(measurement) else TRIM_MARGIN
    limit = int(_limit_for(planner, ratio) / (1 + margin))
    try:
        plan = _trim_further(planner, planner.trim(limit), known, ratio)
    except ContextOverflowError as error:  # what is kept free for denser messages may be enough
        plan, is_smallest = get_overflow_plan(error), True
        ratio = ratio if measurement is None else measurement.ratio
    if _is_rejected(measurement) and not is_smallest:
        # Its numbers say how much smaller to get, not what the request takes.
        return replace(plan, calibrated_tokens=plan.tokens)
    tokens = int(plan.tokens * ratio)
    if measurement is not None and measurement.rejected and plan.tokens >= measurement.estimate:
        tokens = max(tokens, room + 1)  # it is no smaller than the rejected request
    plan = replace(plan, calibrated_tokens=tokens)
    return _require_fit(plan, planner) if is_smallest else plan


def _trim_further(planner: Planner, plan: Plan, known: _Known, ratio: float) -> Plan:
    """Return a smaller plan as long as the messages that it keeps are probably too dense."""
    for _ in range(MAX_TRIM_ROUNDS):
        excess = known.likely_size(plan) - planner.budget.room
        if excess <= 0:
            break
        try:
            plan = planner.trim(plan.tokens - ceil(excess / ratio))
        except ContextOverflowError:
            return planner.trim(plan.tokens)
    return plan


def _limit_for(planner: Planner, ratio: float) -> int:
    """Return the estimate at which a request just fits, if the server counts by this ratio."""
    return int(TRIM_TARGET * planner.budget.room / ratio)
