from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, settings
from platformdirs import user_cache_path

from brim.fitting.api import prefix_cache
from brim.providers.local import LocalServer, default_model, download_default
from tests.support.accounts import postgres, valkey

EmptyBooks = Callable[[str], str]

# The same examples every time, so that a red build is the change's own fault;
# HYPOTHESIS_PROFILE=thorough looks for new ones.
settings.register_profile(
    "brim",
    deadline=None,
    max_examples=80,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", parent=settings.get_profile("brim"), max_examples=3_000, derandomize=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "brim"))


@pytest.fixture(autouse=True)
def _forget() -> None:
    """No test leans on what another one made brim remember."""
    prefix_cache.clear()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres.running() as url:
        yield url


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    with valkey.running() as url:
        yield url


@pytest.fixture
def empty_books(request: pytest.FixtureRequest, tmp_path: Path) -> EmptyBooks:
    """Gives the address of books of a kind that nobody else knows, on a server that really runs."""

    def address(kind: str) -> str:
        if kind == "postgres":
            return postgres.fresh(request.getfixturevalue("postgres_url"))
        if kind == "redis":
            return valkey.fresh(request.getfixturevalue("valkey_url"))
        return str(tmp_path / "accounts.sqlite3")

    return address


class LlamaWith(Protocol):
    def __call__(
        self, *, window: int = 2048, slots: int = 1, template: str | None = None
    ) -> LocalServer: ...


@pytest.fixture(scope="session")
def weights() -> Path:
    """The default model: the user's own, or one that is fetched once for all test runs."""
    if (there := default_model()) is not None:
        return there
    folder = user_cache_path("brim-tests", appauthor=False, ensure_exists=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker fetches, the others wait for it
        return download_default(folder=folder)


@pytest.fixture(scope="session")
def llama_with(weights: Path) -> Iterator[LlamaWith]:
    """Real llama.cpp servers, each kept until the last test: the same settings, the same server.

    A test that needs a server to itself starts one.
    """
    with ExitStack() as stack:

        @cache
        def started(window: int, slots: int, template: str | None) -> LocalServer:
            server = LocalServer.start(
                weights, window=window, slots=slots, template=template, threads=1
            )
            return stack.enter_context(server)

        def chosen(
            *, window: int = 2048, slots: int = 1, template: str | None = None
        ) -> LocalServer:
            return started(window, slots, template)

        yield chosen


@pytest.fixture(scope="session")
def llama(llama_with: LlamaWith) -> LocalServer:
    """A real llama.cpp server with the small default model and a window of 2,048 tokens."""
    return llama_with()
