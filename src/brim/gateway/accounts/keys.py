"""API keys of the gateway. A secret is shown once and stored only as a hash."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from datetime import date
from functools import cached_property
from typing import Any, Final, NamedTuple

from brim.errors import InputError
from brim.gateway.accounts.caps import (
    ALL,
    DAY_SECONDS,
    Cap,
    Unit,
    key_scope,
    load_caps,
    project_scope,
    start_of_day,
    user_scope,
)

KEY_PREFIX: Final = "brim-"
MAX_EXPIRY: Final = 253_402_300_799.0
"""The last second of the year 9999; later times have no date."""
_DURATION: Final = re.compile(r"(?P<number>[1-9][0-9]{0,4})(?P<unit>[hdw])")
_SECONDS: Final = {"h": 3_600, "d": DAY_SECONDS, "w": 7 * DAY_SECONDS}
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}=[^\0]{0,64}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True, slots=True)
class KeyRules:
    """What a key may do, besides its caps. These can be changed."""

    expires: float | None = None
    """When the key ends, in seconds since 1970; None: never."""
    models: tuple[str, ...] = ()
    """Names and patterns of the models it may use; empty: all."""
    note: str = ""
    """The operator's own words about the key."""
    labels: tuple[str, ...] = ()
    """Labels such as `team=search`, ordered by name."""

    def dump(self) -> str:
        """Return the rules as the text that stores keep; empty if there are none."""
        return "" if self == NO_RULES else json.dumps(astuple(self))

    @classmethod
    def load(cls, text: str | None) -> KeyRules:
        """Return the rules in a text of `dump`."""
        if not text:
            return NO_RULES
        expires, models, note, labels = json.loads(text)
        return cls(expires, tuple(models), note, tuple(labels))


NO_RULES: Final = KeyRules()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret, which is not stored."""

    id: str
    name: str
    project: str = ""
    is_operator: bool = False
    """Whether it opens the dashboard instead of sending model requests."""
    created: float = 0.0
    revoked: float | None = None
    rules: KeyRules = NO_RULES

    @property
    def columns(self) -> tuple[str, str, str, bool, float, float | None, str]:
        """The fields as stores keep them."""
        facts = (self.id, self.name, self.project, self.is_operator, self.created, self.revoked)
        return (*facts, self.rules.dump())

    @classmethod
    def of(cls, columns: Sequence[Any]) -> ApiKey:
        """Return the key with these columns, in the order of the fields."""
        id, name, project, is_operator, created, revoked, rules = columns
        return cls(id, name, project, bool(is_operator), created, revoked, KeyRules.load(rules))


class SecretRecord(NamedTuple):
    """A secret of a key, as a hash."""

    hashed: str
    key: str
    expires: float | None = None
    """When it ends, because the key was rotated; None: never."""


@dataclass(frozen=True)
class Access:
    """An active key, and all caps that apply to it."""

    key: ApiKey
    caps: tuple[tuple[str, Cap], ...] = ()
    """Caps with their scopes: of the key, of its project, and of all keys."""
    user_caps: tuple[Cap, ...] = ()
    """Caps that each end user of the key has."""
    user: str = ""
    """The end user, if a token of the sign-in provider names it."""

    @classmethod
    def of(cls, columns: Sequence[Any]) -> Access:
        """Return the access with the columns of a key, and the dumped caps of each scope."""
        key = ApiKey.of(columns[:7])
        *lists, users = columns[7:]
        scopes = (key_scope(key.id), project_scope(key.project), ALL)
        pairs = zip(scopes, lists, strict=True)
        caps = tuple((scope, cap) for scope, text in pairs for cap in load_caps(text))
        return cls(key, caps, load_caps(users))

    @cached_property
    def capped_units(self) -> frozenset[Unit]:
        """The units in which spending is limited, not only its rate."""
        caps = (*(cap for _, cap in self.caps), *self.user_caps)
        return frozenset(cap.unit for cap in caps if not cap.is_rate)

    def caps_for(self, user: str) -> tuple[tuple[str, Cap], ...]:
        """Return the caps that apply to a request of an end user, with their scopes."""
        if not self.user_caps:
            return self.caps
        scope = user_scope(self.key.id, user)
        return (*self.caps, *((scope, cap) for cap in self.user_caps))


def create_key(
    name: str, project: str = "", *, is_operator: bool = False, rules: KeyRules = NO_RULES
) -> tuple[ApiKey, str]:
    """Return a new key and its secret, which cannot be retrieved later."""
    check_name("key", name)
    if project:
        check_name("project", project)
    id = f"k_{secrets.token_hex(6)}"
    key = ApiKey(id, name, project, is_operator, time.time(), rules=rules)
    return key, create_secret()


def create_secret() -> str:
    """Return a new secret of a key."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def change_labels(labels: Sequence[str], changes: Iterable[str]) -> tuple[str, ...]:
    """Return labels with changes such as `team=search`, ordered by name; `team=` removes one.

    Raise `InputError` for a label without a name.
    """
    found = dict(label.split("=", 1) for label in labels)
    for text in changes:
        if not _LABEL.fullmatch(text):
            raise InputError(
                f"Invalid label: {text!r}. Write NAME=VALUE, such as team=search, with at most 64 "
                "characters in each."
            )
        name, value = text.split("=", 1)
        found[name] = value
    return tuple(f"{name}={found[name]}" for name in sorted(found) if found[name])


def parse_duration(text: str) -> float | None:
    """Return the seconds of `12h`, `30d` or `2w`; None if the text is no duration."""
    match = _DURATION.fullmatch(text)
    return None if match is None else int(match["number"]) * _SECONDS[match["unit"]]


def parse_overlap(text: str) -> float:
    """Return the seconds that a replaced secret stays valid: `24h`, or `0`."""
    seconds = 0.0 if text == "0" else parse_duration(text)
    if seconds is None:
        raise InputError(f"Invalid overlap: {text!r}. Write a duration (12h, 7d, 2w), or 0.")
    return seconds


def parse_expiry(text: str, now: float) -> float | None:
    """Return the end of a key: after `30d`, `12h` or `2w`, after a date, or None for `never`.

    Raise `InputError` if it is none of these, or in the past.
    """
    if text == "never":
        return None
    if (seconds := parse_duration(text)) is not None:
        return now + seconds
    try:
        end = min(start_of_day(date.fromisoformat(text)) + DAY_SECONDS, MAX_EXPIRY)
    except ValueError:
        raise InputError(
            f"Invalid expiry: {text!r}. Write a duration (12h, 30d, 2w), the last day "
            "(2026-12-31, in UTC), or never."
        ) from None
    if end <= now:
        raise InputError(f"Invalid expiry: {text} is in the past.")
    return end


def check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"Invalid {what} name: {name!r}. Use at most 64 letters, digits and . _ - @."
        )


def hash_secret(secret: str) -> str:
    """Return the hash to store. The secret is long and random, so it needs no salt."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def unique_names(keys: Sequence[ApiKey]) -> dict[str, str]:
    """Return a name for each key id, with the id appended if several keys share the name."""
    times = Counter(key.name for key in keys)
    return {k.id: k.name if times[k.name] == 1 else f"{k.name} ({k.id})" for k in keys}


def duplicate_name_error(name: str) -> InputError:
    return InputError(f"Key name already in use: {name}. Revoke that key, or choose another name.")


def no_active_key_error(name: str) -> InputError:
    return InputError(f"No active key: {name}. `brim keys list` shows all keys.")
