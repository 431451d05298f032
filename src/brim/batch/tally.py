"""Tally: what happened to the rows of a job, as sums that add up over workers and resumed runs."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from brim.errors import ContextOverflowError
from brim.fitting.text_tables import format_count

if TYPE_CHECKING:
    from brim.batch.stages import RowResult

MAX_EXAMPLES: Final = 10
"""The number of errors that are shown one by one."""
_OVERFLOW: Final = ContextOverflowError.__name__


@dataclass(slots=True)
class Tally:
    """Counts of rows by outcome, and their tokens."""

    rows: int = 0
    fitted: int = 0
    trimmed: int = 0
    """Fitted rows that were changed."""
    estimated: int = 0
    """Fitted rows whose token counts are estimates."""
    before: int = 0
    """Tokens of the fitted rows before fitting."""
    after: int = 0
    errors: Counts[str] = field(default_factory=Counts)
    """Rows with an error, by its class."""
    examples: list[str] = field(default_factory=list)
    """The first errors, with their places."""
    sizes_before: Counts[str] = field(default_factory=Counts)
    """Fitted rows by the smallest number of tokens of their size class, as text."""
    sizes_after: Counts[str] = field(default_factory=Counts)

    def add(self, other: Tally) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        del self.examples[MAX_EXAMPLES:]

    def add_result(self, result: RowResult, place: str, number: int) -> None:
        """Count a row; it was read at a number of `place`, such as `rows.jsonl: line`."""
        self.rows += 1
        if result.error is not None:
            self.errors[type(result.error).__name__] += 1
            place, text = f"{place} {number}", result.message
            self.examples.append(text if text.startswith(place) else f"{place}: {text}")
            return
        self.fitted += 1
        if (plan := result.plan) is not None:
            self.trimmed += plan.is_trimmed
            self.estimated += not plan.exact
            self.before += plan.before
            self.after += plan.tokens
            self.sizes_before[str(find_size_class(plan.before).start)] += 1
            self.sizes_after[str(find_size_class(plan.tokens).start)] += 1

    @property
    def overflowed(self) -> int:
        return self.errors[_OVERFLOW]

    @property
    def unreadable(self) -> int:
        return self.errors.total() - self.overflowed

    def to_dict(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tally:
        tally = cls()
        for each in fields(cls):
            value = data[each.name]
            setattr(tally, each.name, Counts(value) if isinstance(value, dict) else value)
        return tally

    def __str__(self) -> str:
        about = "about " if self.estimated else ""
        return (
            f"{format_count(self.rows, 'row')}: {self.fitted:,} fitted ({self.trimmed:,} trimmed), "
            f"{self.overflowed:,} do not fit, {self.unreadable:,} unreadable; "
            f"{about}{self.before:,} → {self.after:,} tokens"
        )

    def describe(self, model: str | None) -> Iterator[tuple[str, str]]:
        """Yield names and values of what else there is to know: errors by kind, cost of input."""
        if self.errors:
            kinds = (f"{number:,} {kind}" for kind, number in self.errors.most_common())
            yield "errors", ", ".join(kinds)
        if (costs := self._compute_costs(model)) is not None:
            yield "input cost", costs

    def _compute_costs(self, model: str | None) -> str | None:
        from brim.models.pricing import Usage, cost, format_dollars, price

        found = None if model is None else price(model)
        before, after = (cost(Usage(input=size), found) for size in (self.before, self.after))
        if before is None or after is None:
            return None
        return f"{format_dollars(before)} → {format_dollars(after)} ({model}, without caching)"


def find_size_class(tokens: int) -> range:
    """Return the sizes that are shown together with this one: a quarter of a power of two."""
    shift = max(0, tokens.bit_length() - 3)
    start = tokens >> shift << shift
    return range(start, start + (1 << shift))
