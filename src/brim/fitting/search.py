"""Search: the passages of texts that match a query best, by BM25.

A query is a search for each of its terms in the text of all passages. A word counts the more,
the fewer passages contain it; one that is in more than a quarter of them is ignored. Identifiers
and paths are terms, and so are their parts. English endings and irregular forms are ignored. In
scripts that do not separate words, the terms are sequences of two or three characters.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate, chain, islice, repeat
from math import log
from string import punctuation
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
_SHORT_NAME: Final = 40
"""Characters; the terms of shorter words and names are cached."""
_MAX_MISSES: Final = 8
"""The search ends after this number of passages that are larger than the room left."""
_FREQUENT: Final = 0.25
"""A term found in more than this share of the passages is ignored."""
FEW: Final = 2
"""A term found in at most this number of passages is never ignored."""
SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""The parameters k1 and b of BM25."""

_TOLERANCE: Final = 1.25
"""A passage may be longer by this factor if it ends with its line then."""

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
_LONG_ENDINGS: Final = (
    *("ering", "ered", "erings", "oring", "ored", "ying", "yed", "ily", "iness", "ness", "ful"),
    *("ation", "ations", "ment", "ments", "ement", "ements", "al", "ally", "ist", "ists"),
)
"""They may follow a stem too, but not one of three letters: a comment is no form of to come."""
_ENDING_SET: Final = frozenset(("", *_ENDINGS))
_LONG_ENDING_SET: Final = frozenset((*_ENDING_SET, *_LONG_ENDINGS))
_SHORTEST_STEM: Final = 3
_BETWEEN: Final = " \0 "
"""What is between texts that are folded together."""
_SYMBOL: Final = re.compile(
    "[\u2010-\u2016\u2018-\u2023\u2030-\u2032\u2190-\u21ff\u2500-\u2775"
    "\U0001f300-\U0001f64f\U0001f680-\U0001faff]"
)
"""Quotes, dashes, arrows, boxes and emoji: one character each, which is not part of a word."""
_STOP_WORDS: Final = re.compile(
    "a|about|am|an|and|are|as|at|be|been|but|by|can|could|did|do|does|for|from|had|has|have|he|her|"
    "his|how|i|if|in|into|is|it|its|me|my|no|not|of|on|or|our|she|should|so|than|that|the|their|"
    "them|then|there|these|they|this|those|to|us|was|we|were|what|when|where|which|who|whom|whose|"
    "why|will|with|would|you|your"
)
"""English words that are never looked for."""
_FORMS: Final = (
    *("become became", "begin began begun", "break broke broken", "bring brought"),
    *("build built", "buy bought", "catch caught", "child children", "choose chose chosen"),
    *("come came", "draw drew drawn", "drink drank drunk", "drive drove driven", "eat ate eaten"),
    *("fall fell fallen", "feel felt", "fight fought", "find found", "fly flew flown"),
    *("forget forgot forgotten", "get got gotten", "give gave given", "go went gone"),
    *("grow grew grown", "hear heard", "hide hid hidden", "hold held", "keep kept"),
    *("know knew known", "leave left", "lend lent", "lose lost", "make made", "meet met"),
    *("man men", "pay paid", "ride rode ridden", "run ran", "say said", "see saw seen"),
    *("sell sold", "send sent", "sing sang sung", "sleep slept", "speak spoke spoken"),
    *("spend spent", "stand stood", "steal stole stolen", "swim swam swum", "take took taken"),
    *("teach taught", "tell told", "think thought", "throw threw thrown", "wear wore worn"),
    *("wife wives", "win won", "woman women", "write wrote written"),
)
_IRREGULAR: Final = {
    form: tuple(other for other in forms if other != form)
    for forms in map(str.split, _FORMS)
    for form in forms
}
"""The other forms of English words that do not share a stem."""


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


def fold(text: str) -> str:
    """Return a text in lower case, with spaces in place of everything between words."""
    return normalize("NFKC", text).casefold().translate(_word_chars)


