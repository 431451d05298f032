"""Programs that these tests need; a missing one fails them with its name."""

from __future__ import annotations

import shutil
from typing import Final

import pytest

PACKAGES: Final = {
    "bash": "bash",
    "chromium": "chromium",
    "fish": "fish",
    "haproxy": "haproxy",
    "nginx": "nginx-light",
    "zsh": "zsh",
}
"""Debian packages of the programs."""


def program(name: str) -> str:
    """Return the path of a program, also in `sbin`."""
    found = {each: _path(each) for each in PACKAGES}
    missing = [package for each, package in PACKAGES.items() if found[each] is None]
    path = found[name]
    if path is None:
        line = f"apt-get install -y --no-install-recommends {' '.join(missing)}"
        pytest.fail(f"{name} is not installed; on Debian: {line}", pytrace=False)
    return path


def _path(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")


@pytest.fixture(scope="session")
def chromium() -> str:
    return program("chromium")


@pytest.fixture(scope="session")
def haproxy() -> str:
    return program("haproxy")


@pytest.fixture(scope="session")
def nginx() -> str:
    return program("nginx")
