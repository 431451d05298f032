"""Terms: what a query looks for in folded text.

Identifiers and paths are terms, and so are their parts. English endings and irregular forms are
ignored. In scripts that do not separate words, the terms are sequences of two or three characters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain, islice
from string import punctuation
from sys import maxsize
from typing import Final, NamedTuple
from unicodedata import category, normalize

_MAX_TERMS: Final = 16
"""Of a long query only the longest terms count."""
_MAX_PARTS: Final = 32
"""A longer sequence of parts is not an identifier or a path."""
_LONGEST: Final = 200
"""Characters; longer words are not looked for."""
_SHORT_NAME: Final = 40
"""Characters; the terms of shorter words and names are cached."""

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
_CONTRACTED: Final = re.compile(
    r"\w*n['\u2019]t\b|(?<=\w)['\u2019](?:s|m|d|re|ve|ll)\b", re.IGNORECASE
)
"""What a contraction or a possessive adds to a word; all of one with `not`."""
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


RELATED_SHARE: Final = 0.5
"""The share of a term's weight that a related one has."""
_RELATED: Final = (
    *("job work career profession occupation employer", "study course class degree student"),
    *("school college university education", "kid child son daughter", "mom mum mother"),
    *("dad father", "grandma grandmother", "grandpa grandfather", "brother sister sibling"),
    *("partner boyfriend girlfriend husband wife", "wedding marry marriage married"),
    *("friend buddy", "car vehicle", "trip travel vacation holiday journey visit"),
    *("buy purchase shopping", "money cost price pay", "gift present", "movie film"),
    *("picture photo painting image drawing", "book novel read", "music song band concert"),
    *("instrument guitar piano violin drum", "game play", "sport exercise fitness workout"),
    *("race marathon run", "hobby interest activity", "hike camping outdoor nature"),
    *("home house apartment flat", "city town", "begin start", "quit leave", "move relocate"),
    *("meal food dish cook dinner recipe", "pet dog cat puppy kitten", "color colour"),
    *("favorite favourite", "doctor hospital clinic", "surgery operation", "sick ill illness"),
    *("injury hurt accident", "talk presentation speech", "article paper", "win award prize"),
    *("plan goal", "help support", "fear afraid scared", "happy glad excited", "like love enjoy"),
    *("repair fix", "religion faith church", "volunteer charity"),
)
"""Everyday words of which a question often has one and its answer another."""


# Folding


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
    folded = iter(fold_ascii([text for text in texts if text.isascii()]))
    return [next(folded) if text.isascii() else f" {fold(text)} " for text in texts]


def fold_ascii(texts: Sequence[str]) -> Sequence[str]:
    """Return folded texts in ASCII, with a space at both ends."""
    joined = f" {_BETWEEN.join(texts)} ".encode("ascii")
    found = joined.translate(_ASCII_WORD_CHARS).decode("ascii").split("\0")
    return found if len(found) == len(texts) else [f" {fold(text)} " for text in texts]


# Terms


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
    terms = dict.fromkeys(term for term in chain.from_iterable(found) if len(term.text) <= _LONGEST)
    return sorted(terms, key=lambda term: -len(term.text))[:_MAX_TERMS]


def find_related_terms(terms: Collection[Term]) -> Sequence[Term]:
    """Return the terms that mean about the same as one of these, without these."""
    related = _map_related()
    found = dict.fromkeys(chain.from_iterable(related.get(term, ()) for term in terms))
    return [term for term in found if term not in terms]


def find_name_terms(query: str) -> set[Term]:
    """Return the terms of the words that begin with a capital letter."""
    words = [word for word in query.split() if word.lstrip(punctuation)[:1].isupper()]
    return {*chain.from_iterable(map(_read_name, words))}


@cache
def _map_related() -> dict[Term, dict[Term, None]]:
    related: dict[Term, dict[Term, None]] = {}
    for group in map(str.split, _RELATED):
        forms = chain.from_iterable((word, *_IRREGULAR.get(word, ())) for word in group)
        terms = dict.fromkeys(map(_find_stem, forms))
        for term in terms:
            related.setdefault(term, {}).update(terms)
    return related


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
    if "'" in name or "\u2019" in name:
        name = _CONTRACTED.sub("", name)
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


def find_places(term: Term, text: str, most: int = maxsize - 1) -> Sequence[int]:
    """Return the positions of a term in a folded text; none if there are more than `most`."""
    size, endings = len(term.text), term.endings
    matches = _compile(term).finditer(text)
    if term.is_stem:
        starts = (match.start() for match in matches if match[0][size - 1 : -1] in endings)
    else:
        starts = (match.start() for match in matches)
    found = [*islice(starts, most + 1)]
    return found if len(found) <= most else ()


@lru_cache(maxsize=4_096)
def _compile(term: Term) -> re.Pattern[str]:
    """Return a pattern that begins with the word itself, not with the space before it.

    It is found faster, because its first letter is rarer: `benchmarks.search`.
    """
    word = re.escape(term.text[1:])
    after = "[a-z]*" if term.is_stem else ""
    return re.compile(f"{word}(?<= {word}){after} ")