_ASCII_WORD_CHARS: Final = bytes.maketrans(
    bytes(range(1, 128)), b"".join(fold(chr(code)).encode() for code in range(1, 128))
)
"""The same for bytes in ASCII, of which 0 separates texts."""


def fold_all(texts: Iterable[str]) -> list[str]:
    """Return folded texts, with a space at both ends; those in ASCII together, which is faster."""
    texts = [text if text.isascii() else _SYMBOL.sub(" ", text) for text in texts]
    folded = iter(_fold_ascii([text for text in texts if text.isascii()]))
    return [next(folded) if text.isascii() else f" {fold(text)} " for text in texts]


def _fold_ascii(texts: Sequence[str]) -> Sequence[str]:
    joined = f" {_BETWEEN.join(texts)} ".encode("ascii")
    found = joined.translate(_ASCII_WORD_CHARS).decode("ascii").split("\0")
    return found if len(found) == len(texts) else [f" {fold(text)} " for text in texts]


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


class _Passages(NamedTuple):
    """The passages of one text."""

    texts: Sequence[str]
    folded: Sequence[str]


@dataclass(slots=True)
class PassageCache:
    """Passages of texts that are searched again: each text is split and folded once."""

    _known: dict[tuple[str, int], _Passages] = field(default_factory=dict)

    def split(self, texts: Sequence[str], chars: int) -> list[_Passages]:
        """Return texts in passages of about this number of characters."""
        known = self._known
        new = {text: split_text(text, chars) for text in texts if (text, chars) not in known}
        folded = iter(fold_all(chain.from_iterable(new.values())))
        for text, passages in new.items():
            known[text, chars] = _Passages(passages, [*islice(folded, len(passages))])
        return [known[text, chars] for text in texts]


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
    owners, texts, folded = list[Source](), list[str](), list[str]()
    split = cache.split([source.text for source in sources], chars)
    for source, passages in zip(sources, split, strict=True):
        if source.visible:
            passages = _find_invisible(passages, source.visible)
        owners += repeat(source, len(passages.texts))
        texts += passages.texts
        folded += passages.folded
    scores = _score(folded, query)
    chosen: dict[int, Passage] = {}
    seen: set[str] = set()
    misses = 0
    for _, place in sorted(zip(scores.values(), scores, strict=True), reverse=True):
        text = texts[place]
        if text in seen:
            continue
        seen.add(text)
        if (size := count(text)) > tokens:
            if (misses := misses + 1) == _MAX_MISSES:
                break
            continue
        chosen[place] = Passage(owners[place].message, owners[place].role, text, size)
        tokens -= size
    return [chosen[place] for place in sorted(chosen)]


def _find_invisible(passages: _Passages, visible: str) -> _Passages:
    """Return the passages that are not in a text that is still visible."""
    places = [place for place, text in enumerate(passages.texts) if text not in visible]
    texts, folded = passages
    return _Passages([texts[place] for place in places], [folded[place] for place in places])


def split_text(text: str, chars: int) -> list[str]:
    """Return a text in passages of about this number of characters, without empty ones."""
    pieces = (piece.strip("\n") for piece in _find_pieces(chars)(text))
    return [piece for piece in pieces if piece and not piece.isspace()]


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


# Ranking


class Term(NamedTuple):
    """What is looked for in a folded text."""

    text: str
    """A word, or several with spaces between them; it begins with a space."""
    is_stem: bool = False
    """Whether an English ending may follow; otherwise a space follows."""

    @property
    def endings(self) -> frozenset[str]:
        """The endings that may follow a stem; the text begins with a space."""
        return _LONG_ENDING_SET if len(self.text) > _SHORTEST_STEM + 1 else _ENDING_SET


