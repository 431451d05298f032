"""A checker for linearizability, after Wing and Gong.

One of the operations that no other operation precedes came first. Try each of them on the model,
and continue with the rest if the model returns what the client saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.accounts.model import Model


@dataclass(frozen=True)
class ObservedOperation:
    """An operation with its call time, return time and result."""

    name: str
    started: float
    answered: float
    answer: object
    does: Callable[[Model], object] = field(repr=False)
    """The same operation on the model."""

    def __str__(self) -> str:
        return f"{self.started:.6f} to {self.answered:.6f}: {self.name} gave {self.answer}"


def find_order(steps: Sequence[ObservedOperation], model: Model) -> list[ObservedOperation] | None:
    """Return an order in which the model returns the observed results; None if there is none."""
    if not steps:
        return []
    first_answer = min(step.answered for step in steps)
    for index, step in enumerate(steps):
        if step.started > first_answer:
            continue  # another operation ended before this one began
        after = model.copy()
        if step.does(after) != step.answer:
            continue
        rest = find_order([*steps[:index], *steps[index + 1 :]], after)
        if rest is not None:
            return [step, *rest]
    return None
