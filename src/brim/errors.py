"""Everything brim raises on purpose.

BrimError
├── InputError              what was given cannot be read; says where and why
│   ├── MessageError        one message of a conversation (`.index`)
│   ├── BudgetError         window, reply or margin make no sense, or are missing
│   └── ConfigError         settings are wrong (`.problems`, each with its file and line)
├── UnknownTokenizerError   no tokenizer of that name, or its package is not installed
├── StoreError              what is kept between runs cannot be read or written
│   └── BooksError          the store of keys, caps and spending cannot be used
│       └── BooksAwayError  it cannot be reached now
├── LocalModelError         the embedded model cannot be fetched or started
├── ProviderError           a model server did not do as asked (`.status`, `.body`, `.retry_after`)
│   ├── RefusedError        it says that the request is too long (`.overflow`)
│   ├── RateLimitError      it asks to wait
│   ├── AuthenticationError it does not accept the key, or wants one
│   ├── ProviderTimeoutError    it was silent for too long
│   └── ConnectionFailedError   it could not be reached, or hung up
├── ReplyError              an answer cannot be read, or is an error itself (`.error`)
├── SpendingCapError        a call could cost more than is left (`.cap`, `.spent`, `.estimate`)
└── ContextOverflowError    nothing more may be left out and it is still too long (`.plan`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from decimal import Decimal

    from brim.fitting.plan import Plan
    from brim.wire.overflow import Overflow


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


class ConfigError(InputError):
    """Settings are wrong; `problems` are all of them, each with its file and line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        return "\n  ".join([f"{len(self.problems)} settings are wrong:", *self.problems])


class UnknownTokenizerError(BrimError, LookupError):
    """No tokenizer of that name is known, or the package that carries it is not installed."""


class ProviderError(BrimError):
    """A model server did not do what it was asked; the sentence names its host, never the key."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        body: object = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status, where there was an answer at all."""
        self.body = body
        """What the server said: its JSON, or the beginning of its text."""
        self.retry_after = retry_after
        """Seconds that the server asked to wait."""


class ContextLengthError(ProviderError):
    """The server says that the request is too long; `overflow` holds the numbers it gave."""

    def __init__(
        self,
        message: str,
        overflow: Overflow,
        *,
        status: int | None = None,
        body: object = None,
    ) -> None:
        super().__init__(message, status=status, body=body)
        self.args = (message, overflow)
        self.overflow = overflow

    def __str__(self) -> str:
        return str(self.args[0])


class RateLimitError(ProviderError):
    """The server asks to wait before the next request."""


class AuthenticationError(ProviderError):
    """The server does not accept the key, or wants one."""


class ProviderTimeoutError(ProviderError, TimeoutError):
    """The server was silent for longer than the endpoint's time-out."""


class ConnectionFailedError(ProviderError, ConnectionError):
    """The server could not be reached, or the connection broke."""


class UnreachableError(ConnectionFailedError):
    """The server could not be reached at all: nothing was sent to it."""


class StoreError(BrimError):
    """What is kept between runs cannot be read or written; names the file, or what is missing."""


class AccountStoreError(StoreError):
    """The store of keys, caps and spending cannot be used, and waiting does not mend it."""


class AccountStoreUnavailableError(AccountStoreError):
    """The store of keys, caps and spending cannot be reached now; a later try may do better."""


class LocalModelError(BrimError):
    """The embedded model cannot be fetched or started; says what is missing."""


class InvalidResponseError(BrimError):
    """An answer that is none; `error` is what the provider put in its place, if it said so."""

    def __init__(self, reason: str, error: Mapping[str, object] | None = None) -> None:
        super().__init__(reason, error)
        self.reason = reason
        self.error = error

    def __str__(self) -> str:
        return self.reason


class SpendingCapError(BrimError):
    """A call was not sent, because it could cost more than the cap leaves."""

    def __init__(self, reason: str, cap: Decimal, spent: Decimal, estimate: Decimal | None) -> None:
        super().__init__(reason, cap, spent, estimate)
        self.reason = reason
        self.cap = cap
        self.spent = spent
        self.estimate = estimate
        """The most that the call could cost; None where that is not known."""

    def __str__(self) -> str:
        return self.reason


class ContextOverflowError(BrimError):
    """What must be sent is larger than the limit."""

    def __init__(self, plan: Plan, parts: Mapping[str, int], advice: str) -> None:
        self.plan = plan
        self.tokens = plan.size
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
