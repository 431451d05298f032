"""Context-length errors, found by the phrases of `data/overflow.toml`.

Every server words this error differently, and most report their numbers only in the text. The text
may be in an error object, in a flat body, in an event of a stream, or in a string inside the error
of a proxy. So a body is searched for the texts of the server itself (echoes of the conversation are
skipped), and each text is matched against the phrases.

Not detected, because there is no text: a server that silently truncates the prompt, an empty
response, a 400 without a body.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, NamedTuple

from brim.data import load_table
from brim.errors import Overflow

Kind = Literal["window", "rate", "size"]

MAX_BODY: Final = 1 << 20
"""Larger bodies are not parsed; only their beginning is read as text."""
MAX_TEXT: Final = 1 << 16
MAX_EXCERPT: Final = 300
MAX_VALUES: Final = 500
"""Values of a body that are inspected."""

_FINISHES: Final = ("model_context_window_exceeded", "model_length")
_FINISH_KEYS: Final = ("finish_reason", "stop_reason", "native_finish_reason")
_TEXT_KEYS: Final = (
    *("code", "type", "__type", "status", "error_type", "error_code", "reason", "param"),
    *("error", "errors", "message", "Message", "msg", "detail", "details", "raw", "body"),
    *("error_message", "error_msg", "errorMessage", "status_msg", "title", "description"),
    *("cause", "exception"),
)
_CONTAINER_KEYS: Final = (
    *("response", "choices", "delta", "metadata", "data", "base_resp", "upstream"),
)
"""Followed only into objects: as text, they contain the model's output."""
_USAGE_KEYS: Final = (
    *("prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
)


def parse_overflow(
    status: int | None, body: Mapping[str, Any] | str | bytes | None
) -> Overflow | None:
    """Return the context-length error in a response; None if there is none.

    The body may be that of an error, an event of a stream, or a complete reply whose finish reason
    means it. It may contain anything; nothing is raised.
    """
    if status in (401, 402, 403, 404):
        return None
    given = _decode(body)
    if isinstance(given, str) and status is not None and status < 400:
        return None
    error = _collect_text(given)
    found = _match_fields(error) or _match_phrases(error)
    if found is not None:
        return found
    if error.finish in _FINISHES:
        return Overflow(None, error.used, text=error.finish)
    if status == 413 and not _has_other_cause(error):
        return Overflow(None, None, kind="size", text=error.excerpt())
    return None


@dataclass(slots=True)
class _ErrorText:
    """The texts and numbers of a response, without echoes of the conversation."""

    texts: list[str] = field(default_factory=list)
    prompt: int | None = None
    window: int | None = None
    finish: str = ""
    used: int | None = None

    def excerpt(self, of: str = "") -> str:
        sentences = (text for text in (of, *self.texts) if " " in text.strip())
        text = " ".join(next(sentences, of)[: 4 * MAX_EXCERPT].split())
        return text if len(text) <= MAX_EXCERPT else text[: MAX_EXCERPT - 1] + "…"


def _collect_text(body: object) -> _ErrorText:
    error = _ErrorText()
    waiting = deque([body])
    room = MAX_TEXT
    for _ in range(MAX_VALUES):
        if not waiting or room <= 0:
            break
        match _decode(waiting.popleft()):
            case str(text):
                error.texts.append(text[:room])
                room -= len(text)
            case Mapping() as value:
                _collect_fields(error, value)
                waiting += [value[key] for key in _TEXT_KEYS if key in value]
                waiting += [
                    value[key]
                    for key in _CONTAINER_KEYS
                    if isinstance(value.get(key), Mapping | list)
                ]
            case list() as values:
                waiting += values[:MAX_VALUES]
    return error


def _collect_fields(error: _ErrorText, value: Mapping[str, Any]) -> None:
    """Collect the numbers and the finish reason that have fields of their own."""
    prompt, window = value.get("n_prompt_tokens"), value.get("n_ctx")
    if _is_count(prompt) and _is_count(window):
        error.prompt, error.window = prompt, window
    for key in _FINISH_KEYS:
        if value.get(key) in _FINISHES:
            error.finish = value[key]
    usage = value.get("usage")
    if isinstance(usage, Mapping):
        counts = [usage[key] for key in _USAGE_KEYS if _is_count(usage.get(key))]
        error.used = sum(counts) if counts else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _decode(body: object) -> object:
    """Parse text: JSON into its value, a stream into its events."""
    if isinstance(body, bytes | bytearray):
        body = bytes(body[:MAX_BODY]).decode("utf-8", "replace")
    if not isinstance(body, str):
        return body
    text = body[:MAX_BODY].strip().removeprefix("\ufeff")
    if text.startswith(("{", "[", '"')):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text[:MAX_TEXT]
    if text.startswith(("data:", "event:")):
        lines = text[:MAX_TEXT].splitlines()
        return [line[5:] for line in lines if line.startswith("data:")]
    return text[:MAX_TEXT]


def _match_fields(error: _ErrorText) -> Overflow | None:
    if error.prompt is None or error.window is None or error.prompt < error.window:
        return None
    return Overflow(error.window, error.prompt, text=error.excerpt())


def _match_phrases(error: _ErrorText) -> Overflow | None:
    phrases = load_phrases()
    plain = [(_normalize(text), text) for text in error.texts]
    for kind, phrase in phrases.specific:
        for text, original in plain:
            found = _compile(phrase).search(text)
            if found and (overflow := _build_overflow(kind, found, error.excerpt(original))):
                return overflow
    if _has_other_cause(error):
        return None
    for phrase in phrases.generic:
        for text, original in plain:
            if _compile(phrase).search(text):
                return Overflow(None, None, text=error.excerpt(original))
    return None


def _has_other_cause(error: _ErrorText) -> bool:
    cause = load_phrases().other_cause
    return any(cause.search(_normalize(text)) for text in error.texts)


def _build_overflow(kind: Kind, found: re.Match[str], text: str) -> Overflow | None:
    parts = found.groupdict()

    def number(name: str) -> int | None:
        digits = parts.get(name)
        return int(re.sub(r"\D", "", digits)) if digits else None

    limit, sent = number("limit"), number("sent")
    if kind == "rate" and limit is not None and sent is not None and sent <= limit:
        return None  # it fits into another minute
    if sent is not None:
        sent += number("more") or 0
    return Overflow(limit, sent, number("output"), kind, bool(parts.get("floor")), text)


def _normalize(text: str) -> str:
    """Lower the case, drop quotes, brackets and colons, and resolve nested escapes."""
    text = re.sub(r"\\+", r"\\", text)
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text)
    text = re.sub(r"\\[nrt]|[(){}\[\]:;\s]", " ", text)
    text = re.sub(r"[\\\"'`’*]", "", text)
    return re.sub(r" {2,}", " ", text).lower()


