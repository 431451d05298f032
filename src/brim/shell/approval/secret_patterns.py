"""The shapes of secrets: tokens, private keys, and values behind a name that says what they are.

Each search takes time in proportion to the text, whatever stands in it. What only looks like a
secret (a hash, a UUID, a picture, the name of a file) is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

LARGEST_BLOCK: Final = 16_384
"""Characters of a private key."""


class Span(NamedTuple):
    """Where a secret stands, and what it is."""

    start: int
    end: int
    label: str


# What values are no secrets

ABOUT: Final = frozenset(
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
"""What a name ends with that is about a secret and holds none."""
FOLDERS: Final = ("PWD", "OLDPWD")
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
"""How the words end that say what a value is."""
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
PATH: Final = re.compile(r"~|\.{0,2}/[\w.@~-]*(?:/|$)|[A-Za-z]:\\|\\\\")
WORD: Final = re.compile(r"(?:[a-z]+|[A-Z]+|[A-Z][a-z]+)(?:[-_ .](?:[a-z]+|[A-Z]+|[A-Z][a-z]+))*")
NUMBER: Final = re.compile(r"[\d.,:+-]+")
LOGIN: Final = re.compile(r"""://[^\s/:@"'<>\[]{0,200}:([^\s/"'<>]{1,500})@(?!sha\d)""")
ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s@]*")


def words_of(name: str) -> list[str]:
    return [word.upper() for word in _WORDS.findall(name)]


# Shapes


def _is_random(token: str) -> bool:
    """Whether somebody rolled dice for it: letters and digits, and no words with hyphens."""
    runs = re.findall(r"[A-Za-z0-9]+", token)
    longest = max(runs, key=len, default="")
    return len(longest) >= 16 and not longest.isalpha() and not longest.isdigit()


_PLACEHOLDER: Final = re.compile(r"\$[\w{(]|[<{\[]|%[sd(]|%\w{1,60}%|\*")


def _is_filled_in(text: str) -> bool:
    """Whether something stands there, and not what is to be put there."""
    return len(set(text)) > 2 and not _PLACEHOLDER.match(text)


@dataclass(frozen=True, slots=True)
class Kind:
    """A shape that gives a secret away: the first group of the pattern, or all of it."""

    label: str
    signs: tuple[str, ...]
    """Text without any of them is not searched."""
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
"""Where a word begins: also behind an escaped line end, and behind an encoded character."""


def _token(label: str, *shapes: str, is_meant: Callable[[str], bool] = bool) -> Kind:
    """Tokens that begin with something that no other word begins with."""
    signs = tuple(re.match(r"[\w-]*", shape)[0] for shape in shapes)  # type: ignore[index]
    pattern = re.compile(_LEFT + "(?:" + "|".join(shapes) + ")")
    return Kind(label, signs, pattern, is_meant)


_AWS: Final = "[A-Z0-9]{16}(?![A-Za-z0-9])"
_TAIL: Final = "[A-Za-z0-9_-]"

KINDS: Final = (
    _token("an Anthropic key", f"sk-ant-{_TAIL}{{16,}}"),
    _token("an API key", f"sk-(?!ant-){_TAIL}{{20,}}", is_meant=_is_random),
    _token("a GitHub token", "gh[pousr]_[A-Za-z0-9]{30,}", "github_pat_[A-Za-z0-9_]{22,}"),
    _token("a GitLab token", f"gl(?:pat|ptt|dt|rt|cbt|ft|soat)-{_TAIL}{{18,}}"),
    _token("a Slack token", "xox[abeoprs]-[A-Za-z0-9-]{10,}", "xapp-[A-Za-z0-9-]{20,}"),
    _token("a Slack webhook", r"hooks\.slack\.com/services/[A-Za-z0-9/]{20,}"),
    _token("an AWS access key id", f"AKIA{_AWS}", f"ASIA{_AWS}", f"ABIA{_AWS}", f"ACCA{_AWS}"),
    _token(
        "a Google key", f"AIza{_TAIL}{{35}}", f"GOCSPX-{_TAIL}{{20,}}", f"ya29\\.{_TAIL}{{20,}}"
    ),
    _token("a Hugging Face token", "hf_[A-Za-z0-9]{30,}"),
    _token("an npm token", "npm_[A-Za-z0-9]{30,}"),
    _token("a PyPI token", f"pypi-AgE{_TAIL}{{16,}}"),
    _token(
        "a Stripe key", "sk_(?:live|test)_\\w{10,}", "rk_(?:live|test)_\\w{10,}", "whsec_\\w{20,}"
    ),
    _token("an API key", "gsk_[A-Za-z0-9]{30,}", "xai-[A-Za-z0-9]{30,}", "pplx-[A-Za-z0-9]{30,}"),
    _token("a SendGrid key", rf"SG\.{_TAIL}{{16,32}}\.{_TAIL}{{16,64}}"),
    _token(
        "a DigitalOcean token", "dop_v1_[a-f0-9]{64}", "doo_v1_[a-f0-9]{64}", "dor_v1_[a-f0-9]{64}"
    ),
    _token("an age key", "AGE-SECRET-KEY-1[A-Z0-9]{40,}"),
    Kind(
        "a JSON web token",
        ("eyJ",),
        re.compile(
            r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"
            rf"eyJ{_TAIL}{{8,}}\.eyJ{_TAIL}{{8,}}\.{_TAIL}{{10,}}"
        ),
    ),
    Kind("a password in a URL", ("://",), LOGIN, _is_filled_in),
    Kind(
        "an authorization header",
        ("uthorization", "UTHORIZATION", "earer", "BEARER"),
        re.compile(
            r"(?i:authorization[\"']?[ \t]*[:=][ \t]*[\"']?(?:bearer|basic|token|apikey)|bearer)"
            r"[ \t]+([A-Za-z0-9._~+/-]{12,}=*)"
        ),
        lambda token: _is_random(token) or any(char.isdigit() for char in token),
    ),
    Kind(
        "a password",
        ("login",),
        re.compile(r"\blogin\s{1,9}\S{1,200}\s{1,9}password\s{1,9}(\S{3,200})"),
        _is_filled_in,
    ),
    Kind(
        "a password",
        ("curl", "wget", "sshpass"),
        re.compile(
            r"\b(?:(?:curl|wget)\b[^\n]{0,300}?\s(?:-u|--user)[ =]?[\"']?[^\s:\"']{1,100}:"
            r"|sshpass[ \t]{1,9}-p[ \t]{0,9}[\"']?)([^\s\"']{3,200})"
        ),
        _is_filled_in,
    ),
    Kind(
        "a password hash",
        ("$",),
        re.compile(r"(?<![\w$])\$(?:[1567y]|2[abxy]|gy|argon2id?)\$[A-Za-z0-9./$=,+-]{20,}"),
    ),
)


