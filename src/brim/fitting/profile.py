"""What is known about a model at an endpoint: its window, its counter, its template, its price."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from brim.errors import InputError
from brim.fitting.budget import Budget, compute_budget
from brim.fitting.calibration import UNCALIBRATED, Calibration
from brim.fitting.plan import Plan
from brim.models import catalog, pricing
from brim.models.pricing import Price
from brim.tokens import Counter, Tokenizer, counter_for
from brim.tokens.counter import CalibratedCounter, RequestCounter, UnmeasuredCounter
from brim.wire.prompt_counter import PromptCounter, find_prompt_counter
from brim.wire.template_counter import wrap_counter
from brim.wire.template_rules import TemplateRules, rules_for
from brim.wire.template_source import find_rules

PriceBasis = Literal["list", "free", "unknown"]

MAX_OFFSET_SHARE: Final = 0.25
"""The largest share of the room that is kept free for tokens that a server adds."""
MAX_SERVER_OVERHEAD: Final = 1_000
"""Tokens that a server may add to a prompt."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What is known about a model; a new fact makes a new profile."""

    model: str | None = None
    window: int | None = None
    """The caller's setting; takes precedence over the server's."""
    reply: int | None = None
    tokenizer: Tokenizer | str | None = None
    template: str | None = None
    """The caller's setting: the name of its template rules, or a template."""
    price: Price | None = None
    """The caller's setting; takes precedence over the price list."""
    price_basis: PriceBasis = "list"
    """Whether the price list applies; a self-hosted server is free, or its price is unknown."""
    server_window: int | None = None
    """The window that the server advertises."""
    least_reply: int = 0
    """Tokens that the server always keeps free for the reply."""
    calibration: Calibration = UNCALIBRATED
    ceiling: int | None = None
    """A limit from a context-length error that may not hold for every request, but for a key or a
    client. It is not saved."""
    largest_prompt: int | None = None
    """The most tokens to send after a context-length error that named no limit. It is not saved."""
    guess: int | None = None
    """The window to assume if it is unknown."""
    trial: TemplateRules | None = None
    """The rules that a trial of its template found; None: those of the model's family apply."""
    called: str | None = None
    """The user's own name for the model."""
    margin: int | None = None
    """The caller's setting; None: the uncertainty of the count."""
    is_calibrated: bool = True
    """Whether estimates follow the usage that the server reports; in `brim.fit` they cannot."""
    accepted: int = field(default=0, compare=False)
    """Tokens of the largest request that the server has answered."""

    def __post_init__(self) -> None:
        Budget(self.window or 0, self.reply or 0, self.margin or 0)  # raises for invalid numbers
        if not isinstance(self.model, str | None):
            raise InputError(f"The model's name must be text, not {type(self.model).__name__}.")
        self.rules()

    @property
    def name(self) -> str:
        """The name in reports: the user's own name for the model, or the server's."""
        return self.called or self.model or ""

    def rules(self) -> TemplateRules:
        if self.template is not None:
            return find_rules(self.template)
        return rules_for(self.model) if self.trial is None else self.trial

    @property
    def template_source(self) -> str:
        """Where the template rules are known from."""
        if self.template is not None:
            return "given"
        return "by the model's name" if self.trial is None else "by trial"

    def counter(self) -> Counter:
        """Return the counter for requests, calibrated if it only estimates."""
        counter = counter_for(self.model, tokenizer=self.tokenizer)
        if counter.uncertainty and isinstance(counter, RequestCounter):
            counter = self._adjust_counter(counter)
        return wrap_counter(counter, self.rules())

    def _adjust_counter(self, counter: RequestCounter) -> RequestCounter:
        """Return the counter for the estimates of another one."""
        if not self.is_calibrated:
            return UnmeasuredCounter(counter) if self.model and counter.is_unknown else counter
        known = self.calibration
        uncertainty = known.uncertainty(counter.uncertainty)
        return CalibratedCounter(counter, known.ratio, known.density, uncertainty)

    def prompt_counter(self) -> PromptCounter | None:
        """Return the exact counter of requests, if the template's text was given."""
        return find_prompt_counter(self.template, self.model, self.tokenizer)

    def budget(
        self, counter: Counter, least_reply: int = 0, reply_limit: int | None = None
    ) -> Budget:
        """Return the budget of a request whose reply needs at least `least_reply` tokens.

        `reply_limit` is the longest reply that the request allows.
        """
        window = self.guess if self.is_guessed else self._tightest_window()
        least = max(self.least_reply, least_reply)
        budget = compute_budget(
            self.model,
            window,
            self.reply,
            counter.uncertainty,
            least,
            margin=self.margin,
            reply_limit=reply_limit,
        )
        if not counter.density and self.calibration.offset:
            offset = min(self.calibration.offset, int(MAX_OFFSET_SHARE * budget.room))
            budget = budget.with_margin(budget.margin + offset)
        return budget if self.largest_prompt is None else budget.with_limit(self.largest_prompt)

    @property
    def is_guessed(self) -> bool:
        """Whether the window is unknown, so that `guess` is used."""
        if self.guess is None or self._tightest_window() is not None:
            return False
        known = catalog.model(self.model) if self.model else None
        return known is None or known.context is None

    @property
    def window_source(self) -> str:
        """Where the window is known from."""
        if self.is_guessed:
            return "a guess"
        if self._tightest_window() != self._known_window():
            return "a context-length error"
        if self.window is not None:
            return "given"
        return "the catalog" if self.server_window is None else "the server"

    def price_for(self, tokens: int) -> Price | None:
        """Return the price for a prompt of that length; None if it is unknown."""
        if self.price is not None:
            return self.price
        if self.price_basis == "free":
            return pricing.FREE
        if self.model is None or self.price_basis == "unknown":
            return None
        return pricing.price(self.model, tokens=tokens)

    @property
    def proven_window(self) -> int | None:
        """The window without limits that may be wrong; None if it is unknown."""
        profile = replace(self, ceiling=None, largest_prompt=None)
        return None if profile.is_guessed else profile.budget(profile.counter()).window

    # New facts

    def max_prompt(self, plan: Plan, uncertainty: float) -> int:
        """Return the most tokens that a request can turn out to have."""
        if plan.is_server_counted or plan.exact:
            return plan.size
        overhead = max(MAX_SERVER_OVERHEAD, round(self.calibration.offset))
        most = plan.size + math.ceil(plan.size * uncertainty) + overhead
        return most if self.is_guessed else min(most, max(plan.size, plan.budget.room))

    def with_calibration(self, calibration: Calibration) -> ModelProfile:
        return replace(self, calibration=calibration)

    def with_stored(self, stored: Calibration) -> ModelProfile:
        """Return the profile with a saved calibration, of which it keeps at least the window."""
        if self.calibration == UNCALIBRATED:
            return self.with_calibration(stored)
        return self.with_calibration(self.calibration.with_smaller_window(stored))

    def with_server(
        self, window: int | None, *, least_reply: int, price_basis: PriceBasis
    ) -> ModelProfile:
        """Return the profile with what the server says about itself; `window` None: unknown."""
        accepted = self.accepted if window == self.server_window else 0
        return replace(
            self,
            server_window=window,
            least_reply=least_reply,
            price_basis=price_basis,
            accepted=accepted,
        )

    def with_accepted(self, tokens: int) -> ModelProfile:
        """Return the profile after an answer, which disproves every smaller limit."""
        if tokens <= self.accepted:
            return self
        profile = replace(self, accepted=tokens)
        window = self.calibration.window
        if window is not None and window < tokens:
            profile = profile.with_calibration(self.calibration.with_window(None))
        if self.ceiling is not None and self.ceiling < tokens:
            profile = replace(profile, ceiling=None)
        if self.largest_prompt is not None and self.largest_prompt < tokens:
            profile = replace(profile, largest_prompt=tokens)
        return profile

    def _known_window(self) -> int | None:
        return self.server_window if self.window is None else self.window

    def _tightest_window(self) -> int | None:
        """Return the known window, or the limit of a context-length error if that is smaller."""
        recorded = self.calibration.window_at(self.server_window)
        windows = (self._known_window(), recorded, self.ceiling)
        return min((window for window in windows if window is not None), default=None)
