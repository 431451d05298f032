"""brim keeps LLM conversations inside the context window and the spending limit.

count    count the tokens of a text, a conversation or a request body
fit      make a conversation fit, with a plan that explains what was trimmed
search   find passages of what was trimmed
Session  a conversation that grows turn by turn, with its cost
wrap     makes an OpenAI or Anthropic client fit every request
Client   sends sessions to a model server; AsyncClient does so in an event loop
"""

import typing as _typing

from brim.errors import (
    AccountStoreError,
    AccountStoreUnavailableError,
    AuthenticationError,
    BrimError,
    BudgetError,
    ConfigError,
    ConnectionFailedError,
    ContextLengthError,
    ContextOverflowError,
    InputError,
    InvalidResponseError,
    LocalModelError,
    MessageError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    SpendingCapError,
    StoreError,
    UnknownTokenizerError,
    UnreachableError,
)

if _typing.TYPE_CHECKING:
    from brim.fitting.api import Count, count, fit, search
    from brim.fitting.budget import Budget
    from brim.fitting.passes import Pass
    from brim.fitting.plan import Decision, Plan, Request
    from brim.fitting.policies import Policy, PolicyName, RollingSettings
    from brim.fitting.search import Passage
    from brim.fitting.summarizer import Summarizer
    from brim.fitting.text import decode, encode, price, truncate, window
    from brim.integrations.client import wrap
    from brim.models.pricing import Price, Usage
    from brim.providers.client import AsyncClient, Client, Stream
    from brim.providers.local import LocalServer
    from brim.session.ledger import Ledger, SpendingLimits
    from brim.session.reply_stream import AsyncReplyStream, ReplyStream
    from brim.session.session import Session
    from brim.session.short_view import ShortView
    from brim.session.system_prompt import Fact
    from brim.tokens import Counter, Tokenizer
    from brim.wire.reply import Reply

__version__ = "0.1.0"

__all__ = [
    "AccountStoreError",
    "AccountStoreUnavailableError",
    "AsyncClient",
    "AsyncReplyStream",
    "AuthenticationError",
    "BrimError",
    "Budget",
    "BudgetError",
    "Client",
    "ConfigError",
    "ConnectionFailedError",
    "ContextLengthError",
    "ContextOverflowError",
    "Count",
    "Counter",
    "Decision",
    "Fact",
    "InputError",
    "InvalidResponseError",
    "Ledger",
    "LocalModelError",
    "LocalServer",
    "MessageError",
    "Pass",
    "Passage",
    "Plan",
    "Policy",
    "PolicyName",
    "Price",
    "ProviderError",
    "ProviderTimeoutError",
    "RateLimitError",
    "Reply",
    "ReplyStream",
    "Request",
    "RollingSettings",
    "Session",
    "ShortView",
    "SpendingCapError",
    "SpendingLimits",
    "StoreError",
    "Stream",
    "Summarizer",
    "Tokenizer",
    "UnknownTokenizerError",
    "UnreachableError",
    "Usage",
    "count",
    "decode",
    "encode",
    "fit",
    "price",
    "search",
    "truncate",
    "window",
    "wrap",
]

# Imported on first use, because `import brim` must stay light.
_LAZY = {
    "AsyncClient": "brim.providers.client",
    "AsyncReplyStream": "brim.session.reply_stream",
    "Budget": "brim.fitting.budget",
    "Client": "brim.providers.client",
    "Count": "brim.fitting.api",
    "Counter": "brim.tokens",
    "Decision": "brim.fitting.plan",
    "Fact": "brim.session.system_prompt",
    "Ledger": "brim.session.ledger",
    "LocalServer": "brim.providers.local",
    "Pass": "brim.fitting.passes",
    "Passage": "brim.fitting.search",
    "Plan": "brim.fitting.plan",
    "Policy": "brim.fitting.policies",
    "PolicyName": "brim.fitting.policies",
    "Price": "brim.models.pricing",
    "Reply": "brim.wire.reply",
    "ReplyStream": "brim.session.reply_stream",
    "Request": "brim.fitting.plan",
    "RollingSettings": "brim.fitting.policies",
    "Session": "brim.session.session",
    "ShortView": "brim.session.short_view",
    "SpendingLimits": "brim.session.ledger",
    "Stream": "brim.providers.client",
    "Summarizer": "brim.fitting.summarizer",
    "Tokenizer": "brim.tokens",
    "Usage": "brim.models.pricing",
    "count": "brim.fitting.api",
    "decode": "brim.fitting.text",
    "encode": "brim.fitting.text",
    "fit": "brim.fitting.api",
    "price": "brim.fitting.text",
    "search": "brim.fitting.api",
    "truncate": "brim.fitting.text",
    "window": "brim.fitting.text",
    "wrap": "brim.integrations.client",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'brim' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
