"""Mask secrets in command output before it is sent to a model.

Secrets are values of environment variables with telling names, and texts that match the patterns of
keys, tokens and passwords. A placeholder such as `[secret: OPENAI_API_KEY]` replaces each one.
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

from brim.shell.approval.secret_patterns import (
    ADDRESS,
    ASSIGNED_LABELS,
    FOLDER_NAMES,
    LOGIN,
    METADATA_SUFFIXES,
    NUMBER,
    PASSWORDS,
    PATH,
    PATTERNS,
    PRIVATE_KEY,
    TOKENS,
    WORD,
    Span,
    find_assignments,
    find_private_keys,
    words_of,
)

SHORTEST: Final = 8
"""Minimum length of an environment variable's value to be a secret."""
ROUNDS: Final = 8
"""A placeholder ends a word, so its neighbors may match only in the next round."""


@dataclass(frozen=True, slots=True)
class MaskedText:
    """A text without its secrets, and the label of each secret."""

    text: str
    found: tuple[str, ...] = ()


class Masker:
    """A masker for the secrets of an environment and for known patterns."""

    def __init__(self, environment: Mapping[str, str], *, also: Iterable[str] = ()) -> None:
        """`also` lists secrets that are not in the environment."""
        values = {value: OTHER for value in also if len(value) >= 4}
        values |= _secrets_in(environment)
        labels = [
            *(kind.label for kind in PATTERNS),
            PRIVATE_KEY,
            *ASSIGNED_LABELS,
            *dict.fromkeys(values.values()),
        ]
        placeholders = sorted(map(_placeholder, labels), key=len, reverse=True)
        self._placeholders = re.compile("(" + "|".join(map(re.escape, placeholders)) + ")")
        known = {
            form: label
            for value, label in values.items()
            for form in _encodings(value)
            if not any(form in mark for mark in placeholders)
        }
        self._known = sorted(known.items(), key=lambda each: len(each[0]), reverse=True)

    def mask(self, text: str) -> MaskedText:
        """Return the text with a placeholder for each secret; idempotent."""
        found: dict[str, None] = {}
        for _ in range(ROUNDS):
            pieces = self._placeholders.split(text)
            pieces[::2] = [self._replace_secrets(piece, found) for piece in pieces[::2]]
            before, text = text, "".join(pieces)
            if text == before:
                break
        return MaskedText(text, tuple(found))

    def _replace_secrets(self, text: str, found: dict[str, None]) -> str:
        spans = _merge_overlaps(self._spans(text))
        if not spans:
            return text
        pieces, end = [], 0
        for span in spans:
            pieces += [text[end : span.start], _placeholder(span.label)]
            found.setdefault(span.label)
            end = span.end
        return "".join((*pieces, text[end:]))

    def _spans(self, text: str) -> Iterator[Span]:
        """Yield the secrets in a text, also those with color sequences inside."""
        yield from self._find(text)
        if "\x1b[" in text:
            plain = _Uncolored.of(text)
            yield from map(plain.to_original, self._find(plain.text))

    def _find(self, text: str) -> Iterator[Span]:
        for value, label in self._known:
            start = text.find(value)
            while start >= 0:
                yield Span(start, start + len(value), label)
                start = text.find(value, start + len(value))
        yield from find_private_keys(text)
        for kind in PATTERNS:
            yield from kind.spans(text)
        yield from find_assignments(text)


def _placeholder(label: str) -> str:
    name = re.sub(r"\A(?:the value of|the|an?) ", "", label)
    return f"[secret: {name}]"


def _merge_overlaps(spans: Iterable[Span]) -> list[Span]:
    """Merge overlapping spans under the label that was found first."""
    joined: list[tuple[int, Span]] = []
    for rank, span in sorted(enumerate(spans), key=lambda each: each[1].start):
        if not joined or span.start >= joined[-1][1].end:
            joined.append((rank, span))
            continue
        first, last = joined[-1]
        label = last.label if first < rank else span.label
        joined[-1] = min(first, rank), Span(last.start, max(last.end, span.end), label)
    return [span for _, span in joined]


# Color sequences

_COLOR_SEQUENCE: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class _Uncolored:
    """A text without its color sequences, with a map to the original positions."""

    text: str
    starts: tuple[int, ...]
    shifts: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> _Uncolored:
        pieces, starts, shifts = [], [], []
        end = length = 0
        for start, after in [
            *(match.span() for match in _COLOR_SEQUENCE.finditer(text)),
            (len(text), 0),
        ]:
            pieces.append(text[end:start])
            starts.append(length)
            shifts.append(end - length)
            length += start - end
            end = after
        return cls("".join(pieces), tuple(starts), tuple(shifts))

    def to_original(self, span: Span) -> Span:
        """Return the same span in the original text."""
        return Span(
            self._original_index(span.start), self._original_index(span.end - 1) + 1, span.label
        )

    def _original_index(self, index: int) -> int:
        return index + self.shifts[bisect_right(self.starts, index) - 1]


# The environment

OTHER: Final = "a known secret"

_NAMED: Final = frozenset(("KEY", "KEYS", "SECRETS", "PASS", "AUTH", "PAT"))
"""Further words in the names of variables that hold a secret."""


def _secrets_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets of an environment with their labels."""
    found: dict[str, str] = {}
    for name, value in sorted(environment.items()):
        if (login := LOGIN.search(value)) and is_secret(login[1]):
            found.setdefault(login[1], f"the password in {name}")
        if _is_secret_name(name) and is_secret(value.strip()):
            found.setdefault(value.strip(), f"the value of {name}")
    return found


def _is_secret_name(name: str) -> bool:
    """Return whether a variable's name says that it holds a secret."""
    words = words_of(name)
    if not words or words[-1] in METADATA_SUFFIXES or name in FOLDER_NAMES:
        return False
    return any(word in _NAMED or word.endswith(PASSWORDS + TOKENS) for word in words)


def is_secret(value: str) -> bool:
    """Return whether a value can be a secret: long, and not a path, URL, number or word."""
    if len(value) < SHORTEST or PATH.match(value):
        return False
    return not any(shape.fullmatch(value) for shape in (WORD, NUMBER, ADDRESS))


def _encodings(value: str) -> set[str]:
    """Return the forms in which a value is printed: plain, quoted, escaped, encoded."""
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
