"""API keys of the gateway. A secret is shown once and stored only as a hash."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from brim.errors import InputError
from brim.gateway.accounts.caps import ALL, Cap, key_scope, load_caps, project_scope

KEY_PREFIX: Final = "brim-"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


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

    @classmethod
    def of(cls, columns: Sequence[Any]) -> ApiKey:
        """Return the key with these columns, in the order of the fields."""
        id, name, project, is_operator, created, revoked = columns
        return cls(id, name, project, bool(is_operator), created, revoked)


@dataclass(frozen=True, slots=True)
class Access:
    """An active key, and all caps that apply to it."""

    key: ApiKey
    caps: tuple[tuple[str, Cap], ...] = ()
    """Caps with their scopes: of the key, of its project, and of all keys."""

    @classmethod
    def of(cls, columns: Sequence[Any]) -> Access:
        """Return the access with the columns of a key, and the dumped caps of each scope."""
        key = ApiKey.of(columns[:6])
        scopes = (key_scope(key.id), project_scope(key.project), ALL)
        lists = zip(scopes, columns[6:], strict=True)
        return cls(key, tuple((scope, cap) for scope, text in lists for cap in load_caps(text)))

    def has_cap_in(self, unit: str) -> bool:
        return any(cap.unit == unit for _, cap in self.caps)


def create_key(name: str, project: str = "", *, is_operator: bool = False) -> tuple[ApiKey, str]:
    """Return a new key and its secret, which cannot be retrieved later."""
    check_name("key", name)
    if project:
        check_name("project", project)
    key = ApiKey(f"k_{secrets.token_hex(6)}", name, project, is_operator, time.time())
    return key, KEY_PREFIX + secrets.token_urlsafe(32)


def check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"Invalid {what} name: {name!r}. Use at most 64 letters, digits and . _ - @."
        )


def hash_secret(secret: str) -> str:
    """Return the hash to store. The secret is long and random, so it needs no salt."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def unique_names(keys: Sequence[ApiKey]) -> dict[str, str]:
    """Return a name for each key id, with the id appended if several keys share the name."""
    times = Counter(key.name for key in keys)
    return {k.id: k.name if times[k.name] == 1 else f"{k.name} ({k.id})" for k in keys}


def duplicate_name_error(name: str) -> InputError:
    return InputError(f"Key name already in use: {name}. Revoke that key, or choose another name.")


def no_active_key_error(name: str) -> InputError:
    return InputError(f"No active key: {name}. `brim keys list` shows all keys.")
