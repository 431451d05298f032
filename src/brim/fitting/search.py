"""Search: the passages of texts that match a query best, by BM25.

A query is a search for each of its terms in all texts together. Only texts that contain a term are
split into passages. A term counts the more, the fewer passages contain it; one that is in more than
a quarter of them is ignored.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate, chain, repeat
from math import log
from typing import Final, NamedTuple

from brim.fitting.terms import find_places, find_terms, fold_all, fold_ascii
from brim.messages import Message, Role

_PASSAGE, _SMALL_PASSAGE = 500, 200
"""Characters."""
_SMALL_WINDOW: Final = 8_192
"""Up to this window, passages are small."""

_MAX_MISSES: Final = 8
"""The search ends after this number of passages that are larger than the room left."""
_FREQUENT: Final = 0.25
"""A term found in more than this share of the passages is ignored."""
FEW: Final = 2
"""A term found in at most this number of passages is never ignored."""
_FEW_PLACES: Final = 100
"""A term is ignored too if it is found this often and twice in each of so many passages."""
SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""The parameters k1 and b of BM25."""

_TOLERANCE: Final = 1.25
"""A passage may be longer by this factor if it ends with its line then."""


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


def read_texts(message: Message) -> Sequence[str]:
    """Return the texts of a message that can be found: words, outputs and calls."""
    calls = [f"{call.name}\n{_read_arguments(call.arguments)}" for call in message.calls]
    return (*message.words, *message.outputs, *calls)


