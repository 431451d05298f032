"""Secrets in what a command printed, masked before a model gets to see it.

Two sources say what is a secret: the environment, whose names tell which of its values are one, and
the shapes that keys, tokens and assignments of passwords have. In place of each stands its name:
`[secret: OPENAI_API_KEY]`. What it finds is told without the value.
"""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from brim.shell.approval.secret_patterns import (ABOUT, ADDRESS, ASSIGNED, BLOCK, FOLDERS, KINDS, LOGIN, NUMBER, PASSWORDS, PATH, TOKENS, WORD, Span, assignments, blocks, words_of)

SHORTEST: Final = 8
"""Characters of a value of the environment that can be a secret."""
ROUNDS: Final = 8
"""A mask ends a word, so what stood beside it may be seen only then."""


@dataclass(frozen=True, slots=True)
class Masked:
    """A text without its secrets, and what they were, each once."""

    text: str
    found: tuple[str, ...] = ()


class Masker:
    """Knows the secrets of an environment, and the shapes of others."""

    def __init__(self, environment: Mapping[str, str], *, also: Iterable[str] = ()) -> None:
        """`also` are secrets that no variable holds."""
        values = {value: OTHER for value in also if len(value) >= 4}
        values |= _values(environment)
        labels = [
            *(kind.label for kind in KINDS),
            BLOCK,
            *ASSIGNED,
            *dict.fromkeys(values.values()),
        ]
        marks = sorted(map(_mark, labels), key=len, reverse=True)
        self._marks = re.compile("(" + "|".join(map(re.escape, marks)) + ")")
        known = {
            form: label
            for value, label in values.items()
            for form in _forms(value)
            if not any(form in mark for mark in marks)
        }
        self._known = sorted(known.items(), key=lambda each: len(each[0]), reverse=True)

    def masked(self, text: str) -> Masked:
        """The text with a name in the place of each secret; masked once more it stays the same."""
        found: dict[str, None] = {}
        for _ in range(ROUNDS):
            pieces = self._marks.split(text)
            pieces[::2] = [self._without(piece, found) for piece in pieces[::2]]
            before, text = text, "".join(pieces)
            if text == before:
                break
        return Masked(text, tuple(found))

    def _without(self, text: str, found: dict[str, None]) -> str:
        spans = _joined(self._spans(text))
        if not spans:
            return text
        pieces, end = [], 0
        for span in spans:
            pieces += [text[end : span.start], _mark(span.label)]
            found.setdefault(span.label)
            end = span.end
        return "".join((*pieces, text[end:]))

    def _spans(self, text: str) -> Iterator[Span]:
        """Where secrets are; colours in the middle of one do not hide it."""
        yield from self._seen(text)
        if "\x1b[" in text:
            plain = _Plain.of(text)
            yield from map(plain.back, self._seen(plain.text))

    def _seen(self, text: str) -> Iterator[Span]:
        for value, label in self._known:
            start = text.find(value)
            while start >= 0:
                yield Span(start, start + len(value), label)
                start = text.find(value, start + len(value))
        yield from blocks(text)
        for kind in KINDS:
            yield from kind.spans(text)
        yield from assignments(text)


def _mark(label: str) -> str:
    name = re.sub(r"\A(?:the value of|the|an?) ", "", label)
    return f"[secret: {name}]"


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Spans that overlap are one, under the name of the one that was seen first."""
    joined: list[tuple[int, Span]] = []
    for rank, span in sorted(enumerate(spans), key=lambda each: each[1].start):
        if not joined or span.start >= joined[-1][1].end:
            joined.append((rank, span))
            continue
        first, last = joined[-1]
        label = last.label if first < rank else span.label
        joined[-1] = min(first, rank), Span(last.start, max(last.end, span.end), label)
    return [span for _, span in joined]


# Colours

_COLOUR: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class _Plain:
    """A text without its colours, and where each part of it stood."""

    text: str
    starts: tuple[int, ...]
    shifts: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> _Plain:
        pieces, starts, shifts = [], [], []
        end = length = 0
        for start, after in [*(match.span() for match in _COLOUR.finditer(text)), (len(text), 0)]:
            pieces.append(text[end:start])
            starts.append(length)
            shifts.append(end - length)
            length += start - end
            end = after
        return cls("".join(pieces), tuple(starts), tuple(shifts))

    def back(self, span: Span) -> Span:
        """The same span in the text with colours."""
        return Span(self._place(span.start), self._place(span.end - 1) + 1, span.label)

    def _place(self, index: int) -> int:
        return index + self.shifts[bisect_right(self.starts, index) - 1]


# The environment

OTHER: Final = "a known secret"

_NAMED: Final = frozenset(("KEY", "KEYS", "SECRETS", "PASS", "AUTH", "PAT"))
"""Beside passwords and tokens, words that say that a variable holds a secret."""


def _values(environment: Mapping[str, str]) -> dict[str, str]:
    """The secrets of an environment, with what each is called."""
    found: dict[str, str] = {}
    for name, value in sorted(environment.items()):
        if (login := LOGIN.search(value)) and is_secret(login[1]):
            found.setdefault(login[1], f"the password in {name}")
        if _says_so(name) and is_secret(value.strip()):
            found.setdefault(value.strip(), f"the value of {name}")
    return found


def _says_so(name: str) -> bool:
    """Whether a variable's name says that it holds a secret."""
    words = words_of(name)
    if not words or words[-1] in ABOUT or name in FOLDERS:
        return False
    return any(word in _NAMED or word.endswith(PASSWORDS + TOKENS) for word in words)


def is_secret(value: str) -> bool:
    """Whether a value can be a secret: long enough, and no path, address, number or plain word."""
    if len(value) < SHORTEST or PATH.match(value):
        return False
    return not any(shape.fullmatch(value) for shape in (WORD, NUMBER, ADDRESS))


def _forms(value: str) -> set[str]:
    """The ways in which a value is printed: as it is, quoted, escaped, encoded."""
    whole = value.encode("utf-8", "surrogateescape")
    aligned = base64.b64encode(whole[: len(whole) // 3 * 3]).decode()
    forms = {
        value,
        value.replace("\n", "\r\n"),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        re.sub(r'(["$`\\])', r"\\\1", value),
        value.replace("'", "'\\''"),
        quote(whole, safe=""),
    }
    return forms | ({aligned} if len(aligned) >= 2 * SHORTEST else set())
