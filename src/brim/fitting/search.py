"""Search: the passages of texts that match a query best, by BM25.

Texts are split into passages and words once; a query is one scan over them. A word counts the more,
the fewer passages contain it; one that is in more than a quarter of them is ignored. Identifiers
and paths are terms, and so are their parts. English endings are ignored. In scripts that do not
separate words, the terms are sequences of two or three characters.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import log
from sys import intern
from typing import Final, NamedTuple
from unicodedata import category, normalize

from brim.messages import Message, Role

_PASSAGE, _SMALL_PASSAGE = 500, 200
"""Characters."""
_SMALL_WINDOW: Final = 8_192
"""Up to this window, passages are small."""

_MAX_TERMS: Final = 64
"""Of a long query only the longest terms count."""
_MAX_PARTS: Final = 32
"""A longer sequence of parts is not an identifier or a path."""
_MAX_MISSES: Final = 8
"""The search ends after this number of passages that are larger than the room left."""
_FREQUENT: Final = 4
"""A term found in more than one of this number of passages is ignored."""
_FEW: Final = 2
"""A term found in at most this number of passages is never ignored."""
_SATURATION, _LENGTH_WEIGHT = 1.2, 0.75
"""The parameters k1 and b of BM25."""

_TOLERANCE: Final = 1.25
"""A passage may be longer by this factor if it ends with its line then."""
_BORDERS: Final = (". ", "。", " ")
"""Where a longer line is split, if possible: after a sentence, else a word."""

_SYLLABLES: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Thai, Lao, Burmese, Khmer."""
_IDEOGRAPHS: Final = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
"""Chinese, Japanese, Korean."""
_UNSEPARATED: Final = re.compile(f"[{_SYLLABLES}]+|[{_IDEOGRAPHS}]+")
_SYLLABLE: Final = re.compile(f"[{_SYLLABLES}]")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ENDINGS: Final = ("ies", "ied", "ing", "ed", "es", "s", "e", "y")
_SHORTEST_STEM: Final = 3


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a message that was found: whole lines, if they are not very long."""

    index: int
    """The position of the message in the history."""
    role: Role
    text: str
    tokens: int


class Source(NamedTuple):
    """A text to search, and what the model still sees of it."""

    message: int
    """Its position in the history."""
    role: Role
    text: str
    visible: str = ""


class _Piece(NamedTuple):
    """A part of a text."""

    text: str
    words: tuple[str, ...]
    """The words of the text, as they are compared."""


class _SplitCache:
    """The parts of the texts that were searched before: a session searches its history again."""

    _CAPACITY: Final = 8_000_000
    """Characters of all texts."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, int], tuple[_Piece, ...]] = {}
        self._chars = 0

    def split(self, text: str, chars: int) -> tuple[_Piece, ...]:
        pieces = self._pieces.get((text, chars))
        if pieces is None:
            if self._chars > self._CAPACITY:
                self._pieces, self._chars = {}, 0
            parts = split_text(text, chars)
            pieces = tuple(_Piece(part, tuple(map(intern, fold(part).split()))) for part in parts)
            self._pieces[text, chars] = pieces
            self._chars += len(text)
        return pieces


_cache: Final = _SplitCache()


class _WordChars(dict[int, str]):
    """Maps a character that is not part of a word to a space.

    A character of a script without separate words becomes a word.
    """

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if _UNSEPARATED.match(char):
            char = f" {char} "
        elif category(char)[0] not in "LMN":
            char = " "
        self[code] = char
        return char


_word_chars: Final = _WordChars()


def fold(text: str) -> str:
    """Return a text in lower case, with spaces in place of everything between words."""
    return normalize("NFKC", text).casefold().translate(_word_chars)


def read_texts(message: Message) -> Iterator[str]:
    """Yield the texts of a message that can be found: words, outputs and calls."""
    yield from message.words
    yield from message.outputs
    for call in message.calls:
        yield f"{call.name}\n{_read_arguments(call.arguments)}"