@lru_cache(maxsize=4_096)
def _read_arguments(arguments: str) -> str:
    """Return the values of JSON arguments one per line, their strings without escapes."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(values, dict):
        return arguments
    return "\n".join(
        [
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for value in values.values()
        ]
    )


def choose_length(window: int | None) -> int:
    """Return the characters of a passage for a window."""
    return _PASSAGE if window is None or window > _SMALL_WINDOW else _SMALL_PASSAGE


@dataclass(slots=True)
class _SearchText:
    """A text to search. It is split into passages when a term is found in it."""

    text: str
    folded: str
    passages: Sequence[str] = ()
    starts: Sequence[int] = ()
    """Where the passages begin in the folded text, after its first space."""

    def split(self, chars: int) -> None:
        if not self.passages:
            self.passages = _split(self.text, chars)
            self.starts = [*accumulate(map(len, self.passages[:-1]), initial=1)]


def _split_and_fold(text: str, chars: int) -> _SearchText:
    """Return a text that is folded passage by passage: most of them are in ASCII."""
    passages = _split(text, chars)
    folded = fold_all(passages)
    starts = [*accumulate(map(len, folded[:-1]), initial=1)]
    return _SearchText(text, "".join(folded), passages, starts)


@dataclass(slots=True)
class PassageCache:
    """Texts that are searched again: each is folded and split once."""

    _known: dict[int, dict[str, _SearchText]] = field(default_factory=dict)

    def read(self, texts: Sequence[str], chars: int) -> list[_SearchText]:
        """Return texts to search in passages of about this number of characters."""
        known = self._known.setdefault(chars, {})
        new = [text for text in texts if text not in known]
        plain = [text for text in new if text.isascii()]
        known.update(zip(plain, map(_SearchText, plain, fold_ascii(plain)), strict=True))
        for text in new:
            if not text.isascii():
                known[text] = _split_and_fold(text, chars)
        return [known[text] for text in texts]


def search_texts(
    sources: Iterable[Source],
    query: str,
    tokens: int,
    count: Callable[[str], int],
    chars: int,
    cache: PassageCache,
) -> list[Passage]:
    """Return the best passages of about `chars` characters, of at most `tokens` together.

    They are in the order of the sources. Of equal passages, the last is returned.
    """
    sources = [*sources]
    ranking = _Ranking(sources, cache.read([source.text for source in sources], chars), chars)
    chosen: dict[int, Passage] = {}
    seen: set[str] = set()
    misses = 0
    for place in ranking.rank(query):
        source, text = ranking.read(place)
        if text in seen or text in source.visible:
            continue
        seen.add(text)
        if (size := count(text)) > tokens:
            if (misses := misses + 1) == _MAX_MISSES:
                break
            continue
        chosen[place] = Passage(source.message, source.role, text, size)
        tokens -= size
    return [chosen[place] for place in sorted(chosen)]


def _split(text: str, chars: int) -> list[str]:
    """Return a text in passages of about this number of characters."""
    return [text] if len(text) <= chars else _find_pieces(chars)(text)


@cache
def _find_pieces(chars: int) -> Callable[[str], list[str]]:
    """Return a function that splits a text: one regular expression is faster than a loop.

    A piece ends after whole lines if they are not too long, else after a sentence or a word.
    """
    most, least = int(_TOLERANCE * chars), chars // 4
    return re.compile(
        rf"(?!.{{{most + 1}}}).+"
        rf"|.{{0,{chars - 1}}}\n"
        rf"|[^\n]{{{chars},{most - 1}}}\n"
        rf"|.{{{least},{chars - 2}}}\. "
        rf"|.{{{least},{chars - 1}}}。"
        rf"|.{{{least},{chars - 1}}} "
        rf"|.{{{chars}}}",
        re.DOTALL,
    ).findall


_NAME: Final = re.compile(
    r"(?<![.!?]\s)(?<!^)\b[A-Z][a-z]+[a-z]\b|\b\w+[/_.]\w[\w/_.-]*\w|\b(?=\w*\d)[\w-]{4,30}\b",
    re.MULTILINE,
)
"""A capitalized word inside a sentence, a path or identifier, a number."""
_NAMES, _LONGEST_NAME, _NAMED_CHARS = 4, 40, 100


def find_names(texts: Iterable[str]) -> list[str]:
    """Return the names that occur most often, at most four; of equal ones the first.

    Only the beginning of each text is read: a note must not cost more than the trim.
    """
    read = (text[:_NAMED_CHARS] for text in texts)
    counts = Counter(chain.from_iterable(map(_read_names, read)))
    return [name for name, _ in counts.most_common(_NAMES) if len(name) <= _LONGEST_NAME]


@lru_cache(maxsize=4_096)
def _read_names(text: str) -> Sequence[str]:
    return _NAME.findall(text)


class _Ranking:
    """The passages of texts in the order of BM25. Only texts that contain a term are split.

    A place is where a passage begins in all folded texts together.
    """

    def __init__(self, sources: Sequence[Source], texts: Sequence[_SearchText], chars: int) -> None:
        self._sources = sources
        self._texts = texts
        self._chars = chars
        self._folded = "\n".join([text.folded for text in texts])
        self._begins = [0, *accumulate(len(text.folded) + 1 for text in texts)]
        """Where the texts begin."""
        self._passages = 1 + len(self._folded) // chars + len(texts)
        """About how many there are."""

    def read(self, place: int) -> tuple[Source, str]:
        """Return the source and the text of a passage."""
        number = bisect_right(self._begins, place) - 1
        text = self._texts[number]
        passage = bisect_right(text.starts, place - self._begins[number]) - 1
        return self._sources[number], text.passages[passage].strip("\n")

    def rank(self, query: str) -> Sequence[int]:
        """Return the places of the passages that contain a term, best first.

        Of equal ones, the last comes first.
        """
        most = max(FEW, int(self._passages * _FREQUENT))
        most_hits = 2 * most + _FEW_PLACES
        found = [find_places(term, self._folded, most_hits) for term in find_terms(query)]
        places = self._split(chain.from_iterable(found))
        slope = SATURATION * LENGTH_WEIGHT * self._passages / max(1, len(self._folded))
        scores: dict[int, float] = defaultdict(float)
        for hits in found:
            counts = Counter(map(bisect_right, repeat(places), hits))
            if not 0 < len(counts) <= most:
                continue
            weight = log(1 + (self._passages - len(counts) + 0.5) / (len(counts) + 0.5))
            for following, count in counts.items():
                size = places[following] - places[following - 1]
                length = SATURATION * (1 - LENGTH_WEIGHT) + slope * size
                scores[following] += weight * (SATURATION + 1) * count / (count + length)
        best = sorted(zip(scores.values(), scores, strict=True), reverse=True)
        return [places[following - 1] for _, following in best]

    def _split(self, hits: Iterable[int]) -> list[int]:
        """Return the places of the passages of all texts with hits, and of the ends of these."""
        places = list[int]()
        for following in sorted({*map(bisect_right, repeat(self._begins), hits)}):
            text, begin = self._texts[following - 1], self._begins[following - 1]
            text.split(self._chars)
            places += map(begin.__add__, text.starts)
            places.append(self._begins[following])
        return places
