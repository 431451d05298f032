"""Settings and fixtures of all tests.

Only light modules are imported here: servers, stores and SDKs are imported by the fixture that
needs them, so that collecting the tests stays fast.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.support.fixtures import EmptyStore, LlamaWith

if TYPE_CHECKING:
    from brim.providers.local import LocalServer

# The default run uses the same examples every time, so that a failure comes from the change under
# test. `make test-all` uses the thorough profile, which searches for new examples.
settings.register_profile(
    "default",
    deadline=None,
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", parent=settings.get_profile("default"), max_examples=500, derandomize=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A background job of a shell, or one under `nohup`, ignores these signals, and so would every
# program that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # a handler is not inherited
    signal.signal(signal.SIGHUP, lambda *_: None)

# Tests start hundreds of Python processes: without bytecode caches, each would compile brim again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


gc.disable()  # until all tests are collected: a quarter of the time of collecting them


class _LazyModule(ModuleType):
    """A module that is imported when it is first used, not by `import`."""

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = import_module(self.__name__)
        vars(self).update(vars(module))
        return getattr(module, name)


sys.modules["anthropic"] = _LazyModule("anthropic")  # its import takes two seconds

ONE_AUTHORITY: Final = "one_authority.pem"
FOLDERS: Final = {
    "tests/gateway/accounts": "stores",
    "tests/gateway": "gateway",
    "tests/services": "services",
}
"""The marker of all tests in a folder; the first match counts."""
SUPPORT: Final = {
    "tests.support.terminal": "pty",
    "tests.support.shell.driver": "pty",
    "benchmarks.promises.shell_run": "pty",
    "tests.support.gateway.process": "gateway",
    "tests.support.providers.scripted": "process",
    "brim.testing": "process",
    "subprocess": "process",
    "socket": "process",
    "pexpect": "pty",
}
"""The marker of all tests in a module that imports from one of these modules."""
FIXTURES: Final = {
    "weights": "llama",
    "short_weights": "llama",
    "postgres_url": "stores",
    "valkey_url": "stores",
    "empty_store": "stores",
    "store": "stores",
}
"""The marker of tests that use a fixture."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in _markers(item):
            item.add_marker(marker)


def pytest_collection_finish() -> None:
    """Keep thousands of collected tests out of every garbage collection."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


def _markers(item: pytest.Item) -> set[str]:
    path = item.path.relative_to(item.config.rootpath).as_posix()
    folder = next((marker for name, marker in FOLDERS.items() if path.startswith(f"{name}/")), None)
    markers = {folder} if folder else set()
    if isinstance(item, pytest.Function):
        markers |= _module_markers(item.module.__name__)
        markers |= {FIXTURES[name] for name in item.fixturenames if name in FIXTURES}
        if is_hypothesis_test(item.function):
            markers.add("property")
    return markers


@cache
def _module_markers(name: str) -> frozenset[str]:
    """Return the markers that follow from the modules whose objects a test module holds."""
    markers = set()
    for value in vars(sys.modules[name]).values():
        if isinstance(value, ModuleType):
            origin = next((each for each in SUPPORT if value is sys.modules.get(each)), "")
        else:
            origin = getattr(value, "__module__", "")
        for module, marker in SUPPORT.items():
            if isinstance(origin, str) and (origin == module or origin.startswith(f"{module}.")):
                markers.add(marker)
    return frozenset(markers)


@pytest.fixture(autouse=True)
def clear_prefix_cache() -> None:
    """Start every test with an empty prefix cache, so that tests cannot depend on each other."""
    from brim.fitting.api import prefix_cache

    prefix_cache.clear()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let HTTP clients trust a single authority: loading all of them takes 15 ms per client."""
    import certifi

    end = "-----END CERTIFICATE-----\n"
    path = tmp_path_factory.mktemp("authority") / ONE_AUTHORITY
    path.write_text(Path(certifi.where()).read_text().partition(end)[0] + end)
    with pytest.MonkeyPatch.context() as patch:
        if "SSL_CERT_FILE" not in os.environ:
            patch.setenv("SSL_CERT_FILE", str(path))
        yield


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    from tests.support.accounts import postgres

    with postgres.run_server() as url:
        yield url


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    from tests.support.accounts import valkey

    with valkey.run_server() as url:
        yield url


@pytest.fixture
def empty_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmptyStore]:
    """Return the address of a new account store on a real server."""
    from tests.support.accounts import postgres, valkey

    def address(kind: str) -> str:
        if kind == "postgres":
            database = postgres.empty_database(request.getfixturevalue("postgres_url"))
            return stack.enter_context(database)
        if kind == "redis":
            return valkey.fresh(request.getfixturevalue("valkey_url"))
        return str(tmp_path / "accounts.sqlite3")

    with ExitStack() as stack:
        yield address


@pytest.fixture(scope="session")
def weights() -> Path:
    """The default model: the user's own copy, or one that is downloaded once for all test runs."""
    from platformdirs import user_cache_path

    from brim.providers.local import default_model, download_default

    if (path := default_model()) is not None:
        return path
    folder = user_cache_path("brim-tests", appauthor=False, ensure_exists=True)
    with (folder / "lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        if os.environ.get("SSL_CERT_FILE", "").endswith(ONE_AUTHORITY):
            patch.delenv("SSL_CERT_FILE")
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker downloads, the others wait
        return download_default(folder=folder)


@pytest.fixture(scope="session")
def short_weights(weights: Path) -> Path:
    """The default model with two of its 30 layers: fast, without meaningful replies."""
    from platformdirs import user_cache_path

    from tests.support.short_model import write_short_model

    folder = user_cache_path("brim-tests", appauthor=False) / "short"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker writes it, the others wait
        if not (path := folder / weights.name).exists():
            write_short_model(weights, folder / "unfinished", layers=2)
            (folder / "unfinished").rename(path)
    return path


@pytest.fixture(scope="session")
def llama_with(short_weights: Path) -> Iterator[LlamaWith]:
    """Real llama.cpp servers, one for each combination of settings, kept until the run ends.

    A test that needs a server of its own starts one.
    """
    from brim.providers.local import LocalServer

    with ExitStack() as stack:

        @cache
        def start(window: int, slots: int, template: str | None) -> LocalServer:
            server = LocalServer.start(
                short_weights, window=window, slots=slots, template=template, threads=1
            )
            return stack.enter_context(server)

        def get(*, window: int = 2048, slots: int = 1, template: str | None = None) -> LocalServer:
            return start(window, slots, template)

        yield get


@pytest.fixture(scope="session")
def llama(llama_with: LlamaWith) -> LocalServer:
    """A real llama.cpp server with a window of 2,048 tokens."""
    return llama_with()
