"""Text and facts of models, for callers who only need these."""

from __future__ import annotations

from operator import index
from typing import Literal

from brim.errors import InputError, UnknownTokenizerError
from brim.models import catalog, pricing
from brim.models.pricing import Price
from brim.tokens import Tokenizer, counter_for, tokenizer_for
from brim.tokens import tokenizer as find_tokenizer

Keep = Literal["head", "tail", "middle"]


def encode(
    text: str, *, model: str | None = None, tokenizer: Tokenizer | str | None = None
) -> list[int]:
    """Return the tokens of a text; without a model, those of o200k.

    Raise `UnknownTokenizerError` if the tokenizer can only count.
    """
    chosen = _find(model, tokenizer)
    if not hasattr(chosen, "encode"):
        raise UnknownTokenizerError(
            f"{chosen.name} counts text, but cannot encode it. Use another model or tokenizer."
        )
    tokens: list[int] = chosen.encode(_check_text(text))
    return tokens


def decode(
    tokens: list[int], *, model: str | None = None, tokenizer: Tokenizer | str | None = None
) -> str:
    """Return the text of tokens.

    Raise `UnknownTokenizerError` if the tokenizer cannot decode, `InputError` for unknown tokens.
    """
    chosen = _find(model, tokenizer)
    if not hasattr(chosen, "decode"):
        raise UnknownTokenizerError(f"{chosen.name} cannot decode tokens.")
    try:
        text: str = chosen.decode(list(map(index, tokens)))
    except (TypeError, KeyError, OverflowError, ValueError):
        raise InputError(f"These are not tokens of {chosen.name}: {tokens!r:.100}.") from None
    return text


def truncate(
    text: str,
    tokens: int,
    *,
    model: str | None = None,
    keep: Keep = "head",
    tokenizer: Tokenizer | str | None = None,
) -> str:
    """Return the longest part of a text that counts at most `tokens`.

    `keep` says which part: its head, its tail, or its middle.
    """
    if keep not in ("head", "tail", "middle") or not isinstance(tokens, int) or tokens < 0:
        raise InputError(
            f"Cannot keep {tokens!r} tokens of the {keep!r}. "
            "Use a number from 0 on and one of head, tail, middle."
        )
    count = counter_for(model, tokenizer=tokenizer).text
    if count(_check_text(text)) <= tokens:
        return text
    fits, least, most = "", 0, len(text)
    while least < most:
        length = (least + most + 1) // 2
        part = _cut(text, length, keep)
        if count(part) <= tokens:
            fits, least = part, length
        else:
            most = length - 1
    return fits


def _cut(text: str, length: int, keep: Keep) -> str:
    start = {"head": 0, "tail": len(text) - length, "middle": (len(text) - length) // 2}[keep]
    return text[start : start + length]


def window(model: str) -> int | None:
    """Return the context window of a model in tokens; None if it is unknown."""
    known = catalog.model(_check_text(model, "model name"))
    return None if known is None else known.context


def price(model: str, *, tokens: int = 0) -> Price | None:
    """Return the price of a model for a prompt of that many tokens; None if it is unknown."""
    return pricing.price(_check_text(model, "model name"), tokens=tokens)


def _check_text(text: str, name: str = "text") -> str:
    if not isinstance(text, str):
        raise InputError(f"The {name} is not a string: {type(text).__name__}.")
    return text


def _find(model: str | None, tokenizer: Tokenizer | str | None) -> Tokenizer:
    if isinstance(tokenizer, str):
        return find_tokenizer(tokenizer)
    return tokenizer_for(model)[0] if tokenizer is None else tokenizer