# Private keys

BLOCK: Final = "a private key"
_BEGIN: Final = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----")


_END: Final = re.compile(r"-----END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_MATERIAL: Final = re.compile(r"[A-Za-z0-9+/]{40}")
_KEY_LINE: Final = re.compile(
    r"[ \t\d:>|]{0,20}(?:[A-Za-z0-9+/=\\]{16,16384}|[A-Z][\w-]{1,40}: [^\n]*)?\s*"
)
_LAST_LINE: Final = re.compile(r"[ \t\d:>|]{0,20}[A-Za-z0-9+/=\\]{1,200}\s*")


def blocks(text: str) -> Iterator[Span]:
    """Private keys from the first line to the last; where one is missing, as far as they go."""
    if "PRIVATE KEY" not in text:
        return
    end = 0
    for begin in _BEGIN.finditer(text):
        if begin.start() < end:
            continue
        closing = _END.search(text, begin.end(), begin.end() + LARGEST_BLOCK)
        if closing and not _MATERIAL.search(text, begin.end(), closing.start()):
            continue  # a program that speaks of keys
        end = closing.end() if closing else _last_line(text, begin.end())
        if text[begin.end() : end].strip():
            yield Span(begin.start(), end, BLOCK)
    for closing in _END.finditer(text):
        if (start := _first_line(text, closing.start())) < closing.start():
            yield Span(start, closing.end(), BLOCK)


def _last_line(text: str, start: int) -> int:
    """Where the lines of a key end that has no last line."""
    end = start
    while end < min(len(text), start + LARGEST_BLOCK):
        line = text.find("\n", end) + 1 or len(text)
        if not _KEY_LINE.fullmatch(text, end, line):
            break
        end = line
    return end


def _first_line(text: str, end: int) -> int:
    """Where the lines of a key begin that has no first line."""
    start = end
    while start > max(0, end - LARGEST_BLOCK):
        line = text.rfind("\n", 0, start - 1) + 1
        shape = _LAST_LINE if start == end else _KEY_LINE
        if not shape.fullmatch(text, line, start) or not text[line:start].strip():
            break
        start = line
    return start


# Assignments

ASSIGNED: Final = ("a password", "a token or key")

_SAYS: Final = re.compile(
    r"(?i)pass(?:word|wd|phrase)|pwd|secret|token|credential|"
    r"(?:api|access|account|encryption|master|private|signing)[_-]?key"
)
_SET: Final = re.compile(
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

_PROGRAM: Final = (
    re.compile(r"[\s()\[\]{}<>$`]"),
    re.compile(r"\A[A-Za-z_.]+\Z"),
    re.compile(r"://|\A#[0-9a-fA-F]{3,8}\Z"),
)
"""What a value has that is a piece of a program, a word, a sentence, an address or a colour."""


def assignments(text: str) -> Iterator[Span]:
    """Values behind a name that says what they are, on lines that hold such a name."""
    end = 0
    for word in _SAYS.finditer(text):
        if word.start() < end:
            continue
        start = text.rfind("\n", 0, word.start()) + 1
        end = text.find("\n", word.end()) + 1 or len(text)
        for match in _SET.finditer(text, start, end):
            group = next(name for name in ("double", "single", "bare") if match[name] is not None)
            label = _assigned(match["name"])
            if label and _is_given(match["name"], match["sign"], match[group], group):
                yield Span(*match.span(group), label)


def _assigned(name: str) -> str | None:
    """What a name says of its value."""
    words = words_of(name)
    if not words or words[-1] in ABOUT or name in FOLDERS:
        return None
    if any(word.endswith(PASSWORDS) for word in words):
        return ASSIGNED[0]
    is_key = any(one in _KEYS and other == "KEY" for one, other in pairwise(words))
    return ASSIGNED[1] if is_key or any(word.endswith(TOKENS) for word in words) else None


def _is_given(name: str, sign: str, value: str, group: str) -> bool:
    """Whether a value is one, and no placeholder, no type and no piece of a program."""
    if not _is_filled_in(value) or value.lower() in _EMPTY or PATH.match(value):
        return False
    if name.isupper() and sign == "=":
        return len(value) >= 4 and "$" not in value[:2] and not NUMBER.fullmatch(value)
    if group == "bare" and (sign == ":" or NUMBER.fullmatch(value)):  # `token.py:12:` of a search
        return False
    return len(value) >= 6 and not any(shape.search(value) for shape in _PROGRAM)
