"""Find the tokenizer and the counter of a model.

A model belongs to a family (`families.py`), and a family has a vocabulary: one that is bundled with
brim, one of an installed package, or one that is not public. If the vocabulary is not available,
o200k is the fallback tokenizer, and the counter reports its uncertainty.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count as numbers
from threading import RLock
from typing import NamedTuple

from brim.errors import InputError, UnknownTokenizerError
from brim.tokens import vocabularies
from brim.tokens.cache import CountCache, make_safe_count
from brim.tokens.counter import RequestCounter
from brim.tokens.families import FALLBACK_TOKENIZER, UNKNOWN_FAMILY, Family, families
from brim.tokens.protocols import Counter, Tokenizer

MAX_COUNTERS = 1_000
"""Counters to keep; more mean that a caller invents names."""

BUILT_IN = (
    vocabularies.VocabularyTokenizer,
    vocabularies.MarkSplitTokenizer,
    vocabularies.ScaledTokenizer,
    vocabularies.HeuristicTokenizer,
)

_lock = RLock()
_named: dict[str, Tokenizer] = {}
_registered: set[str] = set()
_caches: dict[int, tuple[Tokenizer, str, CountCache]] = {}
_counters: dict[tuple[str | None, str | int | None], Counter] = {}
_serial = numbers(2)
_taken: set[str] = set()


def tokenizer(name: str) -> Tokenizer:
    """Return a tokenizer by its name, or by the path of a `tokenizer.json`.

    Names: `o200k_base`, `cl100k_base`, the heuristics `chars/3.5` and `chars/4`, the vocabularies
    of an installed splintr (`llama3`, `qwen3`, `mistral_v3`, …), and registered names.
    """
    with _lock:
        found = _named.get(name)
        if found is None:
            found = _named[name] = _make_tokenizer(name)
        return found


def _make_tokenizer(name: str) -> Tokenizer:
    if name in vocabularies.BUNDLED_NAMES:
        return vocabularies.VocabularyTokenizer(name)
    if name in vocabularies.HEURISTIC_NAMES:
        return vocabularies.HeuristicTokenizer(name)
    if name.endswith(".json"):
        return vocabularies.load_tokenizer_file(name)
    if name in vocabularies.PACKAGED:
        return vocabularies.load_packaged(name)
    return vocabularies.load_splintr(name)


def tokenizer_for(model: str | None) -> tuple[Tokenizer, bool]:
    """Return the tokenizer of a model, and whether it is the model's own."""
    with _lock:
        return _tokenizer_of(_find_family(model))


def vocabulary_of(model: str | None) -> tuple[str, bool]:
    """Return the name of a model's tokenizer, and whether it is its own; load nothing."""
    family = _find_family(model)
    if family.tokenizer is not None:
        return family.tokenizer.name, True
    if family.vocabulary is not None and vocabularies.is_available(family.vocabulary):
        return family.vocabulary, True
    return FALLBACK_TOKENIZER, False


def counter_for(model: str | None, *, tokenizer: Tokenizer | str | None = None) -> Counter:
    """Return the counter of a model; `tokenizer` replaces the family's.

    A tokenizer given as an object or a file is assumed to be the model's own.
    """
    if model is not None and not isinstance(model, str):
        raise InputError(f"The model name must be text, not {type(model).__name__}.")
    key = (model, tokenizer if tokenizer is None or isinstance(tokenizer, str) else id(tokenizer))
    found = _counters.get(key)
    if found is None:
        with _lock:
            if len(_counters) >= MAX_COUNTERS:
                _clear_counters()
            found = _counters[key] = _make_counter(_find_family(model), model, tokenizer)
    return found


class PromptVocabulary(NamedTuple):
    """A model's own vocabulary, for rendered prompts."""

    tokenizer: vocabularies.VocabularyTokenizer
    specials: tuple[str, ...]
    """Special tokens that the tokenizer does not know."""
    bos: bool
    """Whether servers add a first token to the prompt."""


