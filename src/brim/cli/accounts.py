"""The account store as the commands use it: its location, keys and caps, checked and shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, TypeVar

from brim.cli.options import load_config, terminal_width
from brim.cli.render import format_time
from brim.errors import BrimError, InputError
from brim.fitting.text_tables import format_columns
from brim.gateway.accounts.caps import ALL, Cap, each_user_scope, key_scope, scope_parts, to_dollars
from brim.gateway.accounts.editor import AccountEditor, describe_local_user
from brim.gateway.accounts.keys import ApiKey, no_active_key_error
from brim.gateway.accounts.store import AccountStore, CapUsage, read_cap_usage
from brim.models.pricing import format_dollars

if TYPE_CHECKING:
    from brim.config import Config
    from brim.shell.setup import CheckResult


Result = TypeVar("Result")

WILDCARD_HOSTS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses to listen on that clients cannot connect to, and their local counterparts."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """The address of an account store, and of its gateway."""

    address: str
    folder: Path
    """The folder of the default file."""
    gateway: str
    is_given: bool = False
    """Whether a flag set the address: then the file must exist."""

    def __str__(self) -> str:
        from brim.gateway.accounts import redact_address

        return redact_address(self.address, self.folder)

    def create(self) -> AccountStore:
        """Return the store, not opened yet."""
        from brim.gateway.accounts import create_store

        return create_store(self.address, self.folder)

    def write(self, work: Callable[[AccountStore], Awaitable[Result]]) -> Result:
        """Open the store, create it if it does not exist, run the work and close it."""
        return run_with_store(self.create(), work)

    def read(self, work: Callable[[AccountStore], Awaitable[Result]]) -> Result:
        """Open the store, run the work and close it; a missing file counts as an empty store."""
        from brim.gateway.accounts import create_store, file_path

        file = file_path(self.address, self.folder)
        if file is None or file.exists():
            return self.write(work)
        if self.is_given:
            raise InputError(f"Account store not found: {self}. `brim keys add` creates one.")
        with TemporaryDirectory() as folder:
            return run_with_store(create_store("", Path(folder)), work)


def run_with_store(
    store: AccountStore, work: Callable[[AccountStore], Awaitable[Result]]
) -> Result:
    """Open a store, run the work and close it."""
    import asyncio

    async def done() -> Result:
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(done())


def edit_as_local_user(store: AccountStore) -> AccountEditor:
    """Return an editor of the store that names this user in the audit log."""
    return AccountEditor(store, describe_local_user())


def locate_store(store: str | None) -> StoreLocation:
    """Return the location given by a flag, or by the configuration."""
    from brim.storage import state_folder

    settings = load_config({"gateway.store": store}).config.gateway
    host = WILDCARD_HOSTS.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host else host
    gateway = f"http://{host}:{settings.port}"
    return StoreLocation(settings.store, state_folder(os.environ), gateway, is_given=bool(store))


# Keys and caps


@dataclass(frozen=True, slots=True)
class AccountSnapshot:
    """All keys, and the caps of every scope with their use."""

    keys: Sequence[ApiKey]
    caps: Mapping[str, Sequence[CapUsage]]

    @classmethod
    async def of(cls, store: AccountStore) -> AccountSnapshot:
        found: dict[str, list[CapUsage]] = {}
        for usage in await read_cap_usage(store):
            found.setdefault(usage.scope, []).append(usage)
        return cls(await store.keys(), found)

    @property
    def active(self) -> list[ApiKey]:
        return [key for key in self.keys if key.revoked is None]

    def caps_of(self, scope: str) -> Sequence[CapUsage]:
        return self.caps.get(scope, ())

    @property
    def shared(self) -> list[str]:
        """The scopes with caps that several keys share: projects, then all keys."""
        several = [scope for scope in self.caps if scope_parts(scope)[0] in ("project", ALL)]
        return sorted(several, key=lambda scope: (scope == ALL, scope))

    @property
    def scopes(self) -> list[str]:
        """All scopes with caps: active keys in their order, then shared scopes."""
        own = [
            scope for key in self.active for scope in (key_scope(key.id), each_user_scope(key.id))
        ]
        return [*(scope for scope in own if self.caps_of(scope)), *self.shared]

    def find(self, name: str) -> ApiKey:
        """Return the active client key with this name or id."""
        for key in self.active:
            if name in (key.name, key.id):
                if key.is_operator:
                    raise InputError(f"{name} is an operator key, which cannot send requests.")
                return key
        raise no_active_key_error(name)

    def name_scope(self, scope: str) -> str:
        """Return a readable name of a scope."""
        kind, name = scope_parts(scope)
        if kind in ("key", "users"):
            found = next((key.name for key in self.active if key.id == name), name)
            return found if kind == "key" else f"each end user of {found}"
        return "all keys together" if kind == ALL else f"project {name}"

    def is_idle(self, scope: str) -> bool:
        """Return whether the scope is a project without keys."""
        kind, name = scope_parts(scope)
        return kind == "project" and all(key.project != name for key in self.active)


def format_caps(usages: Iterable[CapUsage]) -> str:
    """Return the caps as text, with how much of them is used."""
    texts = []
    for usage in usages:
        if scope_parts(usage.scope)[0] == "users":  # each of them uses it separately
            texts.append(str(usage.cap))
            continue
        text = f"{_format_amount(usage.spent, usage.cap)} of {usage.cap}"
        reserved = f", {_format_amount(usage.reserved, usage.cap)} reserved"
        texts.append(f"{text}{reserved if usage.reserved else ''}")
    return "; ".join(texts)


def _format_amount(number: int, cap: Cap) -> str:
    return format_dollars(to_dollars(number)) if cap.unit == "dollars" else f"{number:,}"


def cap_to_dict(usage: CapUsage) -> dict[str, Any]:
    """Return a cap for JSON; dollars are strings, because floats are not exact."""
    cap = usage.cap
    amounts: dict[str, Any] = {"cap": cap.limit, "spent": usage.spent, "reserved": usage.reserved}
    if cap.unit == "dollars":
        amounts = {name: str(to_dollars(amount)) for name, amount in amounts.items()}
    return {"unit": cap.unit, "period": cap.period, **amounts}


# The check of `brim doctor` and `:doctor`


def check_account_store(config: Config, environment: Mapping[str, str]) -> CheckResult:
    """Check that the gateway's account store opens; a missing file is not created."""
    from brim.gateway.accounts import create_store, file_path, redact_address
    from brim.shell.setup import CheckResult
    from brim.storage import state_folder

    name, store, folder = "account store", config.gateway.store, state_folder(environment)
    place, file = redact_address(store, folder), file_path(store, folder)
    try:
        if file is not None and not file.exists():
            return CheckResult(name, "ok", f"{place} will be created with the first key")
        keys = run_with_store(create_store(store, folder), lambda accounts: accounts.keys())
    except (BrimError, OSError) as error:
        return CheckResult(name, "bad", str(error), "set gateway.store to another address")
    active = sum(key.revoked is None for key in keys)
    return CheckResult(name, "ok", f"{place} opens; active keys: {active:,}")


