"""Invalid URLs of stores are reported immediately, without the password."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.errors import InputError
from brim.gateway.accounts import create_store, redact_address

NO_PORTS = [
    "postgresql://brim:hush@host:99999/db",
    "postgresql://brim:hush@one:5432,two:65536/db",
    "postgresql://brim:hush@[::1]:0/db",
    "postgresql://brim:hush@/db?host=host&port=99999",
    "redis://:hush@host:99999/0",
    "valkeys://brim:hush@[::1]:123456789123456789/0",
]
CUT = [
    "postgresql://brim:hush[ss@host/db",
    "postgresql://brim:12/hush@host/db",
    "redis://brim:hush[ss@host/0",
    "redis://brim:12/hush@host/0",
    "redis://brim:12?hush@host",
]


@pytest.mark.parametrize("address", NO_PORTS)
def test_an_invalid_port_is_reported(address: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Invalid port.*from 1 to 65535") as rejected:
        create_store(address, tmp_path)
    assert "hush" not in str(rejected.value)


@pytest.mark.parametrize("address", CUT)
def test_an_unescaped_password_is_explained_and_not_shown(address: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="%5B") as rejected:
        create_store(address, tmp_path)
    assert "hush" not in str(rejected.value)
    assert rejected.value.__cause__ is None


def test_an_invalid_address_is_shown_without_its_password(tmp_path: Path) -> None:
    assert redact_address("postgresql://brim:hush[ss@host/db", tmp_path) == "postgresql://…"
