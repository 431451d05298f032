"""Names: how well a list of names and patterns means a model; only `*` stands for anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

WILDCARD: Final = "*"


def is_pattern(name: str) -> bool:
    """Whether it may mean several models."""
    return WILDCARD in name


def match_rank(names: Sequence[str], model: str) -> int:
    """How well a list means a model: 3 by name, 2 by pattern, 1 as it means all, 0 not at all."""
    if not names:
        return 1
    if model in names:
        return 3
    patterns = filter(is_pattern, names)
    return 2 if any(_compile_pattern(name).fullmatch(model) for name in patterns) else 0


@lru_cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split(WILDCARD))), re.DOTALL)
