"""brim keeps an LLM conversation inside the model's context window.

count   how many tokens a text, a conversation or a request body takes
fit     the same conversation, made to fit, and the plan that says what was left out and why
Session a conversation that grows turn by turn
"""

from brim.api import Count, count, fit
from brim.budget import Budget
from brim.errors import (
    BrimError,
    BudgetError,
    ContextOverflowError,
    InputError,
    MessageError,
    UnknownTokenizerError,
)
from brim.plan import Decision, Plan
from brim.request import Request
from brim.session import Session
from brim.tokens import Counter, Tokenizer

__version__ = "0.1.0"

__all__ = [
    "BrimError",
    "Budget",
    "BudgetError",
    "ContextOverflowError",
    "Count",
    "Counter",
    "Decision",
    "InputError",
    "MessageError",
    "Plan",
    "Request",
    "Session",
    "Tokenizer",
    "UnknownTokenizerError",
    "count",
    "fit",
]
