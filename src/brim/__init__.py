"""brim keeps an LLM conversation inside the model's context window and its owner's budget.

count    how many tokens a text, a conversation or a request body takes
fit      the same conversation, made to fit, and the plan that says what was left out and why
Session  a conversation that grows turn by turn, with its costs
Client   sends sessions to a model server; AsyncClient does so in an event loop
"""

import typing as _typing

from brim.errors import (
    BrimError,
    BudgetError,
    ContextLengthError,
    ContextOverflowError,
    InputError,
    InvalidResponseError,
    LocalModelError,
    MessageError,
    ProviderError,
    SpendingCapError,
    UnknownTokenizerError,
)
from brim.fitting.api import Count, count, fit
from brim.fitting.budget import Budget
from brim.fitting.plan import Decision, Plan, Request
from brim.tokens import Counter, Tokenizer

if _typing.TYPE_CHECKING:
    from brim.models.pricing import Price, Usage
    from brim.providers.client import AsyncClient, Client
    from brim.session.session import Session
    from brim.session.short_view import ShortView
    from brim.wire.reply import Reply

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "BrimError",
    "Budget",
    "BudgetError",
    "Client",
    "ContextLengthError",
    "ContextOverflowError",
    "Count",
    "Counter",
    "Decision",
    "InputError",
    "InvalidResponseError",
    "LocalModelError",
    "MessageError",
    "Plan",
    "Price",
    "ProviderError",
    "Reply",
    "Request",
    "Session",
    "ShortView",
    "SpendingCapError",
    "Tokenizer",
    "UnknownTokenizerError",
    "Usage",
    "count",
    "fit",
]


_LATER = {
    "AsyncClient": "brim.providers.client",
    "Client": "brim.providers.client",
    "Price": "brim.models.pricing",
    "Reply": "brim.wire.reply",
    "Session": "brim.session.session",
    "ShortView": "brim.session.short_view",
    "Usage": "brim.models.pricing",
}
"""What not everybody needs is loaded when it is asked for."""


def __getattr__(name: str) -> _typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module 'brim' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