@lru_cache(maxsize=4_096)
def _read_arguments(arguments: str) -> str:
    """Return the values of JSON arguments one per line, their strings without escapes."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(values, Mapping):
        return arguments
    return "\n".join(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for value in values.values()
    )


def choose_length(window: int | None) -> int:
    """Return the characters of a passage for a window."""
    return _PASSAGE if window is None or window > _SMALL_WINDOW else _SMALL_PASSAGE


def search_texts(
    sources: Iterable[Source], query: str, tokens: int, count: Callable[[str], int], chars: int
) -> list[Passage]:
    """Return the best passages of about `chars` characters, of at most `tokens` together.

    They are in the order of the sources. Of equal passages, the last is returned.
    """
    found = [
        (source, piece)
        for source in sources
        for piece in _cache.split(source.text, chars)
        if not (source.visible and piece.text in source.visible)
    ]
    scores = _score([piece for _, piece in found], find_terms(query))
    best = sorted(scores, key=lambda place: (scores[place], place), reverse=True)
    chosen: dict[int, Passage] = {}
    seen: set[str] = set()
    misses = 0
    for place in best:
        source, piece = found[place]
        if piece.text in seen:
            continue
        seen.add(piece.text)
        if (size := count(piece.text)) > tokens:
            if (misses := misses + 1) == _MAX_MISSES:
                break
            continue
        chosen[place] = Passage(source.message, source.role, piece.text, size)
        tokens -= size
    return [chosen[place] for place in sorted(chosen)]


def split_text(text: str, chars: int) -> Iterator[str]:
    """Yield a text in passages of about this number of characters, without empty ones."""
    start, length = 0, len(text)
    while start < length:
        end = length if length - start <= _TOLERANCE * chars else _find_end(text, start, chars)
        piece = text[start:end].strip("\n")
        if piece and not piece.isspace():
            yield piece
        start = end


def _find_end(text: str, start: int, chars: int) -> int:
    """Return where to end a passage: after whole lines if they are not too long."""
    end = start + chars
    found = text.rfind("\n", start, end)
    if found < 0:
        found = text.find("\n", end, int(start + _TOLERANCE * chars))
    if found >= 0:
        return found + 1
    for border in _BORDERS:
        found = text.rfind(border, start + chars // 4, end)
        if found >= 0:
            return found + len(border)
    return end


# Ranking


class Term(NamedTuple):
    """A word in several forms, or a sequence of words."""

    words: tuple[str, ...]
    is_phrase: bool = False

    @property
    def length(self) -> int:
        return len(" ".join(self.words)) if self.is_phrase else len(self.words[0])

    def find(self, pieces: Sequence[_Piece], places: Mapping[str, Sequence[int]]) -> dict[int, int]:
        """Return how often the term is in each piece with it; `places` are those of its words."""
        found = [places.get(word, ()) for word in dict.fromkeys(self.words)]
        if not self.is_phrase:
            return Counter(chain.from_iterable(found))
        phrase, counts = f" {' '.join(self.words)} ", {}
        for place in set(found[0]).intersection(*found[1:]):
            if count := f" {' '.join(pieces[place].words)} ".count(phrase):
                counts[place] = count
        return counts


def find_terms(query: str) -> list[Term]:
    """Return the terms of a query: its words, identifiers and paths, and their parts."""
    text = normalize("NFKC", query)
    terms = dict.fromkeys(term for run in _UNSEPARATED.findall(text) for term in _find_grams(run))
    for name in _UNSEPARATED.sub(" ", text).split():
        terms |= dict.fromkeys(_find_name_terms(name))
    return sorted(terms, key=lambda term: -term.length)[:_MAX_TERMS]


def _find_grams(run: str) -> Iterator[Term]:
    size = 3 if _SYLLABLE.match(run) else 2
    for start in range(max(1, len(run) - size + 1)):
        yield Term(tuple(run[start : start + size]), is_phrase=True)


def _find_name_terms(name: str) -> Iterator[Term]:
    words = fold(name).split()
    parts = fold(_CAMEL.sub(" ", name)).split()
    if 1 < len(words) <= _MAX_PARTS:
        yield Term(tuple(words), is_phrase=True)
    elif len(words) == 1 < len(parts):
        yield Term(tuple(words))
    for part in parts:
        if len(part) > 1 or len(parts) == 1:  # a letter is not worth finding as a part
            yield Term(_find_forms(part))


def _find_forms(word: str) -> tuple[str, ...]:
    """Return the forms that an English word may have, itself included."""
    if not (word.isascii() and word.isalpha() and len(word) >= _SHORTEST_STEM):
        return (word,)
    stem = next((word.removesuffix(ending) for ending in _ENDINGS if word.endswith(ending)), word)
    if len(stem) < _SHORTEST_STEM:
        stem = word
    return (stem, *(stem + ending for ending in _ENDINGS))


def _score(pieces: Sequence[_Piece], terms: Sequence[Term]) -> dict[int, float]:
    """Return the BM25 score of each piece that contains a term, by its position."""
    places = _find_places(pieces, {word for term in terms for word in term.words})
    average = sum(len(piece.words) for piece in pieces) / max(1, len(pieces))
    most = max(_FEW, len(pieces) // _FREQUENT)
    scores: dict[int, float] = defaultdict(float)
    for term in terms:
        counts = term.find(pieces, places)
        if len(counts) > most:
            continue
        weight = log(1 + (len(pieces) - len(counts) + 0.5) / (len(counts) + 0.5))
        for place, count in counts.items():
            length = 1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * len(pieces[place].words) / average
            scores[place] += weight * count * (_SATURATION + 1) / (count + _SATURATION * length)
    return scores


def _find_places(pieces: Sequence[_Piece], words: set[str]) -> dict[str, list[int]]:
    """Return for each word the positions of the pieces with it, once for each time it occurs."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, piece in enumerate(pieces):
        for word in filter(words.__contains__, piece.words):
            places[word].append(place)
    return places
