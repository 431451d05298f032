"""Masks secrets in command output before it is sent to a model.

Secrets are values of environment variables with telling names, and texts that match the patterns of
keys, tokens and passwords. A placeholder such as `[secret: OPENAI_API_KEY]` replaces each one. Each
search is linear in the length of the text. Text that only resembles a secret (a hash, a UUID, an
image, a file name) does not match.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple
from urllib.parse import quote

from brim.data import load_table

LARGEST_BLOCK: Final = 16_384
"""Maximum length of a private key in characters."""


class Span(NamedTuple):
    """The position of a secret, and its label."""

    start: int
    end: int
    label: str


# Names and values

_TABLE: Final = load_table("secrets")
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    name: tuple(words) for name, words in _TABLE["names"].items()
}
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_PATH: Final = re.compile(r"~|\.{0,2}/[\w.@~-]*(?:/|$)|[A-Za-z]:\\|\\\\")
_WORD: Final = re.compile(r"(?:[a-z]+|[A-Z]+|[A-Z][a-z]+)(?:[-_ .](?:[a-z]+|[A-Z]+|[A-Z][a-z]+))*")
_NUMBER: Final = re.compile(r"[\d.,:+-]+")
_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s@]*")


def _split_name(name: str) -> list[str]:
    """Return the words of a name that may hold a secret; none if it only describes one."""
    words = [word.upper() for word in _WORDS.findall(name)]
    is_metadata = words[-1:] and words[-1] in _NAMES["metadata"]
    return [] if is_metadata or name in _NAMES["folders"] else words


# Tokens


def _is_random(token: str) -> bool:
    """Return whether a token looks random: a long run of letters and digits."""
    runs = re.findall(r"[A-Za-z0-9]+", token)
    longest = max(runs, key=len, default="")
    return len(longest) >= 16 and not longest.isalpha() and not longest.isdigit()


_PLACEHOLDER: Final = re.compile(r"\$[\w{(]|[<{\[]|%[sd(]|%\w{1,60}%|\*")


def _is_value(text: str) -> bool:
    """Return whether this is a value and not a placeholder."""
    return len(set(text)) > 2 and not _PLACEHOLDER.match(text)


@dataclass(frozen=True, slots=True)
class SecretPattern:
    """A pattern of a secret: the first group of the expression, or the whole match."""

    label: str
    signs: tuple[str, ...]
    """Literal texts; a text that contains none of them is not searched."""
    expression: str
    is_meant: Callable[[str], bool] = bool

    def spans(self, text: str) -> Iterator[Span]:
        if not any(sign in text for sign in self.signs):
            return
        pattern = re.compile(self.expression)  # when it is first needed: all take long
        for match in pattern.finditer(text):
            group = 1 if pattern.groups else 0
            if self.is_meant(match[group]):
                yield Span(*match.span(group), self.label)


_LEFT: Final = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"
"""The start of a word, also after an escaped line end or a percent-encoded character."""


_CHECKS: Final[Mapping[str, Callable[[str], bool]]] = {
    "value": _is_value,
    "credential": lambda token: _is_random(token) or any(char.isdigit() for char in token),
}


def _load_patterns() -> Iterator[SecretPattern]:
    """Yield the patterns of `data/secrets.toml`."""
    for token in _TABLE["token"]:
        prefixes = [re.match(r"[\w-]*", pattern) for pattern in token["patterns"]]
        yield SecretPattern(
            token["label"],
            tuple(prefix[0] for prefix in prefixes if prefix),
            _LEFT + "(?:" + "|".join(token["patterns"]) + ")",
            _is_random if token.get("random") else bool,
        )
    for each in _TABLE["pattern"]:
        check = _CHECKS.get(each.get("check"), bool)
        yield SecretPattern(each["label"], tuple(each["signs"]), each["pattern"], check)


PATTERNS: Final = tuple(_load_patterns())
LOGIN: Final = re.compile(
    next(kind.expression for kind in PATTERNS if kind.label == "a password in a URL")
)


# Private keys

PRIVATE_KEY: Final = "a private key"
_BEGIN: Final = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_END: Final = re.compile(r"-----END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_MATERIAL: Final = re.compile(r"[A-Za-z0-9+/]{40}")
_KEY_LINE: Final = re.compile(
    r"[ \t\d:>|]{0,20}(?:[A-Za-z0-9+/=\\]{16,16384}|[A-Z][\w-]{1,40}: [^\n]*)?\s*"
)
_LAST_LINE: Final = re.compile(r"[ \t\d:>|]{0,20}[A-Za-z0-9+/=\\]{1,200}\s*")


def find_private_keys(text: str) -> Iterator[Span]:
    """Yield private keys, including those whose first or last line is missing."""
    if "PRIVATE KEY" not in text:
        return
    end = 0
    for begin in _BEGIN.finditer(text):
        if begin.start() < end:
            continue
        closing = _END.search(text, begin.end(), begin.end() + LARGEST_BLOCK)
        if closing and not _MATERIAL.search(text, begin.end(), closing.start()):
            continue  # a program that mentions keys
        end = closing.end() if closing else _last_line(text, begin.end())
        if text[begin.end() : end].strip():
            yield Span(begin.start(), end, PRIVATE_KEY)
    for closing in _END.finditer(text):
        if (start := _first_line(text, closing.start())) < closing.start():
            yield Span(start, closing.end(), PRIVATE_KEY)


def _last_line(text: str, start: int) -> int:
    """Return the end of a key without a last line."""
    end = start
    while end < min(len(text), start + LARGEST_BLOCK):
        line = text.find("\n", end) + 1 or len(text)
        if not _KEY_LINE.fullmatch(text, end, line):
            break
        end = line
    return end


def _first_line(text: str, end: int) -> int:
    """Return the start of a key without a first line."""
    start = end
    while start > max(0, end - LARGEST_BLOCK):
        line = text.rfind("\n", 0, start - 1) + 1
        shape = _LAST_LINE if start == end else _KEY_LINE
        if not shape.fullmatch(text, line, start) or not text[line:start].strip():
            break
        start = line
    return start


# Assignments

ASSIGNED_LABELS: Final = ("a password", "a token or key")

_SECRET_NAME: Final = re.compile(
    r"(?i)pass(?:word|wd|phrase)|pwd|secret|token|credential|"
    r"(?:api|access|account|encryption|master|private|signing)[_-]?key"
)
_ASSIGNMENT: Final = re.compile(
    r"(?<![A-Za-z0-9_])(?P<quote>[\"']?)(?P<name>[A-Za-z_][A-Za-z0-9_.-]{1,63})(?P=quote)"
    r"(?P<sign>[ \t]*(?:=>|:=|[:=])[ \t]*|(?<=--password) |(?<=--token) )"
    r"(?:\"(?P<double>[^\"\n]{1,2000})\"|'(?P<single>[^'\n]{1,2000})'|(?P<bare>[^\s\"',;]{1,2000}))"
)
_NOT_A_SECRET: Final = (
    re.compile(r"[\s()\[\]{}<>$`]"),
    re.compile(r"\A[A-Za-z_.]+\Z"),
    re.compile(r"://|\A#[0-9a-fA-F]{3,8}\Z"),
)
"""Signs of program code, a word, a sentence, a URL or a color."""


def find_assignments(text: str) -> Iterator[Span]:
    """Yield values that are assigned to the name of a secret."""
    end = 0
    for word in _SECRET_NAME.finditer(text):
        if word.start() < end:
            continue
        start = text.rfind("\n", 0, word.start()) + 1
        end = text.find("\n", word.end()) + 1 or len(text)
        for match in _ASSIGNMENT.finditer(text, start, end):
            group = next(name for name in ("double", "single", "bare") if match[name] is not None)
            label = _label_of(match["name"])
            if label and _is_secret_value(match["name"], match["sign"], match[group], group):
                yield Span(*match.span(group), label)


_EXPORTED: Final = re.compile(
    r"\b(?:(?:export|(?:declare|typeset)[ \t]+-\w*x\w*)[ \t]+(?P<name>[A-Za-z_]\w{0,63})="
    r"|(?:setenv|set[ \t]+-\w*x\w*)[ \t]+(?P<fish>[A-Za-z_]\w{0,63})[ \t]+)"
    r"(?P<quote>[\"']?)(?P<value>[^\s\"';]{1,2000})(?P=quote)"
)


def find_exports(text: str) -> Iterator[Span]:
    """Yield values of variables that a command of bash, zsh, fish or csh exports."""
    for match in _EXPORTED.finditer(text):
        name = match["name"] or match["fish"]
        if _is_secret_name(name) and _is_secret_value(name.upper(), "=", match["value"], "value"):
            yield Span(*match.span("value"), _label_of(name) or ASSIGNED_LABELS[1])


def _label_of(name: str) -> str | None:
    """Return the label for the value of a name; None if it is not a secret."""
    words = _split_name(name)
    if any(word.endswith(_NAMES["passwords"]) for word in words):
        return ASSIGNED_LABELS[0]
    is_key = any(one in _NAMES["keys"] and other == "KEY" for one, other in pairwise(words))
    is_token = is_key or any(word.endswith(_NAMES["tokens"]) for word in words)
    return ASSIGNED_LABELS[1] if is_token else None


def _is_secret_value(name: str, sign: str, value: str, group: str) -> bool:
    """Return whether a value is a secret and not a placeholder, a type or program code."""
    if not _is_value(value) or value.lower() in _NAMES["empty_values"] or _PATH.match(value):
        return False
    if name.isupper() and sign == "=":
        return len(value) >= 4 and "$" not in value[:2] and not _NUMBER.fullmatch(value)
    # A bare value after a colon: `token.py:12:`, the output of a search.
    if group == "bare" and (sign == ":" or _NUMBER.fullmatch(value)):
        return False
    return len(value) >= 6 and not any(shape.search(value) for shape in _NOT_A_SECRET)


# The masker

SHORTEST: Final = 8
"""Minimum length of an environment variable's value to be a secret."""
ROUNDS: Final = 8
"""A placeholder ends a word, so its neighbors may match only in the next round."""
_COLOR: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


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
            colors = {i for found in _COLOR.finditer(text) for i in range(*found.span())}
            plain = [index for index in range(len(text)) if index not in colors]
            for start, end, label in self._find("".join(text[index] for index in plain)):
                yield Span(plain[start], plain[end - 1] + 1, label)

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
        yield from find_exports(text)


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


# The environment

OTHER: Final = "a known secret"


def _secrets_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets of an environment with their labels."""
    found: dict[str, str] = {}
    for name, value in sorted(environment.items()):
        if (login := LOGIN.search(value)) and _is_secret(login[1]):
            found.setdefault(login[1], f"the password in {name}")
        if _is_secret_name(name) and _is_secret(value.strip()):
            found.setdefault(value.strip(), f"the value of {name}")
    return found


def find_secret_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that hold a secret."""
    return [
        name
        for name, value in environment.items()
        if _is_secret_name(name) or ((login := LOGIN.search(value)) and _is_secret(login[1]))
    ]


def _is_secret_name(name: str) -> bool:
    """Return whether a variable's name says that it holds a secret."""
    endings = _NAMES["passwords"] + _NAMES["tokens"]
    words = _split_name(name)
    return any(word in _NAMES["environment"] or word.endswith(endings) for word in words)


def _is_secret(value: str) -> bool:
    """Return whether a value can be a secret: long, and not a path, URL, number or word."""
    if len(value) < SHORTEST or _PATH.match(value):
        return False
    return not any(shape.fullmatch(value) for shape in (_WORD, _NUMBER, _ADDRESS))


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
