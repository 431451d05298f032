"""Target: the model that will get a request, and all that follows from which one it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from brim.errors import InputError
from brim.fitting.budget import Budget, compute_budget
from brim.fitting.calibration import UNCALIBRATED, Calibration
from brim.models import catalog, pricing
from brim.tokens import counter_for
from brim.tokens.calibrated_counter import CalibratedCounter
from brim.tokens.counter import RequestCounter
from brim.wire import templates

if TYPE_CHECKING:
    from brim.models.pricing import Price
    from brim.tokens import Counter, Tokenizer

MAX_OFFSET_SHARE: Final = 0.25
"""At most that share of the room is left free for what a server adds to each request."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A model as it is known here. Another model, or more knowledge, is another target."""

    model: str | None = None
    window: int | None = None
    """As the caller gave it; goes before what the server says."""
    reply: int | None = None
    tokenizer: Tokenizer | str | None = None
    template: str | None = None
    """The name of its template rules; None: what is known about the model."""
    price: Price | None = None
    """As the caller gave it; goes before the price list."""
    is_local: bool = False
    """It runs on somebody's own machine: it has no price, whatever its name."""
    server_window: int | None = None
    least_reply: int = 0
    """What the server keeps free for an answer, whoever asks for less."""
    calibration: Calibration = UNCALIBRATED
    ceiling: int | None = None
    """A window by a refusal that does not prove it, because it names no limit or one that may be
    somebody else's: it is not kept across runs."""
    guess: int | None = None
    """A window to reckon with where nobody knows it."""
    called: str | None = None
    """The user's own name for it."""

    def __post_init__(self) -> None:
        Budget(self.window or 0, self.reply or 0)  # what is no number is refused where it is given
        if not isinstance(self.model, str | None):
            raise InputError(f"a model's name is text, not {type(self.model).__name__}")
        self.rules()

    @property
    def name(self) -> str:
        """What it goes by on a bill: the user's own name for it, else the server's."""
        return self.called or self.model or ""

    def rules(self) -> templates.TemplateRules:
        if self.template is not None:
            return templates.find_rules(self.template)
        return templates.rules_for(self.model)

    def counter(self) -> Counter:
        """Counts what goes out, scaled by what was learned where it is an estimate."""
        counter = counter_for(self.model, tokenizer=self.tokenizer)
        known = self.calibration
        if counter.uncertainty and isinstance(counter, RequestCounter):
            doubt = known.uncertainty(counter.uncertainty)
            counter = CalibratedCounter(counter, known.ratio, known.density, doubt)
        return templates.wrap_counter(counter, self.rules())

    def budget(self, counter: Counter, least_reply: int = 0) -> Budget:
        """The room for a request; `least_reply` is what its answer needs, whoever keeps less."""
        window = self.guess if self.is_guessed else self._tightest_window()
        least = max(self.least_reply, least_reply)
        budget = compute_budget(self.model, window, self.reply, counter.uncertainty, least)
        if counter.density or not self.calibration.offset:
            return budget
        offset = min(self.calibration.offset, int(MAX_OFFSET_SHARE * budget.room))
        return replace(budget, margin=budget.margin + offset)

    @property
    def is_guessed(self) -> bool:
        """Whether nobody knows the window, so that it is reckoned with a guess."""
        if self.guess is None or self._tightest_window() is not None:
            return False
        known = catalog.model(self.model) if self.model else None
        return known is None or known.context is None

    @property
    def window_source(self) -> str:
        """Where the size of the window is known from."""
        if self.is_guessed:
            return "a guess"
        if self._tightest_window() != self._known_window():
            return "a refusal by the server"
        if self.window is not None:
            return "given"
        return "the catalog" if self.server_window is None else "the server"

    def price_for(self, tokens: int) -> Price | None:
        """What the model costs for a prompt of that length; None where nobody knows."""
        if self.price is not None or self.model is None:
            return self.price
        return None if self.is_local else pricing.price(self.model, tokens=tokens)

    def learned(self, calibration: Calibration) -> ModelProfile:
        return replace(self, calibration=calibration)

    @property
    def proven_window(self) -> int | None:
        """The window without what a refusal did not prove; None where nobody knows one."""
        target = replace(self, ceiling=None)
        return None if target.is_guessed else target.budget(target.counter()).window

    def _known_window(self) -> int | None:
        return self.server_window if self.window is None else self.window

    def _tightest_window(self) -> int | None:
        """The known one, unless the server was seen to take less."""
        learned = self.calibration.window_at(self.server_window)
        windows = (self._known_window(), learned, self.ceiling)
        return min((window for window in windows if window is not None), default=None)
