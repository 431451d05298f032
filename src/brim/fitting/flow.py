"""Planning with questions: what only the world can answer is asked for, in the middle of a plan.

`planning` is a generator. It yields a `CountJob` where the server's own count decides, is sent
the answer (None: not to be had) and returns a plan. Whoever owns a connection drives it; nobody
who has none needs one, because every question may be answered with None.

An estimate decides early and the server's count decides near the limit: what surely fits is not
asked about, and what may fit is never cut before the server has said that it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from brim.errors import ContextOverflowError
from brim.tokens.calibrated_counter import measure_non_latin

if TYPE_CHECKING:
    from brim.fitting.plan import Plan
    from brim.fitting.planner import Planner
    from brim.messages import Message

CountMode = Literal["near", "always", "off"]
"""When a server that can count is asked: near the limit, before each request, or never."""

T = TypeVar("T")

MAX_UNDERESTIMATE: Final = 0.25
"""By that share the truth may be above an estimate, whatever was measured before."""
MAX_OVERESTIMATE: Final = 0.5
"""By that share an estimate may be above the truth."""
MIN_TOKENS_PER_BYTE: Final = 0.05
"""Tokens that a byte of text in another script takes at least."""
TRIM_MARGIN: Final = 0.04
"""By so much what is cut of a conversation may be denser than the whole of it was."""
TEMPLATE_SLACK: Final = 16
"""Tokens that a template may add where a turn ends."""
TRIM_TARGET: Final = 0.99
"""A cut to a size that is known only by its share aims a little below it."""
MAX_TRIM_ROUNDS: Final = 6


@dataclass(frozen=True, slots=True)
class CountJob:
    """How many tokens does this request take? To be answered by the server that will get it."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SummaryJob:
    """What was said in these turns? To be answered by a text, or None."""

    previous: str | None
    """The summary so far, to be extended."""
    evicted: Sequence[Mapping[str, Any]] | None
    """The turns that leave; None asks for the summary itself to be made shorter."""


Job: TypeAlias = "CountJob | SummaryJob"
PlanFlow: TypeAlias = "Generator[CountJob, int | None, Plan]"
Flow: TypeAlias = "Generator[Job, Any, T]"
NewPlanner: TypeAlias = "Callable[[], Planner]"
BuildBody: TypeAlias = "Callable[[Plan], Mapping[str, Any]]"


