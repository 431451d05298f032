"""The account store as the commands use it: its location, keys and caps, and its check."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeVar

from brim.cli.options import load_config
from brim.errors import BrimError, InputError
from brim.gateway.accounts.caps import (
    ALL,
    Cap,
    each_user_scope,
    key_scope,
    scope_parts,
    to_dollars,
)
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
