"""Setup: model discovery, the first start, and the checks of `brim doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckState = Literal["ok", "warn", "bad"]
Finding = tuple[CheckState, str] | tuple[CheckState, str, str]
"""What a check found: the state, a message, and maybe advice."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check, and what to do about it."""

    name: str
    state: CheckState
    message: str
    advice: str | None = None
