"""Calibration of a model at an endpoint: how the server's counts compare with brim's.

An estimate uses another vocabulary than the model's. The usage that a server reports shows by
which ratio the estimate was off. Ratios move in steps of 2 %, so that they do not move the trims at
every request, and a single unusual report changes them little.

An exact count has no ratio. If the server counts more all the same (its own prompt, another format
of tools), the difference is a number of tokens for every request: a shortfall.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil, isfinite, log
from typing import Any, Final

from brim.fitting.growth import UNMEASURED_GROWTH, Content, Growth

RATIO_STEP: Final = 1.02
MAX_REPORTS: Final = 8
"""The number of reports that are kept, the newest ones."""
MIN_TOKENS: Final = 150
"""Smaller requests consist mostly of template tokens, which tell nothing about text."""
RATIO_BOUNDS: Final = (0.5, 3.0)
"""Plausible values of actual tokens per estimated token."""
DENSITY_BOUNDS: Final = (0.2, 1.0)
MIN_UNCERTAINTY: Final = 0.04
LATIN_BYTES: Final = 0.05
"""Up to this many non-Latin bytes per token, a request measures Latin text."""
FOREIGN_BYTES: Final = 2.0
"""From this many non-Latin bytes per token on, a request measures non-Latin text."""
LEAST_RATIO: Final = 0.85
"""The share of the lowest known ratio that the Latin text of a mixed request takes at least."""
MAX_SHORTFALL: Final = 1 << 30
SHORTFALL_STEP: Final = 1.25
"""Shortfalls move in steps of this factor: they differ from request to request."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The last reports of a server; each report makes a new calibration."""

    ratios: tuple[float, ...] = ()
    """Actual tokens per estimated token, the newest last."""
    densities: tuple[float, ...] = ()
    """Tokens per byte of non-Latin text."""
    window: int | None = None
    """The window according to a context-length error."""
    advertised: int | None = None
    """The window that the server advertised at that time; `window` is void if that changes."""
    shortfalls: tuple[int, ...] = ()
    """Tokens that large requests took in addition to an exact count, the newest last."""
    growth: Growth = UNMEASURED_GROWTH
    """The tokens of new messages, by the difference of reports."""

    @property
    def ratio(self) -> float:
        """The factor for estimates; rather too high than too low."""
        return round_up_ratio(_robust_max(self.ratios)) if self.ratios else 1.0

    @property
    def density(self) -> float:
        return min(1.0, round_up_ratio(_robust_max(self.densities))) if self.densities else 1.0

    @property
    def offset(self) -> int:
        """Tokens that a request takes in addition to its count; rather too many than too few."""
        most = _robust_max(self.shortfalls) if self.shortfalls else 0
        return ceil(SHORTFALL_STEP ** ceil(log(most, SHORTFALL_STEP) - 1e-9)) if most > 0 else 0

    def uncertainty(self, first: float) -> float:
        """Return how far a calibrated estimate may be too low; `first` without any report."""
        if len(self.ratios) < 3:
            return first if not self.ratios else first / 2
        spread = max(self.ratios) / min(self.ratios) - 1
        return min(first, round(max(MIN_UNCERTAINTY, spread / 2), 2))

    def add_report(
        self, estimate: int, non_latin: int, tokens: int, by: Calibration | None = None
    ) -> Calibration:
        """Return the calibration with a report: the estimate and the actual tokens of a request.

        `by` is the calibration of the estimate, if it was another one. `non_latin` is the number
        of bytes of non-Latin text. A mixed request shows only how dense that is at most.
        """
        by = by or self
        latin = max(0.0, estimate - by.density * non_latin) / by.ratio
        if latin >= MIN_TOKENS and non_latin <= LATIN_BYTES * latin:
            ratio = _clamp((tokens - self.density * non_latin) / latin, RATIO_BOUNDS)
            return replace(self, ratios=(*self.ratios, ratio)[-MAX_REPORTS:])
        if non_latin < MIN_TOKENS:
            return self
        if non_latin >= FOREIGN_BYTES * latin:
            return self._add_density((tokens - self.ratio * latin) / non_latin)
        most = (tokens - LEAST_RATIO * min(self.ratios, default=1.0) * latin) / non_latin
        return self._add_density(most) if DENSITY_BOUNDS[0] <= most < self.density else self

    def _add_density(self, density: float) -> Calibration:
        densities = (*self.densities, _clamp(density, DENSITY_BOUNDS))
        return replace(self, densities=densities[-MAX_REPORTS:])

    def add_shortfall(self, tokens: int) -> Calibration:
        """Return the calibration with the tokens by which an exact count was too low."""
        shortfall = min(max(0, tokens), MAX_SHORTFALL)
        return replace(self, shortfalls=(*self.shortfalls, shortfall)[-MAX_REPORTS:])

    def add_growth(self, content: Content, tokens: int) -> Calibration:
        """Return the calibration with the tokens by which new messages made a request longer."""
        return replace(self, growth=self.growth.add_report(content, tokens))

    def with_window(self, window: int | None, advertised: int | None = None) -> Calibration:
        return replace(self, window=window, advertised=advertised)

    def window_at(self, advertised: int | None) -> int | None:
        """Return the recorded window, if the server still advertises the same one."""
        return self.window if advertised == self.advertised else None

    def with_smaller_window(self, other: Calibration) -> Calibration:
        """Return the calibration with the smaller window of both, so that no limit is lost."""
        if other.window is None or (
            self.window is not None and self.advertised != other.advertised
        ):
            return self
        window = other.window if self.window is None else min(self.window, other.window)
        return self.with_window(window, other.advertised)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> Calibration:
        """Return the calibration that `to_dict` wrote, without invalid values."""
        if not isinstance(data, Mapping):
            return cls()
        return cls(
            _parse_numbers(data.get("ratios"), RATIO_BOUNDS),
            _parse_numbers(data.get("densities"), DENSITY_BOUNDS),
            _parse_size(data.get("window")),
            _parse_size(data.get("advertised")),
            _parse_sizes(data.get("shortfalls")),
            Growth.from_dict(data.get("growth")),
        )


UNCALIBRATED: Final = Calibration()
"""The calibration before the first report."""


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
    """Return the highest value; of four or more the second highest, to ignore an outlier."""
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
