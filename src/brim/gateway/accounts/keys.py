"""Keys: who may use the gateway, and for what. A key is shown once and stored as its hash."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from brim.errors import InputError
from brim.gateway.accounts.caps import Cap

KEY_PREFIX: Final = "brim-"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is listed; the secret itself is nowhere."""

    id: str
    name: str
    project: str = ""
    is_operator: bool = False
    """Whether it opens the operator's page, and nothing else."""
    created: float = 0.0
    revoked: float | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """A living key, and every cap that what it spends counts against."""

    key: ApiKey
    caps: tuple[tuple[str, Cap], ...] = ()
    """Each with its scope: the key's own, its project's, and those of all together."""

    def has_cap_in(self, unit: str) -> bool:
        return any(cap.unit == unit for _, cap in self.caps)


def create_key(name: str, project: str = "", *, is_operator: bool = False) -> tuple[ApiKey, str]:
    """A key and its secret, which nobody can ask for again."""
    check_name("key", name)
    if project:
        check_name("project", project)
    key = ApiKey(f"k_{secrets.token_hex(6)}", name, project, is_operator, time.time())
    return key, KEY_PREFIX + secrets.token_urlsafe(32)


def check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is no name for a {what}: letters, digits and . _ - @, at most 64 of them"
        )


def hash_secret(secret: str) -> str:
    """What is stored of a secret. It is random and long, so a plain hash tells nobody anything."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def unique_names(keys: Sequence[ApiKey]) -> dict[str, str]:
    """What keys are called, by their ids; with the id where several had the same name."""
    times = Counter(key.name for key in keys)
    return {k.id: k.name if times[k.name] == 1 else f"{k.name} ({k.id})" for k in keys}


def duplicate_name_error(name: str) -> InputError:
    return InputError(f"there is a key named {name} already; revoke it, or choose another")


def no_active_key_error(name: str) -> InputError:
    return InputError(f"there is no living key {name}; `brim keys list` shows them")
