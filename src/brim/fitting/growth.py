"""Growth: by how many tokens new messages make a request longer, according to a server's reports.

Between two reports a conversation has grown by known messages, so their difference is the size of
these messages alone: without tools, system text or anything else that both requests contain. A
linear model follows these differences (recursive least squares): so many tokens for each estimated
token of Latin text, for each message, for each call or result, and for each byte of other scripts.
Unlike a ratio of whole requests, it also knows how far it may be off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any, Final, NamedTuple

from brim.messages import Message
from brim.tokens import Counter
from brim.tokens.counter import measure_non_latin


class Content(NamedTuple):
    """What messages consist of: the variables of the model."""

    latin: float
    """Uncalibrated tokens of messages without their text in other scripts."""
    messages: float
    steps: float
    """Calls and results."""
    non_latin: float
    """Bytes of text in other scripts."""

    @classmethod
    def of(cls, messages: Iterable[Message], counter: Counter) -> Content:
        messages = list(messages)
        bytes_ = measure_non_latin(messages) if counter.density else 0
        tokens = sum(map(counter.message, messages))
        latin = max(0.0, tokens - counter.density * bytes_) / counter.ratio
        steps = sum(len(each.calls) + (each.answers is not None) for each in messages)
        return cls(latin, len(messages), steps, bytes_)

    def minus(self, other: Content) -> Content:
        return Content(*(one - each for one, each in zip(self, other, strict=True)))


PRIOR: Final = (1.05, 2.0, 4.0, 0.25)
"""Tokens per unit of each variable, before any report: the mean of the 14 models of
`benchmarks.truth`."""
SPREAD: Final = (0.12, 2.0, 9.0, 0.1)
"""The standard deviation of these numbers between models, about."""
NOISE: Final = (5.0, 0.04)
"""The standard deviation of a difference around a fitted model: tokens, and a share."""
MIN_WEIGHT: Final = 0.5
"""The fewest tokens that an estimated token of Latin text can take."""
DRIFT: Final = 0.003
"""The share of the first variance that every report adds: later text may be of another kind."""
SURPRISE: Final = 3.0
"""From so many standard deviations on, a report shows that the model was too certain."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Tokens per unit of each variable, and how uncertain they are; a report makes a new value."""

    weights: tuple[float, ...] = PRIOR
    covariance: tuple[tuple[float, ...], ...] = tuple(
        tuple(spread**2 * (row == column) for column in range(len(SPREAD)))
        for row, spread in enumerate(SPREAD)
    )

    @property
    def text_weight(self) -> float:
        """Tokens per uncalibrated token of Latin text."""
        return max(MIN_WEIGHT, self.weights[0])

    def estimate(self, content: Content) -> tuple[float, float]:
        """Return the tokens of new messages, and the standard deviation of that number."""
        tokens = max(0.0, _multiply(self.weights, content))
        spread = _multiply(self._covary(content), content)
        return tokens, sqrt(max(0.0, spread) + NOISE[0] ** 2 + (NOISE[1] * tokens) ** 2)

    def add_report(self, content: Content, tokens: int) -> Growth:
        """Return the model with a report: by how many tokens new messages made a request longer."""
        expected, deviation = self.estimate(content)
        surprise = tokens - expected
        scale = max(1.0, abs(surprise) / (SURPRISE * deviation)) ** 2
        covaried = [scale * each for each in self._covary(content)]
        variance = deviation**2 + (scale - 1) * _multiply(self._covary(content), content)
        gains = [each / variance for each in covaried]
        weights = zip(self.weights, gains, strict=True)
        lines = zip(self.covariance, gains, SPREAD, strict=True)
        return Growth(
            tuple(round(weight + gain * surprise, 6) for weight, gain in weights),
            tuple(
                tuple(
                    round(scale * known - gain * other + (column == row) * DRIFT * spread**2, 9)
                    for column, (known, other) in enumerate(zip(line, covaried, strict=True))
                )
                for row, (line, gain, spread) in enumerate(lines)
            ),
        )

    def _covary(self, content: Content) -> list[float]:
        return [_multiply(line, content) for line in self.covariance]

    @classmethod
    def from_dict(cls, data: object) -> Growth:
        """Return the model that `asdict` wrote; the first one if that is invalid."""
        if not isinstance(data, Mapping):
            return cls()
        weights, covariance = data.get("weights"), data.get("covariance")
        if not isinstance(covariance, list | tuple):
            return cls()
        lines = [weights, *covariance]
        if len(lines) != len(PRIOR) + 1 or not all(map(_is_line, lines)):
            return cls()
        return cls(tuple(lines[0]), tuple(map(tuple, lines[1:])))


UNMEASURED_GROWTH: Final = Growth()
"""The model before any report."""


def _is_line(given: Any) -> bool:
    return (
        isinstance(given, list | tuple)
        and len(given) == len(PRIOR)
        and all(type(each) in (int, float) and isfinite(each) for each in given)
    )


def _multiply(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(left, right, strict=True))