def find_terms(query: str) -> list[Term]:
    """Return the terms of a query: its words, identifiers and paths, and their parts."""
    text, runs = normalize("NFKC", query), list[str]()
    if not text.isascii():
        runs, text = _UNSEPARATED.findall(text), _UNSEPARATED.sub(" ", text)
    found = chain(map(_find_grams, runs), map(_read_name, text.split()))
    terms = dict.fromkeys(chain.from_iterable(found))
    return sorted(terms, key=lambda term: -len(term.text))[:_MAX_TERMS]


def _find_grams(run: str) -> Iterator[Term]:
    size = 3 if _SYLLABLE.match(run) else 2
    for start in range(max(1, len(run) - size + 1)):
        yield Term(f" {fold(run[start : start + size]).strip()}")


def _read_name(name: str) -> Iterable[Term]:
    return _find_short_name_terms(name) if len(name) <= _SHORT_NAME else _find_name_terms(name)


@lru_cache(maxsize=4_096)
def _find_short_name_terms(name: str) -> Sequence[Term]:
    return [*_find_name_terms(name)]


def _find_name_terms(name: str) -> Iterator[Term]:
    word = name.strip(punctuation)
    if word.isalpha() and word.isascii() and word[1:].islower():  # as nearly all are
        words = parts = [word.lower()]
    else:
        words = fold(name).split()
        parts = fold(_CAMEL.sub(" ", name)).split()
    if 1 < len(words) <= _MAX_PARTS:
        yield Term(f" {fold(name).strip()}")
    elif len(words) == 1 < len(parts):
        yield Term(f" {words[0]}")
    for part in parts:
        if (len(part) > 1 or len(parts) == 1) and not _STOP_WORDS.fullmatch(part):
            yield _find_stem(part)
            yield from map(_find_stem, _IRREGULAR.get(part, ()))


def _find_stem(word: str) -> Term:
    """Return the term for all forms that an English word may have, itself included."""
    if not (word.isascii() and word.isalpha() and len(word) >= _SHORTEST_STEM):
        return Term(f" {word}")
    stem = next((word.removesuffix(ending) for ending in _ENDINGS if word.endswith(ending)), word)
    return Term(f" {word if len(stem) < _SHORTEST_STEM else stem}", is_stem=True)


def _score(folded: Sequence[str], query: str) -> Mapping[int, float]:
    """Return the BM25 scores of the passages that contain a term, by their positions.

    A query is a search for each of its terms in the text of all passages, which C code does.
    """
    text = "\n".join(folded)
    sizes = [*map(len, folded)]
    starts = [*accumulate(sizes, lambda start, size: start + size + 1, initial=0)]
    average = max(1, len(text)) / max(1, len(folded))
    most = max(FEW, int(len(folded) * _FREQUENT))
    scores: dict[int, float] = defaultdict(float)
    for term in find_terms(query):
        counts = _count_term(term, text, starts, most)
        if len(counts) > most:
            continue
        weight = log(1 + (len(folded) - len(counts) + 0.5) / (len(counts) + 0.5))
        for place, count in counts.items():
            length = 1 - LENGTH_WEIGHT + LENGTH_WEIGHT * sizes[place] / average
            scores[place] += weight * count * (SATURATION + 1) / (count + SATURATION * length)
    return scores


def _count_term(term: Term, text: str, starts: Sequence[int], most: int) -> dict[int, int]:
    """Return how often a term is in each passage; incomplete if it is in more than `most`."""
    counts: dict[int, int] = {}
    wanted, is_stem, place = term.text if term.is_stem else f"{term.text} ", term.is_stem, 0
    endings = term.endings
    found = text.find(wanted)
    while found >= 0:  # the loop takes most of the time of `benchmarks.search`
        end = found + len(wanted)
        if not is_stem or text[end : text.find(" ", end)] in endings:
            place = bisect_right(starts, found, place) - 1
            counts[place] = counts.get(place, 0) + 1
            if len(counts) > most:
                break
        found = text.find(wanted, end - 1)
    return counts
