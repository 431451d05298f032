"""Fitter: bodies made to fit one model, with all that is the same for each of them decided once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from brim import wire
from brim.planner import Planner
from brim.request import Request
from brim.wire import checked_tools, openai_chat
from brim.wire.templates import FREE, Rules, shape

if TYPE_CHECKING:
    from brim.budget import Budget
    from brim.memory import Memory
    from brim.plan import Plan
    from brim.policies import Policy
    from brim.tokens import Counter


@dataclass(frozen=True, slots=True)
class Fitter:
    """What decides how a body is fitted, beside the body itself."""

    counter: Counter
    budget: Budget
    policy: Policy
    memory: Memory
    rules: Rules = FREE
    """By which chat messages go out."""
    pins: frozenset[int] = frozenset()
    mask: str | None = None

    def fit(self, body: Mapping[str, Any], form: wire.Format) -> Request:
        with self.reading(body, form) as reading:
            return reading.drawn(reading.plan())

    @contextmanager
    def reading(self, body: Mapping[str, Any], form: wire.Format) -> Iterator[Reading]:
        """A body read and counted; what was said before in the same conversation is not again."""
        tools = tools_of(body)
        make = partial(
            Planner, self.counter, self.budget, self.policy, tools, pins=self.pins, mask=self.mask
        )
        if form is not openai_chat:
            planner = make()
            planner.extend(form.view(body))
            yield Reading(body, form, planner, self.rules)
            return
        deciding = (self.counter.name, self.budget, self.counter.tools(tools))
        key = (*deciding, self.policy.identity, self.pins, self.mask)
        view = partial(openai_chat.view, body)
        with self.memory.continued(key, body["messages"], make, view) as planner:
            yield Reading(body, form, planner, self.rules)


@dataclass(frozen=True, slots=True)
class Reading:
    """A body as it was read, to be planned and written back."""

    body: Mapping[str, Any]
    form: wire.Format
    planner: Planner
    rules: Rules

    def plan(self) -> Plan:
        """What is sent of it. Raises `ContextOverflowError` where nothing that may go is enough."""
        self.planner.check_pins()
        if not wire.is_fittable(self.body, self.form):
            return self.planner.relayed()
        return self.planner.plan()

    def drawn(self, plan: Plan) -> Request:
        """The body that a plan sends."""
        form = self.form
        out = form.apply(self.body, plan)
        if form is not openai_chat and plan.cut:
            self.planner.check(plan, form.view(out))
        if form is openai_chat and not self.rules.free:
            out["messages"] = shape(out["messages"], self.rules)
        return Request(wire.lowered(out, plan, form), plan, form.MESSAGES)


def tools_of(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The tools that a body offers."""
    return checked_tools(body.get("tools")) or ()
