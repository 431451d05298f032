"""Token counting: a `Tokenizer` counts text, a `Counter` counts requests.

Most callers need `counter_for(model)`. Nothing is downloaded, and nothing is loaded before its
first use.
"""

from __future__ import annotations

from brim.tokens.protocols import Counter, Tokenizer
from brim.tokens.tokenizer_registry import (
    counter_for,
    register,
    tokenizer,
    tokenizer_for,
    vocabulary_of,
)

__all__ = [
    "Counter",
    "Tokenizer",
    "counter_for",
    "register",
    "tokenizer",
    "tokenizer_for",
    "vocabulary_of",
]
