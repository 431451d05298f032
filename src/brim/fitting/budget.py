"""Budget: window − reply − margin = limit, the room for what is sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.errors import BudgetError
from brim.models import catalog

MAX_DEFAULT_REPLY = 4_096
"""What is kept for an answer when nobody says how much; at most a quarter of the window."""


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """How a count stands against a budget."""

    limit: int
    current: int
    available: int
    within: bool
    percent: float


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens a request may take, as the parts of a sum that can be read."""

    window: int
    """What the model holds, question and answer together."""
    reply: int
    """Kept for the answer."""
    margin: int = 0
    """The counter's uncertainty, in tokens."""
    largest_input: int | None = None
    """Some models take less than their window leaves."""
    room: int = field(init=False, repr=False, compare=False)
    """What a server takes beside the reply: the limit without the margin."""
    limit: int = field(init=False, repr=False, compare=False)
    """What may be sent."""

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
                raise BudgetError(f"{name} must be a whole number of tokens, not {value!r}")
            if value < 0:
                raise BudgetError(f"{name} must not be negative, but is {value:,}")

    def check(self, tokens: int) -> BudgetCheck:
        limit = self.limit
        percent = 100 * tokens / limit if limit else (100.0 if tokens else 0.0)
        return BudgetCheck(limit, tokens, max(0, limit - tokens), tokens <= limit, percent)


def compute_budget(
    model: str | None,
    window: int | None,
    reply: int | None,
    uncertainty: float,
    least_reply: int = 0,
) -> Budget:
    """The budget of a request to a model, counted with this uncertainty (a share of the count).

    What the caller says goes before what the catalog knows. A larger reply that the request needs
    at least is kept free, but never more than half of the window for it. The margin is what the
    count may be off at the limit: a full request whose true size is larger by that share still
    fits.
    """
    known = catalog.model(model) if model else None
    if window is None:
        window = known.context if known else None
    if window is None:
        raise BudgetError(
            f"the context window of {model} is not known; give window=..."
            if model
            else "give the size of the context window (window=8192), or a known model (model=...)"
        )
    Budget(window, reply or 0)  # refuses what is no number before it is reckoned with
    largest_input = known.largest_input if known else None
    if reply is None:
        largest_output = known.largest_output if known else None
        reply = min(window // 4, MAX_DEFAULT_REPLY, largest_output or MAX_DEFAULT_REPLY)
    reply = max(reply, min(least_reply, window // 2))
    exact = Budget(window, reply, 0, largest_input)
    margin = exact.limit - int(exact.limit / (1 + uncertainty))
    return Budget(window, reply, margin, largest_input)
