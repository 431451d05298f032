"""Usage and cost of a session.

Money is exact and never guessed: what has no price adds nothing to a sum and marks it, so that a
total with unknown parts is shown as *at least*. There is no clock here; times are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, Final

from brim.errors import InputError, SpendingCapError
from brim.models.pricing import Price, Usage
from brim.models.pricing import cost as cost_of
from brim.models.spending import SpendingTotal, format_dollars

CATEGORIES: Final = ("main", "summary", "goal", "route")
ESTIMATE_TOLERANCE: Final = Decimal("0.1")
"""A count that is off by more than this share is shown beside what was reported."""


Number = int | float | str | Decimal


@dataclass(frozen=True, slots=True)
class DailyCap:
    """What may be spent in a day, all sessions together."""

    dollars: Decimal
    spent: Callable[[], Decimal]
    """What was spent today, as far as it is known."""


class Ledger:
    """The books of one session: a slot for each model and category, two warnings and a cap."""

    def __init__(
        self,
        *,
        warn_at_dollars: Number | None = None,
        warn_at_tokens: Number | None = None,
        cap_at_dollars: Number | None = None,
    ) -> None:
        self.warn_at_dollars = _parse_limit("warn_at_dollars", warn_at_dollars)
        self.warn_at_tokens = _parse_limit("warn_at_tokens", warn_at_tokens)
        self.cap_at_dollars = _parse_limit("cap_at_dollars", cap_at_dollars)
        self.day: DailyCap | None = None
        """A second cap, over all sessions of a day."""
        self.on_call: Callable[[str, str, SpendingTotal], None] | None = None
        """Told of every call that is booked: model, category, and the call alone."""
        self.reset()

    @property
    def is_capped(self) -> bool:
        return self.cap_at_dollars is not None or self.day is not None

    def reset(self) -> None:
        """Zero the totals and arm the warnings again."""
        self._slots: dict[tuple[str, str], SpendingTotal] = {}
        self._warned: set[str] = set()
        self._unpriced: set[str] = set()

    @property
    def slots(self) -> Mapping[tuple[str, str], SpendingTotal]:
        """By (model, category), in the order of their first call."""
        return MappingProxyType(self._slots)

    @property
    def total(self) -> SpendingTotal:
        """All slots as one."""
        return sum(self._slots.values(), SpendingTotal())

    @property
    def usage(self) -> Usage:
        return self.total.usage

    @property
    def cost(self) -> Decimal:
        """Dollars, as far as they are known."""
        return self.total.cost

    @property
    def at_least(self) -> bool:
        """The total has unknown parts."""
        return self.total.unknown

    def __str__(self) -> str:
        return self.total.spent()

    def book(
        self,
        model: str,
        category: str,
        *,
        usage: Usage | None,
        counted: int,
        counted_output: int = 0,
        price: Price | None,
        cost: Decimal | None = None,
    ) -> list[str]:
        """Take in one answered call, and return the warnings that are due, each given once.

        A cost that the provider reported goes before the price. Without a usage the tokens that
        were counted are taken for it.
        """
        check_category(category)
        used = Usage(input=counted, output=counted_output) if usage is None else usage
        if cost is None or not cost.is_finite() or cost < 0:
            cost = cost_of(used, price)
        call = SpendingTotal(1, used, cost or Decimal(0), counted, cost is None, usage is None)
        self._slots[model, category] = self._slots.get((model, category), SpendingTotal()) + call
        if self.on_call is not None:
            self.on_call(model, category, call)
        return self._warnings()

    def _warnings(self) -> list[str]:
        total = self.total
        due = {
            "warn_at_dollars": (
                self.warn_at_dollars is not None and total.cost >= self.warn_at_dollars,
                f"this session has cost {total.spent()}, and warn_at_dollars is "
                f"{format_dollars(self.warn_at_dollars or Decimal(0))}",
            ),
            "warn_at_tokens": (
                self.warn_at_tokens is not None and total.tokens >= self.warn_at_tokens,
                f"this session has used {total.tokens:,} tokens, and warn_at_tokens is "
                f"{self.warn_at_tokens or 0:,.0f}",
            ),
        }
        new = {name: text for name, (reached, text) in due.items() if reached}
        texts = [text for name, text in new.items() if name not in self._warned]
        self._warned |= new.keys()
        return texts

    def check(self, model: str, *, tokens: int, reply: int, price: Price | None) -> None:
        """Refuse a call that could take the cost past the cap, before it is sent.

        A call without a price passes, and `uncovered` says so; but once the cap is reached, not
        one to a model whose provider is known to charge.
        """
        estimate = compute_max_cost(tokens, reply, price)
        if estimate is None:
            self._unpriced.add(model)
        else:
            self._unpriced.discard(model)
        if self.cap_at_dollars is not None:
            advice = "Raise cap_at_dollars, {}, or reset the cost."
            self._check_one(model, estimate, self.cap_at_dollars, self.cost, str(self), advice)
        if self.day is not None:
            spent = self.day.spent()
            said, advice = f"{format_dollars(spent)} today", "Raise cap_per_day_dollars, or {}."
            self._check_one(model, estimate, self.day.dollars, spent, said, advice)

    def _check_one(
        self,
        model: str,
        estimate: Decimal | None,
        cap: Decimal,
        spent: Decimal,
        said: str,
        advice: str,
    ) -> None:
        if estimate is None:
            if spent < cap or not self._charges(model):
                return
            would = f"{model} may cost more"
        else:
            if spent + estimate <= cap:
                return
            would = f"this call to {model} could cost {format_dollars(estimate)}"
        cheaper = "make the request or its reply shorter, take a cheaper model"
        reason = f"{would}, and {said} of {format_dollars(cap)} is spent. {advice.format(cheaper)}"
        raise SpendingCapError(reason, cap, spent, estimate)

    def _charges(self, model: str) -> bool:
        return any(slot.cost > 0 for (name, _), slot in self._slots.items() if name == model)

    @property
    def uncovered(self) -> str | None:
        """What the cap does not cover, as a sentence; None where it covers all, or is not set."""
        unknown = {model for (model, _), slot in self._slots.items() if slot.unknown}
        models = sorted(self._unpriced | unknown)
        dollars = self.cap_at_dollars
        if dollars is None and self.day is not None:
            dollars = self.day.dollars
        if dollars is None or not models:
            return None
        cap = format_dollars(dollars)
        return f"the cap of {cap} does not cover {', '.join(models)}: the price is not known"

    def detail(self, count_now: int | None = None) -> str:
        """A table with a row for each slot; `count_now` is what the conversation counts."""
        head = ("model", "category", "calls", "prompt", "cached", "completion", "cost")
        rows = [head, *(format_spending_cells(*name, slot) for name, slot in self._slots.items())]
        if len(self._slots) > 1:
            rows.append(format_spending_cells("total", "", self.total))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(_pad_cell, row, widths, range(len(row)))).rstrip() for row in rows]
        if not self._slots:
            lines = ["no calls yet"]
        if count_now is not None:
            lines.append(f"the conversation now counts {count_now:,} tokens")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The totals and the given warnings, as JSON; the limits are configuration."""
        slots = [
            {"model": model, "category": category, **asdict(slot), "cost": str(slot.cost)}
            for (model, category), slot in self._slots.items()
        ]
        return {"slots": slots, "warned": sorted(self._warned)}

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        warn_at_dollars: Number | None = None,
        warn_at_tokens: Number | None = None,
        cap_at_dollars: Number | None = None,
    ) -> Ledger:
        """The books as `to_dict` wrote them, with the limits of today."""
        ledger = cls(
            warn_at_dollars=warn_at_dollars,
            warn_at_tokens=warn_at_tokens,
            cap_at_dollars=cap_at_dollars,
        )
        try:
            for row in data["slots"]:
                fields = dict(row)
                name = fields.pop("model"), fields.pop("category")
                fields["usage"] = Usage(**fields["usage"])
                fields["cost"] = Decimal(fields["cost"])
                ledger._slots[name] = SpendingTotal(**fields)
            ledger._warned = set(data["warned"])
        except (KeyError, TypeError, ValueError, InvalidOperation) as error:
            raise InputError(f"the saved costs cannot be read: {error!r}") from None
        return ledger


