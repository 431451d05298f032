"""Budget: window − reply − margin = limit, the most tokens of a request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from brim.errors import BudgetError
from brim.models import catalog

MAX_DEFAULT_REPLY = 4_096
"""The most tokens reserved for a reply by default; at most a quarter of the window."""


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """A token count compared with a budget."""

    limit: int
    current: int
    available: int
    within: bool
    percent: float


@dataclass(frozen=True, slots=True)
class Budget:
    """The most tokens that a request may take, and how that number is made up."""

    window: int
    """Tokens of the model's context window, request and reply together."""
    reply: int
    """Tokens reserved for the reply."""
    margin: int = 0
    """Tokens reserved for the uncertainty of the count."""
    largest_input: int | None = None
    """The model's own limit for a request; None if only the window limits it."""
    has_set_margin: bool = False
    """Whether the caller set the margin, so that nothing is added to it."""
    room: int = field(init=False, repr=False, compare=False)
    """Tokens that the server accepts: the limit without the margin."""
    limit: int = field(init=False, repr=False, compare=False)
    """The most tokens that may be sent."""

    def __post_init__(self) -> None:
        self._check()
        room = self.window - self.reply
        if self.largest_input is not None:
            room = min(room, self.largest_input)
        object.__setattr__(self, "room", max(0, room))
        object.__setattr__(self, "limit", max(0, room - self.margin))

    def _check(self) -> None:
        for name in ("window", "reply", "margin", "largest_input"):
            value = getattr(self, name)
            if value is None and name == "largest_input":
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise BudgetError(f"{name} must be an integer, not {value!r}.")
            if value < 0:
                raise BudgetError(f"{name} must not be negative: {value:,}.")

    def with_margin(self, margin: int) -> Budget:
        """Return the budget with at least such a margin, unless the caller set another one."""
        if margin <= self.margin or self.has_set_margin:
            return self
        return replace(self, margin=margin)

    def with_limit(self, limit: int) -> Budget:
        """Return the budget with a limit in counted tokens, if it is lower, and no margin."""
        return self if limit >= self.limit else replace(self, largest_input=limit, margin=0)

    def check(self, tokens: int) -> BudgetCheck:
        """Compare a token count with the limit."""
        limit = self.limit
        percent = 100 * tokens / limit if limit else (100.0 if tokens else 0.0)
        return BudgetCheck(limit, tokens, max(0, limit - tokens), tokens <= limit, percent)


def compute_budget(
    model: str | None,
    window: int | None,
    reply: int | None,
    uncertainty: float,
    least_reply: int = 0,
    *,
    margin: int | None = None,
    reply_limit: int | None = None,
) -> Budget:
    """Return the budget for a request to a model.

    The caller's values take precedence over the catalog's. `least_reply` is the smallest reply
    that the request needs; at most half of the window is reserved for it. `reply_limit` is the
    longest reply that the request allows. Unless `margin` is given, the margin covers the
    counter's uncertainty, a share of the count: a request at the limit whose true size is larger
    by that share still fits. Raise `BudgetError` if the window is unknown.
    """
    known = catalog.model(model) if model else None
    if window is None:
        window = known.context if known else None
    if window is None:
        raise BudgetError(
            f"The context window of {model} is unknown. Pass window=..."
            if model
            else "The context window is unknown. Pass window=8192, or model=... with a known name."
        )
    Budget(window, 0 if reply is None else reply)  # validates both numbers
    largest_input = known.largest_input if known else None
    if reply is None:
        largest_output = known.largest_output if known else None
        reply = min(window // 4, MAX_DEFAULT_REPLY, largest_output or MAX_DEFAULT_REPLY)
        if reply_limit is not None:
            reply = max(0, min(reply, reply_limit))
    reply = max(reply, min(least_reply, window // 2))
    exact = Budget(
        window, reply, 0 if margin is None else margin, largest_input, margin is not None
    )
    if margin is not None:
        return exact
    margin = exact.limit - int(exact.limit / (1 + uncertainty))
    return Budget(window, reply, margin, largest_input)
