"""Whether what several clients saw at the same time can have happened one after the other.

After Wing and Gong: of the steps that nobody waited for when they began, one came first; take each
in turn, let the model do it, and go on with the rest wherever the model says what the client saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.accounts.model import Model


@dataclass(frozen=True)
class Step:
    """A step as its client saw it: when it was asked for, when it was answered, and what."""

    name: str
    asked: float
    answered: float
    answer: object
    does: Callable[[Model], object] = field(repr=False)
    """The same on the model."""

    def __str__(self) -> str:
        return f"{self.asked:.6f} to {self.answered:.6f}: {self.name} gave {self.answer}"


def order(steps: Sequence[Step], model: Model) -> list[Step] | None:
    """An order in which the model gives all the answers that were seen; None: there is none."""
    if not steps:
        return []
    first_answer = min(step.answered for step in steps)
    for index, step in enumerate(steps):
        if step.asked > first_answer:
            continue  # another one was over before this one began
        after = model.copy()
        if step.does(after) != step.answer:
            continue
        rest = order([*steps[:index], *steps[index + 1 :]], after)
        if rest is not None:
            return [step, *rest]
    return None
