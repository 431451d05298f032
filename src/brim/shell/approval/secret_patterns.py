"""Patterns of secrets: tokens, private keys, and values assigned to a telling name.

Each search is linear in the length of the text. Text that only resembles a secret (a hash, a UUID,
an image, a file name) does not match.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import Final, NamedTuple

LARGEST_BLOCK: Final = 16_384
"""Maximum length of a private key in characters."""


class Span(NamedTuple):
    """The position of a secret, and its label."""

    start: int
    end: int
    label: str


# Values that are not secrets

METADATA_SUFFIXES: Final = frozenset(
    ("ID", "URL", "URI", "PATH", "FILE", "DIR", "NAME", "TYPE", "LENGTH", "SIZE", "LIMIT", "COUNT")
) | {
    "TTL",
    "HOST",
    "PORT",
    "USER",
    "EMAIL",
    "VERSION",
    "SOCK",
    "ALGORITHM",
    "EXPIRES",
    "HINT",
    "PLACEHOLDER",
}
"""Endings of names that describe a secret without holding one."""
FOLDER_NAMES: Final = ("PWD", "OLDPWD")
PASSWORDS: Final = ("PASSWORD", "PASSWD", "PASSPHRASE", "PWD")
TOKENS: Final = (
    "TOKEN",
    "SECRET",
    "APIKEY",
    "SECRETKEY",
    "PRIVATEKEY",
    "CREDENTIAL",
    "CREDENTIALS",
)
"""Endings of names that hold a secret."""
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
PATH: Final = re.compile(r"~|\.{0,2}/[\w.@~-]*(?:/|$)|[A-Za-z]:\\|\\\\")
WORD: Final = re.compile(r"(?:[a-z]+|[A-Z]+|[A-Z][a-z]+)(?:[-_ .](?:[a-z]+|[A-Z]+|[A-Z][a-z]+))*")
NUMBER: Final = re.compile(r"[\d.,:+-]+")
LOGIN: Final = re.compile(r"""://[^\s/:@"'<>\[]{0,200}:([^\s/"'<>]{1,500})@(?!sha\d)""")
ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s@]*")


def words_of(name: str) -> list[str]:
    return [word.upper() for word in _WORDS.findall(name)]


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
    pattern: re.Pattern[str]
    is_meant: Callable[[str], bool] = bool

    def spans(self, text: str) -> Iterator[Span]:
        if not any(sign in text for sign in self.signs):
            return
        for match in self.pattern.finditer(text):
            group = 1 if self.pattern.groups else 0
            if self.is_meant(match[group]):
                yield Span(*match.span(group), self.label)


_LEFT: Final = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"
"""The start of a word, also after an escaped line end or a percent-encoded character."""


def _token_patterns() -> Iterator[SecretPattern]:
    """Yield the patterns of `data/secrets.toml`."""
    text = resources.files("brim").joinpath("data/secrets.toml").read_text(encoding="utf-8")
    for token in tomllib.loads(text)["token"]:
        prefixes = [re.match(r"[\w-]*", pattern) for pattern in token["patterns"]]
        yield SecretPattern(
            token["label"],
            tuple(prefix[0] for prefix in prefixes if prefix),
            re.compile(_LEFT + "(?:" + "|".join(token["patterns"]) + ")"),
            _is_random if token.get("random") else bool,
        )


_TAIL: Final = "[A-Za-z0-9_-]"

PATTERNS: Final = (
    *_token_patterns(),
    SecretPattern(
        "a JSON web token",
        ("eyJ",),
        re.compile(
            r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"
            rf"eyJ{_TAIL}{{8,}}\.eyJ{_TAIL}{{8,}}\.{_TAIL}{{10,}}"
        ),
    ),
    SecretPattern("a password in a URL", ("://",), LOGIN, _is_value),
    SecretPattern(
        "an authorization header",
        ("uthorization", "UTHORIZATION", "earer", "BEARER"),
        re.compile(
            r"(?i:authorization[\"']?[ \t]*[:=][ \t]*[\"']?(?:bearer|basic|token|apikey)|bearer)"
            r"[ \t]+([A-Za-z0-9._~+/-]{12,}=*)"
        ),
        lambda token: _is_random(token) or any(char.isdigit() for char in token),
    ),
    SecretPattern(
        "a password",
        ("login",),
        re.compile(r"\blogin\s{1,9}\S{1,200}\s{1,9}password\s{1,9}(\S{3,200})"),
        _is_value,
    ),
    SecretPattern(
        "a password",
        ("curl", "wget", "sshpass"),
        re.compile(
            r"\b(?:(?:curl|wget)\b[^\n]{0,300}?\s(?:-u|--user)[ =]?[\"']?[^\s:\"']{1,100}:"
            r"|sshpass[ \t]{1,9}-p[ \t]{0,9}[\"']?)([^\s\"']{3,200})"
        ),
        _is_value,
    ),
    SecretPattern(
        "a password hash",
        ("$",),
        re.compile(r"(?<![\w$])\$(?:[1567y]|2[abxy]|gy|argon2id?)\$[A-Za-z0-9./$=,+-]{20,}"),
    ),
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
_KEYS: Final = frozenset(
    ("API", "ACCESS", "ACCOUNT", "ENCRYPTION", "MASTER", "PRIVATE", "SECRET", "SIGNING")
)
_EMPTY: Final = frozenset(
    ("none", "null", "nil", "true", "false", "string", "undefined", "required")
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


def _label_of(name: str) -> str | None:
    """Return the label for the value of a name; None if it is not a secret."""
    words = words_of(name)
    if not words or words[-1] in METADATA_SUFFIXES or name in FOLDER_NAMES:
        return None
    if any(word.endswith(PASSWORDS) for word in words):
        return ASSIGNED_LABELS[0]
    is_key = any(one in _KEYS and other == "KEY" for one, other in pairwise(words))
    return ASSIGNED_LABELS[1] if is_key or any(word.endswith(TOKENS) for word in words) else None


def _is_secret_value(name: str, sign: str, value: str, group: str) -> bool:
    """Return whether a value is a secret and not a placeholder, a type or program code."""
    if not _is_value(value) or value.lower() in _EMPTY or PATH.match(value):
        return False
    if name.isupper() and sign == "=":
        return len(value) >= 4 and "$" not in value[:2] and not NUMBER.fullmatch(value)
    if group == "bare" and (
        sign == ":" or NUMBER.fullmatch(value)
    ):  # as in `token.py:12:`, the output of a search
        return False
    return len(value) >= 6 and not any(shape.search(value) for shape in _NOT_A_SECRET)