def run_flow(asking: Flow[T], answer: Callable[[Job], object]) -> T:
    """What a generator of jobs returns, driven by answers that can be had at once."""
    given: object = None
    while True:
        try:
            job = asking.send(given)
        except StopIteration as done:
            value: T = done.value
            return value
        given = answer(job)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a server said that a request took: the base that later estimates are added to."""

    trim_id: int | None
    length: int
    """How many messages there were."""
    estimate: int
    tokens: int
    refused: bool = False
    """It was too much, whatever was counted; so is all that is not smaller."""

    @classmethod
    def of(cls, plan: Plan, tokens: int, *, refused: bool = False) -> Measurement:
        return cls(plan.trim_id, plan.length, plan.tokens, tokens, refused)

    def is_base_of(self, plan: Plan) -> bool:
        """Whether a plan begins with what this was said of."""
        return self.trim_id is not None and self.trim_id == plan.trim_id

    @property
    def share(self) -> float:
        """True tokens for an estimated one."""
        return self.tokens / max(1, self.estimate)


def plan_request(
    planner: Planner,
    draw: BuildBody,
    *,
    ask: CountMode = "off",
    reported: Measurement | None = None,
    renew: NewPlanner | None = None,
) -> PlanFlow:
    """Decide what to send; `draw` makes the request of a plan, as it would go out.

    What goes on from the last edit is sent as long as it is known to fit: because it is counted
    exactly, because of what the server reported and what came since, or because the server counts
    it now. Otherwise an edit falls. `renew` gives the planner for that, which may count better
    than the one that goes on.
    """
    if ask == "off" and reported is None:
        return planner.plan()
    held = planner.held()
    if held is not None and held.exact and ask == "off" and not (reported and reported.refused):
        return planner.plan()
    if held is not None:
        room = held.budget.room
        least, most = estimate_bounds(held, planner, reported)
        if most <= room and ask != "always":
            return apply_measurement(held, reported)
        if least <= room and ask != "off":
            true = yield CountJob(draw(held))
            if true is None and most <= room:
                return apply_measurement(held, reported)
            if true is not None and true <= room:
                return replace(held, server_tokens=true)
            if true is not None:
                reported = Measurement.of(held, true)
            elif reported is None:
                return (renew() if renew else planner).plan()
            else:
                ask = "off"  # by what is known, as if it could not count
        reported = _extend_measurement(held, reported)
    fresh = renew() if renew else planner
    if fresh is not planner and reported is not None and held is not None and not reported.refused:
        reported = replace(reported, estimate=fresh.size_of(held))
    return (yield from _trim(fresh, draw, ask, reported))


def _extend_measurement(held: Plan, reported: Measurement | None) -> Measurement | None:
    """A report carried on to what was said since; one of something else says nothing."""
    if reported is not None and reported.refused:
        return reported
    if held.exact or reported is None or not reported.is_base_of(held):
        return None
    return Measurement.of(held, apply_measurement(held, reported).size)


def estimate_bounds(
    plan: Plan, planner: Planner, reported: Measurement | None
) -> tuple[float, float]:
    """What a plan takes at least and at most, by all that is known."""
    if reported is not None and reported.refused:
        return plan.tokens * reported.share, plan.tokens * reported.share
    if plan.exact:
        return plan.tokens, plan.tokens
    if reported is None or not reported.is_base_of(plan):
        sizes = _Bounds.of(plan.tokens, plan.sent, planner, beside=planner.foreign)
        return sizes.least, sizes.most
    since = plan.tokens - reported.estimate
    if not since:
        return reported.tokens, reported.tokens
    new = plan.history.messages[reported.length : plan.length]
    sizes = _Bounds.of(since, new, planner)
    return (
        reported.tokens + sizes.least - TEMPLATE_SLACK,
        reported.tokens + sizes.most + TEMPLATE_SLACK,
    )


class _Bounds(NamedTuple):
    """How far an estimate may be off, on both sides."""

    least: float
    most: float

    @classmethod
    def of(
        cls, tokens: int, messages: Iterable[Message], planner: Planner, beside: int = 0
    ) -> _Bounds:
        """Text in other scripts may take a twentieth of a token a byte or a whole one.

        An image may take next to nothing, where its provider's formula is not known.
        """
        counter, messages = planner.counter, list(messages)
        bytes_ = beside + measure_non_latin(messages) if counter.density else 0
        latin = max(0.0, tokens - counter.density * bytes_)
        media = sum(_media_size(message, planner) for message in messages if message.media)
        return cls(
            max(0.0, latin - media) / (1 + MAX_OVERESTIMATE) + MIN_TOKENS_PER_BYTE * bytes_,
            latin * (1 + max(counter.uncertainty, MAX_UNDERESTIMATE)) + bytes_,
        )


def _media_size(message: Message, planner: Planner) -> int:
    count = planner.counter.message
    return count(message) - count(message._replace(media=()))


def apply_measurement(plan: Plan, reported: Measurement | None) -> Plan:
    """A plan with what it takes by the last report, where it goes on from what that was of."""
    if plan.exact or reported is None or reported.refused or not reported.is_base_of(plan):
        return plan
    return replace(plan, calibrated_tokens=reported.tokens + plan.tokens - reported.estimate)


def _trim(
    planner: Planner, draw: BuildBody, ask: CountMode, reported: Measurement | None
) -> PlanFlow:
    """An edit, made smaller until the server says that it fits."""
    if ask == "off":
        return _trim_by_estimate(planner, reported)
    room, true = planner.budget.room, None
    limit = room if reported is None else _limit_for(planner, reported)
    for _ in range(MAX_TRIM_ROUNDS):
        try:
            plan = planner.edited(limit)
        except ContextOverflowError as error:
            plan = error.plan  # the smallest there is; its estimate may be too high
        if plan.exact and plan.tokens <= room:
            return plan
        true = yield CountJob(draw(plan))
        if true is None:
            return _trim_by_estimate(planner, reported)
        if true <= room:
            return replace(plan, server_tokens=true)
        if plan.tokens > limit:
            break
        reported = Measurement.of(plan, true)
        limit = min(_limit_for(planner, reported), plan.tokens - 1)
    raise planner.overflow(replace(plan, server_tokens=true))


def _trim_by_estimate(planner: Planner, reported: Measurement | None) -> Plan:
    """An edit without the server's help: as dense as what was reported, and a little more."""
    if reported is None:
        return planner.edited()
    plan = planner.edited(int(_limit_for(planner, reported) / (1 + TRIM_MARGIN)))
    if reported.refused:
        return plan  # its numbers say how much smaller, and not what it takes
    return replace(plan, calibrated_tokens=int(plan.tokens * reported.share))


def _limit_for(planner: Planner, reported: Measurement) -> int:
    """The estimate at which what the server counted would just fit."""
    return int(TRIM_TARGET * planner.budget.room / reported.share)