# Tables, lines and JSON


def format_keys(shown: Sequence[ApiKey], snapshot: AccountSnapshot, with_ended: bool) -> list[str]:
    """Return a table of keys, and the caps that several keys share."""
    ended = ("revoked",) if with_ended else ()
    limited = ("rules",) if any(map(describe_rules, shown)) else ()
    cells = [("name", "id", "project", "created", *ended, *limited, "spent")]
    for key in shown:
        revoked = (_format_day(key.revoked),) if with_ended else ()
        spent = format_caps(snapshot.caps_of(key_scope(key.id))) or "no cap"
        use = "operator" if key.is_operator else spent
        rules = (describe_rules(key),) if limited else ()
        made = _format_day(key.created)
        cells.append((key.name, key.id, key.project, made, *revoked, *rules, use))
    lines = format_columns(cells, terminal_width(sys.stdout), "<" * len(cells[0]))
    return [*lines, "", *format_scopes(snapshot, snapshot.shared)] if snapshot.shared else lines


def describe_rules(key: ApiKey) -> str:
    """Return when a key ends, its models, labels and note; the empty string if it has none."""
    rules, parts = key.rules, []
    if rules.expires is not None:
        parts.append(f"until {_format_day(rules.expires - 1)}")
    if rules.models:
        parts.append("models " + ", ".join(rules.models))
    if rules.labels:
        parts.append(", ".join(rules.labels))
    return "; ".join(parts + ([rules.note] if rules.note else []))


def format_scopes(snapshot: AccountSnapshot, scopes: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for scope in scopes:
        text = f"{snapshot.name_scope(scope)}: {format_caps(snapshot.caps_of(scope)) or 'no cap'}"
        columns = terminal_width(sys.stdout) or len(text)
        lines += wrap(text, columns, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def scopes_to_dicts(snapshot: AccountSnapshot, scopes: Iterable[str]) -> list[dict[str, Any]]:
    return [
        {
            "scope": scope,
            "name": snapshot.name_scope(scope),
            "caps": list(map(cap_to_dict, snapshot.caps_of(scope))),
        }
        for scope in scopes
    ]


def key_to_dict(key: ApiKey, caps: Iterable[CapUsage]) -> dict[str, Any]:
    return {
        "name": key.name,
        "id": key.id,
        "project": key.project,
        "operator": key.is_operator,
        "created": format_time(key.created),
        "revoked": None if key.revoked is None else format_time(key.revoked),
        "expires": None if key.rules.expires is None else format_time(key.rules.expires),
        "models": list(key.rules.models),
        "note": key.rules.note,
        "labels": dict(label.split("=", 1) for label in key.rules.labels),
        "caps": list(map(cap_to_dict, caps)),
    }


def _format_day(seconds: float | None) -> str:
    return "" if seconds is None else format_time(seconds)[:10]
