"""Usage and cost of a session.

Amounts are exact. A call without a known price adds nothing to a total and marks it, so that the
total is shown as *at least*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, get_args

from brim.errors import InputError, SpendingCapError
from brim.models.pricing import Price, SpendingTotal, Usage, compute_max_cost, format_dollars
from brim.models.pricing import cost as cost_of

Category = Literal["main", "summary", "goal", "route"]
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
ESTIMATE_TOLERANCE: Final = Decimal("0.1")
"""The table shows both counts of a prompt if they differ by more than this share."""

SESSION_ADVICE: Final = (
    "Raise cap_at_dollars, shorten the request or its reply, use a cheaper model, or reset the "
    "cost."
)
DAILY_ADVICE: Final = (
    "Raise cap_per_day_dollars, shorten the request or its reply, or use a cheaper model."
)

Number = int | float | str | Decimal


@dataclass(frozen=True, slots=True)
class DailyCap:
    """A spending cap per day, shared by all sessions."""

    dollars: Decimal
    spent: Callable[[], Decimal]
    """Returns the dollars spent today."""


@dataclass(frozen=True, slots=True)
class SpendingLimits:
    """Spending limits of a session; None means no limit."""

    warn_at_dollars: Number | None = None
    warn_at_tokens: Number | None = None
    cap_at_dollars: Number | None = None
    """A request that could exceed it raises SpendingCapError."""

    def __post_init__(self) -> None:
        for name in ("warn_at_dollars", "warn_at_tokens", "cap_at_dollars"):
            _parse_limit(name, getattr(self, name))


class SpendingStore(Protocol):
    """Records the calls of all sessions, and reserves what a call can cost before it is sent.

    Amounts that are reserved count as spent today.
    """

    def reserve(self, model: str, category: str, most: SpendingTotal) -> int:
        """Reserve the most that a call can cost; return the number of the reservation."""

    def record(
        self, model: str, category: str, call: SpendingTotal | None, reservation: int | None
    ) -> None:
        """Record a call in place of its reservation; without a call, only release that."""


@dataclass(frozen=True, slots=True)
class CallReservation:
    """The most that a call can cost, from the moment before it is sent until it is recorded."""

    model: str
    category: str
    most: SpendingTotal
    number: int | None = None
    """Its number in the store; None if it is not stored."""


class Ledger:
    """Usage and cost of one session by model and category, with warnings and caps."""

    def __init__(self, limits: SpendingLimits | None = None) -> None:
        limits = limits or SpendingLimits()
        self.warn_at_dollars = _parse_limit("warn_at_dollars", limits.warn_at_dollars)
        self.warn_at_tokens = _parse_limit("warn_at_tokens", limits.warn_at_tokens)
        self.cap_at_dollars = _parse_limit("cap_at_dollars", limits.cap_at_dollars)
        self.daily_cap: DailyCap | None = None
        self.store: SpendingStore | None = None
        self.reset()

    @property
    def is_capped(self) -> bool:
        """Whether a cap is set."""
        return self.cap_at_dollars is not None or self.daily_cap is not None

    def reset(self) -> None:
        """Set the totals to zero; warnings will be given again."""
        self._totals: dict[tuple[str, str], SpendingTotal] = {}
        self._warned: set[str] = set()
        self._unpriced: set[str] = set()

    @property
    def totals(self) -> Mapping[tuple[str, str], SpendingTotal]:
        """The totals by (model, category), in the order of the first calls."""
        return MappingProxyType(self._totals)

    @property
    def total(self) -> SpendingTotal:
        """The total of all calls."""
        return sum(self._totals.values(), SpendingTotal())

    @property
    def usage(self) -> Usage:
        """Tokens of all calls."""
        return self.total.usage

    @property
    def cost(self) -> Decimal:
        """Dollars of all calls with a known price."""
        return self.total.cost

    @property
    def has_unknown_cost(self) -> bool:
        """Whether the price of a call is unknown, so that `cost` is a minimum."""
        return self.total.unknown

    def __str__(self) -> str:
        return self.total.format_cost()

    def record(
        self,
        model: str,
        category: str,
        *,
        usage: Usage | None,
        counted: int,
        counted_output: int = 0,
        price: Price | None,
        cost: Decimal | None = None,
        reservation: CallReservation | None = None,
    ) -> list[str]:
        """Record one call, and return the warnings that are due; each is given once.

        A cost reported by the provider takes precedence over the price. Without a reported usage,
        the counted tokens are used.
        """
        check_category(category)
        used = Usage(input=counted, output=counted_output) if usage is None else usage
        if cost is None or not cost.is_finite() or cost < 0:
            cost = cost_of(used, price)
        call = SpendingTotal(1, used, cost or Decimal(0), counted, cost is None, usage is None)
        self.add(model, category, call)
        if self.store is not None:
            number = None if reservation is None else reservation.number
            self.store.record(model, category, call, number)
        return self._warnings()

    def add(self, model: str, category: str, call: SpendingTotal) -> None:
        """Add a call that is recorded already to the totals."""
        self._totals[model, category] = self._totals.get((model, category), SpendingTotal()) + call

    def reserve(
        self, model: str, category: str, *, tokens: int, reply: int, price: Price | None
    ) -> CallReservation:
        """Reserve the most that a call can cost; raise SpendingCapError if that exceeds a cap."""
        self.check(model, tokens=tokens, reply=reply, price=price)
        cost, usage = compute_max_cost(tokens, reply, price), Usage(tokens, output=reply)
        most = SpendingTotal(1, usage, cost or Decimal(0), tokens, cost is None, estimated=True)
        made = CallReservation(model, category, most)
        if self.store is None or cost == 0:
            return made
        made = replace(made, number=self.store.reserve(model, category, most))
        if self.daily_cap is not None and cost and self.daily_cap.spent() > self.daily_cap.dollars:
            self.release(made, is_charged=False)  # another session was faster
            self.check(model, tokens=tokens, reply=reply, price=price)
        return made

    def release(self, reservation: CallReservation, *, is_charged: bool) -> None:
        """End a reservation without a reply: in full if the call may have been charged."""
        call = reservation.most if is_charged else None
        if call is not None:
            self.add(reservation.model, reservation.category, call)
        if self.store is not None:
            self.store.record(reservation.model, reservation.category, call, reservation.number)

    def _warnings(self) -> list[str]:
        total = self.total
        due = {}
        if self.warn_at_dollars is not None and total.cost >= self.warn_at_dollars:
            limit = format_dollars(self.warn_at_dollars)
            due["warn_at_dollars"] = f"This session has cost {total.format_cost()}", limit
        if self.warn_at_tokens is not None and total.tokens >= self.warn_at_tokens:
            limit = f"{self.warn_at_tokens:,.0f}"
            due["warn_at_tokens"] = f"This session has used {total.tokens:,} tokens", limit
        new = due.keys() - self._warned
        self._warned |= new
        return [f"{text}; {name} is {limit}." for name, (text, limit) in due.items() if name in new]

    def check(self, model: str, *, tokens: int, reply: int, price: Price | None) -> None:
        """Raise SpendingCapError if a call could exceed a cap.

        A call with an unknown price is allowed, and `uncovered` reports it. Once the cap is
        reached, it is allowed only if the model has not cost anything so far.
        """
        estimate = compute_max_cost(tokens, reply, price)
        if estimate is None:
            self._unpriced.add(model)
        else:
            self._unpriced.discard(model)
        if self.cap_at_dollars is not None:
            spent = f"{self} of {format_dollars(self.cap_at_dollars)} is spent"
            self._check_cap(model, estimate, self.cap_at_dollars, self.cost, spent, SESSION_ADVICE)
        if self.daily_cap is not None:
            cap, today = self.daily_cap.dollars, self.daily_cap.spent()
            spent = f"{format_dollars(today)} of {format_dollars(cap)} is spent today"
            self._check_cap(model, estimate, cap, today, spent, DAILY_ADVICE)

    def _check_cap(
        self,
        model: str,
        estimate: Decimal | None,
        cap: Decimal,
        spent: Decimal,
        spent_text: str,
        advice: str,
    ) -> None:
        if estimate is None:
            if spent < cap or not self._has_charged(model):
                return
            problem = f"{model} may cost more"
        else:
            if spent + estimate <= cap:
                return
            problem = f"This call to {model} could cost {format_dollars(estimate)}"
        raise SpendingCapError(f"{problem}, and {spent_text}. {advice}", cap, spent, estimate)

    def _has_charged(self, model: str) -> bool:
        return any(total.cost > 0 for (name, _), total in self._totals.items() if name == model)

    @property
    def uncovered(self) -> str | None:
        """A sentence that names the models not covered by the cap; None if there are none."""
        unknown = {model for (model, _), total in self._totals.items() if total.unknown}
        models = sorted(self._unpriced | unknown)
        dollars = self.cap_at_dollars
        if dollars is None and self.daily_cap is not None:
            dollars = self.daily_cap.dollars
        if dollars is None or not models:
            return None
        cap = format_dollars(dollars)
        return f"The cap of {cap} does not cover {', '.join(models)}: the price is unknown."

    def format_table(self, tokens: int | None = None) -> str:
        """Return a table with a row per model and category.

        `tokens` is the current size of the conversation, for the last line.
        """
        head = ("model", "category", "calls", "prompt", "cached", "completion", "cost")
        rows = [
            head,
            *(format_spending_cells(*name, total) for name, total in self._totals.items()),
        ]
        if len(self._totals) > 1:
            rows.append(format_spending_cells("total", "", self.total))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        cells = [zip(row, "<<>>>>>", widths, strict=True) for row in rows]
        lines = [
            "  ".join(f"{text:{side}{width}}" for text, side, width in row).rstrip()
            for row in cells
        ]
        if not self._totals:
            lines = ["no calls yet"]
        if tokens is not None:
            lines.append(f"the conversation now has {tokens:,} tokens")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """Return totals and given warnings as JSON; limits are configuration."""
        totals = [
            {"model": model, "category": category, **asdict(total), "cost": str(total.cost)}
            for (model, category), total in self._totals.items()
        ]
        return {"totals": totals, "warned": sorted(self._warned)}

    def restore(self, data: Mapping[str, object]) -> None:
        """Restore what `to_dict` returned; raise InputError if it cannot be read."""
        saved: Mapping[str, Any] = data
        try:
            totals = {(row["model"], row["category"]): _parse_total(row) for row in saved["totals"]}
            warned = set(saved["warned"])
        except (KeyError, TypeError, ValueError, InvalidOperation) as error:
            raise InputError(f"The saved costs cannot be read: {error!r}.") from None
        self._totals, self._warned = totals, warned


def _parse_total(row: Mapping[str, Any]) -> SpendingTotal:
    fields = {name: value for name, value in row.items() if name not in ("model", "category")}
    fields["usage"] = Usage(**fields["usage"])
    fields["cost"] = Decimal(fields["cost"])
    return SpendingTotal(**fields)


def check_category(category: str) -> None:
    """Raise InputError if the category is unknown."""
    if category not in CATEGORIES:
        raise InputError(f"Unknown category: {category!r}. Use one of {', '.join(CATEGORIES)}.")


def _parse_limit(name: str, given: Number | None) -> Decimal | None:
    if given is None:
        return None
    try:
        number = Decimal(str(given)) if not isinstance(given, bool) else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise InputError(f"{name} must be a number, not {given!r}.")
    if number < 0:
        raise InputError(f"{name} must not be negative: {given}.")
    return number


def format_spending_cells(model: str, category: str, total: SpendingTotal) -> tuple[str, ...]:
    """Return the cells of one row of the cost table."""
    usage = total.usage
    prompt = f"{usage.input:,}"
    if total.counted and abs(total.counted - usage.input) > ESTIMATE_TOLERANCE * usage.input:
        prompt += f" ~est={total.counted:,}"
    completion = f"{usage.output:,}" + (" (estimated)" if total.estimated else "")
    cached, cost = f"{usage.cached:,}", total.format_cost(places=6)
    return model, category, f"{total.calls:,}", prompt, cached, completion, cost
