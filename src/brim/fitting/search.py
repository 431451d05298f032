"""Search: the passages of texts that match a query best, by BM25.

A query is a search for each of its terms in the text of all passages. A word counts the more,
the fewer passages contain it; one that is in more than a quarter of them is ignored. Identifiers
and paths are terms, and so are their parts. English endings are ignored. In scripts that do not
separate words, the terms are sequences of two or three characters.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain, groupby
from math import log
from typing import Final, NamedTuple
from unicodedata import category, normalize

from brim.messages import Message, Role

_PASSAGE, _SMALL_PASSAGE = 500, 200
"""Characters."""
_SMALL_WINDOW: Final = 8_192
"""Up to this window, passages are small."""

_MAX_TERMS: Final = 32
"""Of a long query only the longest terms count."""
_MAX_PARTS: Final = 32
"""A longer sequence of parts is not an identifier or a path."""
_MAX_MISSES: Final = 8
"""The search ends after this number of passages that are larger than the room left."""
_FREQUENT: Final = 0.25
"""A term found in more than this share of the passages is ignored."""
_FREQUENT_IN_TURNS: Final = 0.75
"""The same for turns: half of them may begin with the name of their speaker."""
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
_ENDINGS: Final = (
    *("ions", "ings", "ers", "ors", "ion", "ing", "ies", "ied"),
    *("er", "or", "ed", "es", "ly", "s", "e", "y"),
)
"""The longest come first."""
_ENDING_SET: Final = frozenset(("", *_ENDINGS))
_SHORTEST_STEM: Final = 3
_SEPARATOR: Final = "\0"
_STOP_WORDS: Final = re.compile(
    "a|about|am|an|and|are|as|at|be|been|but|by|can|could|did|do|does|for|from|had|has|have|he|her|"
    "his|how|i|if|in|into|is|it|its|me|my|no|not|of|on|or|our|she|should|so|than|that|the|their|"
    "them|then|there|these|they|this|those|to|us|was|we|were|what|when|where|which|who|whom|whose|"
    "why|will|with|would|you|your"
)
"""English words that are never looked for."""


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
_separated_word_chars: Final = _WordChars({ord(_SEPARATOR): _SEPARATOR})


def fold(text: str) -> str:
    """Return a text in lower case, with spaces in place of everything between words."""
    return normalize("NFKC", text).casefold().translate(_word_chars)


def _fold_all(texts: Iterable[str]) -> Iterator[str]:
    """Fold texts, with a space at both ends; those in ASCII together, which is faster."""
    for is_ascii, group in groupby(texts, str.isascii):
        given = list(group)
        yield from map(" {} ".format, _fold_ascii(given) if is_ascii else map(fold, given))


def _fold_ascii(texts: Sequence[str]) -> Iterable[str]:
    joined = _SEPARATOR.join(texts)
    if joined.count(_SEPARATOR) >= len(texts):
        return map(fold, texts)
    return joined.lower().translate(_separated_word_chars).split(_SEPARATOR)


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


@dataclass(slots=True)
class PassageCache:
    """Passages of texts that are searched again: each is split and folded once."""

    _passages: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    _folded: dict[str, str] = field(default_factory=dict)

    def split(self, text: str, chars: int) -> Sequence[str]:
        """Return a text in passages of about this number of characters."""
        if (found := self._passages.get((text, chars))) is None:
            found = self._passages[text, chars] = [*split_text(text, chars)]
        return found

    def fold(self, texts: Sequence[str]) -> list[str]:
        """Return texts as `PassageIndex` compares them."""
        new = [text for text in texts if text not in self._folded]
        self._folded.update(zip(new, _fold_all(new), strict=True))
        return [self._folded[text] for text in texts]


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
    found = [
        (source, text)
        for source in sources
        for text in cache.split(source.text, chars)
        if not (source.visible and text in source.visible)
    ]
    index = PassageIndex(cache.fold([text for _, text in found]))
    scores = index.score(query)
    best = sorted(scores, key=lambda place: (scores[place], place), reverse=True)
    chosen: dict[int, Passage] = {}
    seen: set[str] = set()
    misses = 0
    for place in best:
        source, text = found[place]
        if text in seen:
            continue
        seen.add(text)
        if (size := count(text)) > tokens:
            if (misses := misses + 1) == _MAX_MISSES:
                break
            continue
        chosen[place] = Passage(source.message, source.role, text, size)
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


# Ranking


class Term(NamedTuple):
    """What is looked for in a folded text."""

    text: str
    """A word, or several with spaces between them; it begins with a space."""
    is_stem: bool = False
    """Whether an English ending may follow; otherwise a space follows."""


def find_terms(query: str) -> list[Term]:
    """Return the terms of a query: its words, identifiers and paths, and their parts."""
    text = normalize("NFKC", query)
    terms = dict.fromkeys(term for run in _UNSEPARATED.findall(text) for term in _find_grams(run))
    for name in _UNSEPARATED.sub(" ", text).split():
        terms |= dict.fromkeys(_find_name_terms(name))
    return sorted(terms, key=lambda term: -len(term.text))[:_MAX_TERMS]


def _find_grams(run: str) -> Iterator[Term]:
    size = 3 if _SYLLABLE.match(run) else 2
    for start in range(max(1, len(run) - size + 1)):
        yield Term(f" {fold(run[start : start + size]).strip()}")


def _find_name_terms(name: str) -> Iterator[Term]:
    words = fold(name).split()
    parts = fold(_CAMEL.sub(" ", name)).split()
    if 1 < len(words) <= _MAX_PARTS:
        yield Term(f" {fold(name).strip()}")
    elif len(words) == 1 < len(parts):
        yield Term(f" {words[0]}")
    for part in parts:
        if (len(part) > 1 or len(parts) == 1) and not _STOP_WORDS.fullmatch(part):
            yield _find_stem(part)


def _find_stem(word: str) -> Term:
    """Return the term for all forms that an English word may have, itself included."""
    if not (word.isascii() and word.isalpha() and len(word) >= _SHORTEST_STEM):
        return Term(f" {word}")
    stem = next((word.removesuffix(ending) for ending in _ENDINGS if word.endswith(ending)), word)
    return Term(f" {word if len(stem) < _SHORTEST_STEM else stem}", is_stem=True)


class PassageIndex:
    """Passages to compare with queries; each is folded once, when it is added.

    A query is a search for each of its terms in the text of all passages, which C code does.
    """

    def __init__(self, folded: Sequence[str] = ()) -> None:
        self._folded = [*folded]

    def extend(self, texts: Sequence[str]) -> None:
        """Add passages."""
        self._folded += _fold_all(texts)

    def score(
        self, query: str, stop: int | None = None, frequent: float = _FREQUENT
    ) -> dict[int, float]:
        """Return the BM25 scores of the passages that contain a term, by their positions.

        Only the first `stop` passages are considered, and only terms in at most the share
        `frequent` of them.
        """
        folded = self._folded[:stop]
        text = "\n".join(folded)
        starts = list(accumulate((len(part) + 1 for part in folded), initial=0))
        average = max(1, len(text)) / max(1, len(folded))
        most = max(_FEW, int(len(folded) * frequent))
        scores: dict[int, float] = defaultdict(float)
        for term in find_terms(query):
            counts = _count_term(term, text, starts, most)
            if len(counts) > most:
                continue
            weight = log(1 + (len(folded) - len(counts) + 0.5) / (len(counts) + 0.5))
            for place, count in counts.items():
                length = 1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * len(folded[place]) / average
                scores[place] += weight * count * (_SATURATION + 1) / (count + _SATURATION * length)
        return scores


def _count_term(term: Term, text: str, starts: Sequence[int], most: int) -> dict[int, int]:
    """Return how often a term is in each passage; incomplete if it is in more than `most`."""
    counts: dict[int, int] = {}
    wanted, is_stem, place = term.text if term.is_stem else f"{term.text} ", term.is_stem, 0
    found = text.find(wanted)
    while found >= 0:  # the loop takes most of the time of `benchmarks.search`
        end = found + len(wanted)
        if not is_stem or text[end : text.find(" ", end)] in _ENDING_SET:
            place = bisect_right(starts, found, place) - 1
            counts[place] = counts.get(place, 0) + 1
            if len(counts) > most:
                break
        found = text.find(wanted, end - 1)
    return counts


class MessageSearch:
    """The messages of a growing history, to compare with queries."""

    def __init__(self) -> None:
        self._passages = PassageIndex()
        self._owners: list[int] = []
        """The message of each passage."""
        self._seen = 0
        self._asked = ("", 0)
        self._scores: Mapping[int, float] = {}

    def extend(self, messages: Sequence[Message]) -> None:
        """Add the messages that were not added before; system messages are not searched."""
        texts = []
        for index in range(self._seen, len(messages)):
            message = messages[index]
            if message.role != "system" and not message.skipped:
                names = "".join(f"{name} " for name in message.extras)
                for text in read_texts(message):
                    for part in split_text(text, _SMALL_PASSAGE):
                        texts.append(names + part)
                        self._owners.append(index)
        self._passages.extend(texts)
        self._seen = len(messages)

    def score(self, query: str, stop: int) -> Mapping[int, float]:
        """Return the best score of a passage of each matching message before `stop`.

        The steps that follow a user message ask for the same; it is compared once.
        """
        if self._asked != (query, stop):
            self._asked, self._scores = (query, stop), self._compare(query, stop)
        return self._scores

    def _compare(self, query: str, stop: int) -> Mapping[int, float]:
        scores: dict[int, float] = defaultdict(float)
        passages = bisect_left(self._owners, stop)
        for place, score in self._passages.score(query, passages, _FREQUENT_IN_TURNS).items():
            index = self._owners[place]
            scores[index] = max(scores[index], score)
        return scores
