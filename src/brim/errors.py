"""Everything brim raises on purpose.

BrimError
├── InputError              what was given cannot be read; says where and why
│   ├── MessageError        one message of a conversation (`.index`)
│   └── BudgetError         window, reply or margin make no sense, or are missing
├── UnknownTokenizerError   no tokenizer of that name, or its package is not installed
└── ContextOverflowError    nothing more may be left out and it is still too long (`.plan`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brim.plan import Plan


class BrimError(Exception):
    """The parent of all errors of brim."""


class InputError(BrimError, ValueError):
    """What was given cannot be read."""


class MessageError(InputError):
    """One message cannot be read; `index` says which."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index = index
        self.reason = reason

    def __str__(self) -> str:
        return f"message {self.index}: {self.reason}"


class BudgetError(InputError):
    """The numbers of a budget make no sense, or one that is needed is missing."""


class UnknownTokenizerError(BrimError, LookupError):
    """No tokenizer of that name is known, or the package that carries it is not installed."""


class ContextOverflowError(BrimError):
    """What must be sent is larger than the limit."""

    def __init__(self, plan: Plan, parts: Mapping[str, int], advice: str) -> None:
        self.plan = plan
        self.tokens = plan.tokens
        """The smallest count that was reached."""
        self.limit = plan.limit
        self.parts = dict(parts)
        """Tokens of what may not be left out: system, tools, pins, last user, open step."""
        self.advice = advice
        super().__init__(plan, parts, advice)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size:,}" for name, size in self.parts.items() if size)
        return (
            f"{self.tokens:,} tokens is the least that can be sent (of {self.plan.before:,}), and "
            f"the limit is {self.limit:,}: {parts}. {self.advice}"
        )
