"""Which model gets what, by the user's own rules, and which one is next when it fails.

No I/O here: rules and errors in, names out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brim.providers.fallback import choose_fallback

if TYPE_CHECKING:
    from brim.config import ModelConfig, RoutingConfig

MAX_MATCHED_CHARS: Final = 10_000
"""Characters of the user's words in which a rule is looked for: patterns can be slow."""


@dataclass(frozen=True, slots=True)
class Route:
    """The way that some words take; None everywhere where no rule matches."""

    class_: str | None = None
    model: str | None = None
    """The user's name for the model, where the rule names one."""
    system: str | None = None
    """The base prompt of the class, where it has one."""
    rule: int | None = None
    """Which rule it was, counted from 0."""


def choose_route(words: str, config: RoutingConfig) -> Route:
    """The way of the first rule that is found in the words; upper and lower case are the same."""
    start = words[:MAX_MATCHED_CHARS]
    for index, rule in enumerate(config.rules):
        if re.search(rule.match, start, re.IGNORECASE):
            system = config.system_prompts.get(rule.class_) if rule.class_ else None
            return Route(rule.class_, rule.model, system, index)
    return Route()


def fallback_for(
    failed: str, models: Mapping[str, ModelConfig], tried: Collection[str]
) -> str | None:
    """Return the model to try after one failed; None if none is configured or left to try."""
    fallback = models[failed].fallback if failed in models else None
    return choose_fallback(failed, fallback, tried)
