"""All errors that brim raises.

BrimError
├── InputError                  the input cannot be read
│   ├── MessageError            one message is invalid (`.index`, `.reason`)
│   ├── BudgetError             window, reply or margin is invalid or missing
│   └── ConfigError             settings are invalid (`.problems`, each with file and line)
├── UnknownTokenizerError       no such tokenizer, or its package is not installed
├── StoreError                  stored data cannot be read or written
│   └── AccountStoreError       the account store cannot be used
│       └── AccountStoreUnavailableError   it cannot be reached now; retry later
├── LocalModelError             the embedded model cannot be downloaded or started
├── ProviderError               a model server failed (`.status`, `.body`, `.retry_after`)
│   ├── ContextLengthError      it rejected the request as too long (`.overflow`)
│   ├── RateLimitError          it asks to wait before the next request
│   ├── AuthenticationError     it rejected the key, or requires one
│   ├── ProviderTimeoutError    it did not respond in time
│   └── ConnectionFailedError   the connection failed
│       └── UnreachableError    no connection was made; nothing was sent
├── InvalidResponseError        a response cannot be read, or is an error (`.reason`, `.error`)
├── SpendingCapError            a call could exceed a cap (`.cap`, `.spent`, `.estimate`)
└── ContextOverflowError        a request cannot be made to fit
                                (`.tokens`, `.limit`, `.parts`, `.advice`, `.plan`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from decimal import Decimal


class BrimError(Exception):
    """Base class of all errors of brim. Errors are values: they compare, copy and pickle."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BrimError):
            return NotImplemented
        same = type(self) is type(other) and self.args == other.args
        return self is other or (same and self.__dict__ == other.__dict__)

    def __hash__(self) -> int:
        return hash((type(self), str(self)))


class InputError(BrimError, ValueError):
    """The input cannot be read."""


class MessageError(InputError):
    """A message is invalid; `index` is its position."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index = index
        self.reason = reason

    def __str__(self) -> str:
        return f"message {self.index}: {self.reason}"


class BudgetError(InputError):
    """A number of a budget is invalid or missing."""


class ConfigError(InputError):
    """Settings are invalid; `problems` lists all of them, each with its file and line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        return "\n  ".join([f"{len(self.problems)} settings are invalid:", *self.problems])


class UnknownTokenizerError(BrimError, LookupError):
    """No tokenizer has this name, or its package is not installed."""


class ProviderError(BrimError):
    """A model server failed; the message names its host, never the key."""

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
        """The HTTP status; None if there was no response."""
        self.body = body
        """The JSON of the response, or the beginning of its text."""
        self.retry_after = retry_after
        """Seconds to wait, as requested by the server."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """The numbers of a server's context-length error."""

    limit: int | None
    """The server's limit, if reported: context, maximum input, or tokens per minute."""
    sent: int | None
    """Tokens of the prompt, as counted by the server."""
    output: int | None = None
    """Requested output tokens, if they are part of the sum."""
    kind: Literal["window", "rate", "size"] = "window"
    """`rate`: larger than the limit per minute, so waiting does not help. `size`: too many bytes
    or characters; these are not tokens, so limit and sent are None."""
    at_least: bool = False
    """Whether `sent` is a lower bound because the server stopped counting."""
    text: str = ""
    """The server's message, shortened."""


class ContextLengthError(ProviderError):
    """The server rejected the request as too long; `overflow` holds the numbers it reported."""

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
    """The server rejected the key, or requires one."""


class ProviderTimeoutError(ProviderError, TimeoutError):
    """The server did not respond within the endpoint's timeout."""


class ConnectionFailedError(ProviderError, ConnectionError):
    """The connection could not be made, or was lost."""


class UnreachableError(ConnectionFailedError):
    """The server could not be reached: nothing was sent to it."""


class StoreError(BrimError):
    """Stored data cannot be read or written; the message names the file."""


class AccountStoreError(StoreError):
    """The account store cannot be used, and retrying does not help."""


class AccountStoreUnavailableError(AccountStoreError):
    """The account store cannot be reached now; a retry may succeed."""


class LocalModelError(BrimError):
    """The embedded model cannot be downloaded or started; the message says what is missing."""


class InvalidResponseError(BrimError):
    """A response cannot be read; `error` is the error object that it contains, if any."""

    def __init__(self, reason: str, error: Mapping[str, object] | None = None) -> None:
        super().__init__(reason, error)
        self.reason = reason
        self.error = error

    def __str__(self) -> str:
        return self.reason


class SpendingCapError(BrimError):
    """A call was not sent because it could exceed a cap."""

    def __init__(self, reason: str, cap: Decimal, spent: Decimal, estimate: Decimal | None) -> None:
        super().__init__(reason, cap, spent, estimate)
        self.reason = reason
        self.cap = cap
        self.spent = spent
        self.estimate = estimate
        """The maximum cost of the call in dollars; None if it is unknown."""

    def __str__(self) -> str:
        return self.reason


class OverflowingPlan(Protocol):
    """What `ContextOverflowError` needs of a `brim.Plan`."""

    @property
    def size(self) -> int: ...

    @property
    def limit(self) -> int: ...

    @property
    def size_before(self) -> int: ...

    @property
    def fits(self) -> bool: ...

    def to_dict(self) -> dict[str, object]: ...


class ContextOverflowError(BrimError):
    """A request cannot be made to fit: its required parts exceed the limit."""

    def __init__(self, plan: OverflowingPlan, parts: Mapping[str, int], advice: str) -> None:
        self.plan = plan
        """The `brim.Plan` of the smallest request."""
        self.tokens = plan.size
        """The smallest count that was reached."""
        self.limit = plan.limit
        self.parts = dict(parts)
        """Tokens of the required parts (system, tools, pins, last user turn, open step) and of
        everything else (`other`); they add up to `tokens`."""
        self.advice = advice
        super().__init__(plan, parts, advice)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size:,}" for name, size in self.parts.items() if size)
        before = self.plan.size_before
        of_all = f" (of {before:,})" if before > self.tokens else ""
        return (
            f"{self.tokens:,} tokens is the least that can be sent{of_all}, and the limit is "
            f"{self.limit:,}: {parts}. {self.advice}"
        )
