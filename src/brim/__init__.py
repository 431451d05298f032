"""brim keeps an LLM conversation inside the model's context window and its owner's budget.

count    how many tokens a text, a conversation or a request body takes
fit      the same conversation, made to fit, and the plan that says what was left out and why
Session  a conversation that grows turn by turn, with its costs
Client   sends sessions to a model server; AsyncClient does so in an event loop
"""

import typing as _typing

from brim.api import Count, count, fit
from brim.budget import Budget
from brim.errors import (
    BrimError,
    BudgetError,
    ContextOverflowError,
    InputError,
    LocalModelError,
    MessageError,
    ProviderError,
    RefusedError,
    ReplyError,
    SpendingCapError,
    UnknownTokenizerError,
)
from brim.plan import Decision, Plan
from brim.request import Request
from brim.tokens import Counter, Tokenizer

if _typing.TYPE_CHECKING:
    from brim.providers.client import AsyncClient, Client
    from brim.reply import Reply
    from brim.session import Session
    from brim.short_view import ShortView
    from brim.usage import Price, Usage

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "BrimError",
    "Budget",
    "BudgetError",
    "Client",
    "ContextOverflowError",
    "Count",
    "Counter",
    "Decision",
    "InputError",
    "LocalModelError",
    "MessageError",
    "Plan",
    "Price",
    "ProviderError",
    "RefusedError",
    "Reply",
    "ReplyError",
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
    "Price": "brim.usage",
    "Reply": "brim.reply",
    "Session": "brim.session",
    "ShortView": "brim.short_view",
    "Usage": "brim.usage",
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