def check_category(category: str) -> None:
    if category not in CATEGORIES:
        raise InputError(f"no category {category!r}; there are {', '.join(CATEGORIES)}")


def compute_max_cost(tokens: int, reply: int, price: Price | None) -> Decimal | None:
    """The most that a call can cost: the whole reply, and a prompt that is new to the cache."""
    fresh = cost_of(Usage(input=tokens, output=reply), price)
    written = cost_of(Usage(input=tokens, output=reply, written=tokens), price)
    return None if fresh is None or written is None else max(fresh, written)


def _parse_limit(name: str, given: Number | None) -> Decimal | None:
    if given is None:
        return None
    try:
        number = Decimal(str(given)) if not isinstance(given, bool) else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise InputError(f"{name} must be a number, not {given!r}")
    if number < 0:
        raise InputError(f"{name} must not be negative, but is {given}")
    return number


def format_spending_cells(model: str, category: str, slot: SpendingTotal) -> tuple[str, ...]:
    """A row of the bill."""
    usage = slot.usage
    prompt = f"{usage.input:,}"
    if slot.counted and abs(slot.counted - usage.input) > ESTIMATE_TOLERANCE * usage.input:
        prompt += f" ~est={slot.counted:,}"
    completion = f"{usage.output:,}" + (" (estimated)" if slot.estimated else "")
    cached, cost = f"{usage.cached:,}", slot.spent(places=6)
    return model, category, f"{slot.calls:,}", prompt, cached, completion, cost


def _pad_cell(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)