# Phrases


class Phrases(NamedTuple):
    specific: list[tuple[Kind, str]]
    generic: list[str]
    other_cause: re.Pattern[str]
    """Signs that a generic phrase means something else: another limit, or a temporary one."""


@cache
def load_phrases() -> Phrases:
    tables = load_table("overflow")
    specific = [
        (table["kind"], phrase) for table in tables["specific"] for _, phrase in table["phrases"]
    ]
    generic = tables["generic"]
    phrases = [phrase for _, phrase in generic["phrases"]]
    return Phrases(specific, phrases, re.compile(generic["other_cause"]))


_NUMBER: Final = r"(?:[0-9]{1,3}(?:[,_][0-9]{3})+|[0-9]{1,15})(?![0-9])"


@cache
def _compile(phrase: str) -> re.Pattern[str]:
    """Compile a phrase; the part after each gap is atomic, so that searching is linear."""
    first, *rest = phrase.split("…")
    pattern = first + "".join(f"(?>.{{0,200}}?{part})" for part in rest)
    pattern = re.sub(r"<(limit|sent|more|output)>", rf"(?P<\1>{_NUMBER})", pattern)
    pattern = pattern.replace("<n>", _NUMBER).replace("<floor>", "(?P<floor>at least )?")
    return re.compile(pattern)
