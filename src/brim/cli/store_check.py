"""The check of the account store in `brim doctor`; it imports the store only when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from brim.errors import BrimError

if TYPE_CHECKING:
    from brim.config import Config
    from brim.shell.setup import CheckResult


def check_account_store(config: Config, environment: Mapping[str, str]) -> CheckResult:
    """Check that the gateway's account store opens; a missing file is not created."""
    from brim.cli.accounts import run_with_store
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
