"""What was learned about one model at one endpoint: how its counts compare with ours, its window.

An estimate is a number of tokens that another vocabulary would take. What the server reports of a
request says how far off it was. What is learned moves in steps of 2 %, so that it does not move
the cuts at every request, and a single odd report moves it little.

A count with the model's own vocabulary has no such ratio. Where a server takes more all the same (a
prompt of its own, tools in other words), that is so many tokens for each request: a shortfall.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, isfinite, log
from typing import Any, Final

RATIO_STEP: Final = 1.02
MAX_REPORTS: Final = 8
"""So many of the last reports count."""
MIN_TOKENS: Final = 150
"""Requests below are mostly the template's own tokens, which say nothing about text."""
RATIO_BOUNDS: Final = (0.5, 3.0)
"""What is believed of the true tokens for an estimated one."""
DENSITY_BOUNDS: Final = (0.2, 1.0)
MIN_UNCERTAINTY: Final = 0.04
LATIN_BYTES: Final = 0.05
"""A request with at most so many bytes of other scripts for a token says how Latin text counts."""
FOREIGN_BYTES: Final = 2.0
"""One with at least so many says how the other scripts do."""
MAX_SHORTFALL: Final = 1 << 30
SHORTFALL_STEP: Final = 1.25
"""A shortfall moves in steps of this: it is seldom the same for two requests."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the last reports said. Values are never changed: `learn` gives another one."""

    ratios: tuple[float, ...] = ()
    """True tokens for an estimated one, the newest last."""
    densities: tuple[float, ...] = ()
    """Tokens for a byte of text in other scripts than Latin."""
    window: int | None = None
    """What the server takes, where it refused more."""
    told: int | None = None
    """What the server said of its window at that time; says it otherwise, it is another one."""
    shortfalls: tuple[int, ...] = ()
    """Tokens that large requests took beside what was counted exactly, the newest last."""

    @property
    def ratio(self) -> float:
        """What an estimate is multiplied by; rather too much than too little."""
        return round_up_ratio(_robust_max(self.ratios)) if self.ratios else 1.0

    @property
    def density(self) -> float:
        return min(1.0, round_up_ratio(_robust_max(self.densities))) if self.densities else 1.0

    @property
    def offset(self) -> int:
        """Tokens that a request takes beside what is counted; rather too many than too few."""
        most = _robust_max(self.shortfalls) if self.shortfalls else 0
        return ceil(SHORTFALL_STEP ** ceil(log(most, SHORTFALL_STEP) - 1e-9)) if most > 0 else 0

    def uncertainty(self, first: float) -> float:
        """How far a scaled estimate may still be too low; `first` where nothing was measured."""
        if len(self.ratios) < 3:
            return first if not self.ratios else first / 2
        spread = max(self.ratios) / min(self.ratios) - 1
        return min(first, round(max(MIN_UNCERTAINTY, spread / 2), 2))

    def learn(
        self, estimate: int, foreign: int, true: int, by: Calibration | None = None
    ) -> Calibration:
        """Take in a report: what was estimated, and what it really was.

        `by` is what was known when it was estimated, if that was not this. `foreign` are the
        bytes of text in other scripts. Where both kinds of text have a part in it, nobody can
        tell which of them was off, and nothing is learned.
        """
        by = by or self
        latin = max(0.0, estimate - by.density * foreign) / by.ratio
        if latin >= MIN_TOKENS and foreign <= LATIN_BYTES * latin:
            ratio = _clamp((true - self.density * foreign) / latin, RATIO_BOUNDS)
            return replace(self, ratios=(*self.ratios, ratio)[-MAX_REPORTS:])
        if foreign >= max(MIN_TOKENS, FOREIGN_BYTES * latin):
            density = _clamp((true - self.ratio * latin) / foreign, DENSITY_BOUNDS)
            return replace(self, densities=(*self.densities, density)[-MAX_REPORTS:])
        return self

    def missing(self, tokens: int) -> Calibration:
        """Take in by how many tokens an exact count was too low."""
        missing = min(max(0, tokens), MAX_SHORTFALL)
        return replace(self, shortfalls=(*self.shortfalls, missing)[-MAX_REPORTS:])

    def with_window(self, window: int | None, told: int | None = None) -> Calibration:
        return replace(self, window=window, told=told)

    def window_at(self, told: int | None) -> int | None:
        """The window that was learned of a server that says this of itself."""
        return self.window if told == self.told else None

    def narrowed(self, other: Calibration) -> Calibration:
        """With the smaller window of the two: a limit that was learned once is not lost."""
        if other.window is None or (self.window is not None and self.told != other.told):
            return self
        window = other.window if self.window is None else min(self.window, other.window)
        return self.with_window(window, other.told)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ratios": list(self.ratios),
            "densities": list(self.densities),
            "window": self.window,
            "told": self.told,
            "shortfalls": list(self.shortfalls),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> Calibration:
        """Read what `to_dict` wrote; what makes no sense is forgotten."""
        if not isinstance(data, Mapping):
            return cls()
        return cls(
            _parse_numbers(data.get("ratios"), RATIO_BOUNDS),
            _parse_numbers(data.get("densities"), DENSITY_BOUNDS),
            _parse_size(data.get("window")),
            _parse_size(data.get("told")),
            _parse_sizes(data.get("shortfalls")),
        )


UNCALIBRATED: Final = Calibration()
"""What is known before the first report."""


def _parse_size(given: object) -> int | None:
    is_size = isinstance(given, int) and not isinstance(given, bool) and given > 0
    return given if is_size else None  # type: ignore[return-value]


def _parse_sizes(given: object) -> tuple[int, ...]:
    if not isinstance(given, list | tuple):
        return ()
    return tuple(size for size in given if type(size) is int and 0 <= size <= MAX_SHORTFALL)[
        -MAX_REPORTS:
    ]


def _robust_max(values: tuple[float, ...]) -> float:
    """The highest; of many the second highest, so that one odd report does not decide."""
    ordered = sorted(values)
    return ordered[-2] if len(ordered) >= 4 else ordered[-1]


def round_up_ratio(value: float) -> float:
    """Return the next higher step: small changes of a ratio must not move the trims."""
    return round(float(RATIO_STEP ** ceil(log(value, RATIO_STEP) - 1e-9)), 4)


def _clamp(value: float, bounds: tuple[float, float]) -> float:
    return round(min(max(value, bounds[0]), bounds[1]), 4)


def _parse_numbers(given: object, bounds: tuple[float, float]) -> tuple[float, ...]:
    if not isinstance(given, list | tuple):
        return ()
    numbers = [value for value in given if type(value) in (int, float) and isfinite(value)]
    return tuple(_clamp(value, bounds) for value in numbers)[-MAX_REPORTS:]