def find_prompt_vocabulary(
    model: str | None, given: Tokenizer | str | None = None
) -> PromptVocabulary | None:
    """Return a model's own vocabulary; None if there is none that knows special tokens."""
    if given is None and model is None:
        return None
    counter = counter_for(model, tokenizer=given)
    if counter.uncertainty:
        return None
    family = _find_family(model)
    chosen = given or _tokenizer_of(family)[0]
    found = tokenizer(chosen) if isinstance(chosen, str) else chosen
    if not isinstance(found, vocabularies.VocabularyTokenizer):
        return None
    return PromptVocabulary(found, family.specials, family.bos)


def register(name: str, tokenizer: Tokenizer) -> None:
    """Register a tokenizer for a model, or for all models whose names start with `name`.

    It is assumed to be the model's own, and is available by this name. The longest matching name
    decides; registering a name again replaces the earlier tokenizer.
    """
    _check_tokenizer(tokenizer)
    with _lock:
        families().add(name, replace(_find_family(name), tokenizer=tokenizer))
        _named[name] = tokenizer
        _registered.add(name)
        _clear_counters()


def _check_tokenizer(tokenizer: Tokenizer) -> None:
    named = isinstance(getattr(tokenizer, "name", None), str)
    if not named or not callable(getattr(tokenizer, "count", None)):
        raise InputError(
            f"Invalid tokenizer: {type(tokenizer).__name__}. It needs a name and count(text)."
        )


def _find_family(model: str | None) -> Family:
    return (families().find(model) if model else None) or UNKNOWN_FAMILY


def _tokenizer_of(family: Family) -> tuple[Tokenizer, bool]:
    if family.tokenizer is not None:
        return family.tokenizer, True
    if family.vocabulary is not None:
        try:
            return tokenizer(family.vocabulary), True
        except UnknownTokenizerError:
            pass  # its package is not installed
    return _find_fallback(family.ratio), False


def _find_fallback(ratio: float) -> Tokenizer:
    fallback = tokenizer(FALLBACK_TOKENIZER)
    if ratio == 1 or not isinstance(fallback, vocabularies.VocabularyTokenizer):
        return fallback
    scaled = vocabularies.ScaledTokenizer(fallback, ratio)
    return _named.setdefault(scaled.name, scaled)


def _make_counter(family: Family, model: str | None, given: Tokenizer | str | None) -> Counter:
    if given is None:
        chosen, own = _tokenizer_of(family)
    elif isinstance(given, str):
        chosen = tokenizer(given)
        own = _is_own(given, family, model)
    else:
        _check_tokenizer(given)
        chosen, own = given, True
    if own and family.splits_marks and isinstance(chosen, vocabularies.VocabularyTokenizer):
        split = vocabularies.MarkSplitTokenizer(chosen)
        chosen = _named.setdefault(split.name, split)
    name, table = _find_cache(chosen)
    uncertainty = 0.0 if own else family.uncertainty
    if isinstance(chosen, vocabularies.HeuristicTokenizer):
        uncertainty = max(family.uncertainty, vocabularies.HEURISTIC_UNCERTAINTY)
    if uncertainty and given is not None:  # the given tokenizer does not apply the ratio
        uncertainty = round(family.ratio * (1 + uncertainty) - 1, 2)
    return RequestCounter(f"{name}/{family.name}", table, family, uncertainty)


def _is_own(name: str, family: Family, model: str | None) -> bool:
    """Whether a tokenizer given by name is known to be the model's own."""
    return (
        model is None or name == family.vocabulary or name.endswith(".json") or name in _registered
    )


def _find_cache(chosen: Tokenizer) -> tuple[str, CountCache]:
    """Return the cache of a tokenizer, and a name that no other tokenizer has."""
    known = _caches.get(id(chosen))
    if known is None:
        name = chosen.name if chosen.name not in _taken else f"{chosen.name}#{next(_serial)}"
        _taken.add(chosen.name)
        count = chosen.count if isinstance(chosen, BUILT_IN) else make_safe_count(chosen.count)
        known = _caches[id(chosen)] = (chosen, name, CountCache(count))
    return known[1], known[2]


def _clear_counters() -> None:
    """Drop the counters and the caches of tokenizers that have no name."""
    _counters.clear()
    named = {id(tokenizer) for tokenizer in _named.values()}
    for key in [key for key in _caches if key not in named]:
        del _caches[key]
