"""Which model a message goes to, by the user's rules, and which one is the fallback.

Pure: rules and errors in, names out.
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
"""Rules match only the first characters of a message: patterns can be slow."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a message goes; every field is None if no rule matches."""

    class_: str | None = None
    model: str | None = None
    """The user's name for the model; None for the current one."""
    system: str | None = None
    """The base of the system prompt; None for the usual one."""
    rule: int | None = None
    """Index of the rule that matched."""


def choose_route(message: str, config: RoutingConfig) -> Route:
    """Return the route of the first rule that matches, ignoring case."""
    start = message[:MAX_MATCHED_CHARS]
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
