"""What is in order and what is not: one check after the other, each with what to do about it.

`run` is behind `brim doctor` and `:doctor`. It changes nothing, asks servers only what costs
nothing, and shows no key: whatever is said goes through the masker first.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from brim.errors import BrimError, ConfigError
from brim.providers.from_config import LOCAL
from brim.shell.approval.secret_masker import Masker
from brim.shell.setup.discovery import PORTS, find_models

if TYPE_CHECKING:
    from brim.config import Config, ConfigFile, LoadedConfig
    from brim.gateway.accounts.store import AccountStore

CheckState = Literal["ok", "warn", "bad"]

PATIENCE: Final = 3.0
"""Seconds that a server may take for an answer."""
NARROW: Final = 60
"""Columns below which lines become hard to read."""

EXTRAS: Final[Mapping[str, tuple[Sequence[str], str]]] = {
    "client": (("httptools", "platformdirs"), "talking to servers"),
    "shell": (
        ("prompt_toolkit", "rich", "mcp", "pathspec", "tree_sitter", "tree_sitter_bash"),
        "the shell",
    ),
    "gateway": (("orjson", "prometheus_client", "starlette"), "brim serve"),
    "local": (("xllamacpp",), "the embedded model"),
    "models": (("splintr", "tokenizers"), "exact counts for open models"),
}
"""What can be installed beside, the modules that show that it is, and what it is for."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Something that was looked at, what came of it, and what can be done."""

    name: str
    state: CheckState
    said: str
    advice: str | None = None


def run_checks(
    loaded: LoadedConfig | ConfigError,
    environment: Mapping[str, str],
    *,
    ports: Sequence[int] = PORTS,
    patience: float = PATIENCE,
) -> Iterator[CheckResult]:
    """All checks, each as soon as it is made; a wrong configuration is one of them."""
    from brim.config import Config

    config = Config() if isinstance(loaded, ConfigError) else loaded.config
    masker = _masker(config, environment)
    for check in _all_checks(loaded, config, environment, ports, patience):
        advice = check.advice and masker.mask(check.advice).text
        yield replace(check, said=masker.mask(check.said).text, advice=advice)


def _masker(config: Config, environment: Mapping[str, str]) -> Masker:
    models = config.models.values()
    keys = [environment.get(model.key_env or "") for model in models]
    headers = [value for model in models for value in model.headers.values()]
    return Masker(environment, also=[*filter(None, keys), *headers])


def _all_checks(
    loaded: LoadedConfig | ConfigError,
    config: Config,
    environment: Mapping[str, str],
    ports: Sequence[int],
    patience: float,
) -> Iterator[CheckResult]:
    yield _check_version()
    yield from _check_extras()
    yield from _check_configuration(loaded)
    for name in config.models:
        yield from _check_model(name, config, environment, patience)
    others = list(_find_unconfigured(config, environment, ports, patience / 3))
    yield from others
    served = [model for model in config.models.values() if model.endpoint]
    yield _check_embedded_model(is_needed=not served and not others)
    yield _check_state_folder(environment)
    yield _books(config, environment)
    yield from _check_terminal(environment)


# What is installed


def _check_version() -> CheckResult:
    from brim import __version__

    system = f"{platform.system()} {platform.machine()}".strip()
    said = f"brim {__version__}, Python {platform.python_version()}, {system}"
    return CheckResult("version", "ok", said)


def _check_extras() -> Iterator[CheckResult]:
    missing = [
        (extra, purpose)
        for extra, (modules, purpose) in EXTRAS.items()
        if not all(find_spec(module) for module in modules)
    ]
    for extra, purpose in missing:
        said = f"{extra} is not installed: {purpose}"
        yield CheckResult("extras", "warn", said, f"pip install 'brim[{extra}]'")
    if not missing:
        yield CheckResult("extras", "ok", f"{', '.join(EXTRAS)} are installed")


# What is set


def _check_configuration(loaded: LoadedConfig | ConfigError) -> Iterator[CheckResult]:
    if isinstance(loaded, ConfigError):
        for problem in loaded.problems:
            yield CheckResult(
                "configuration", "bad", problem, "`brim config --example` shows every key"
            )
        return
    for file in loaded.files:
        yield _check_file(file)


def _check_file(file: ConfigFile) -> CheckResult:
    from brim.config import home_as_tilde

    path = home_as_tilde(file.path)
    if file.state == "not trusted":
        return CheckResult(
            "configuration", "warn", f"{path} is not used: not trusted", "brim config trust"
        )
    said = f"{path} is used" if file.state == "used" else f"there is no {path}; defaults count"
    return CheckResult("configuration", "ok", said)


def _check_model(
    name: str, config: Config, environment: Mapping[str, str], patience: float
) -> Iterator[CheckResult]:
    """A configured model, as it stands in the configuration and as its server tells it."""
    if config.models[name].endpoint is None and name == LOCAL:
        yield CheckResult(f"model {name}", "ok", "is the embedded one")
        return
    try:
        from brim.shell.setup.model_checks import check_model
    except ImportError as missing:
        yield CheckResult(f"model {name}", "bad", str(missing), "pip install 'brim[client]'")
        return
    for aspect, state, said, advice in check_model(name, config, environment, patience):
        yield CheckResult(f"{name}: {aspect}", state, said, advice)


# What else there is


def _find_unconfigured(
    config: Config, environment: Mapping[str, str], ports: Sequence[int], timeout: float
) -> Iterator[CheckResult]:
    """Models that could be had and are not configured, a line for each server."""
    configured = {_netloc(model.endpoint) for model in config.models.values()}
    found = find_models(environment, ports=ports, timeout=timeout)
    told = {each.how: each for each in found if _netloc(each.model.endpoint) not in configured}
    for how, each in told.items():
        model = f'endpoint = "{each.model.endpoint}", model = "{each.model.model}"'
        key = f', key_env = "{each.model.key_env}"' if each.model.key_env else ""
        style = ', format = "anthropic"' if each.model.format == "anthropic" else ""
        advice = f"to use it, add to the configuration: models.NAME = {{ {model}{style}{key} }}"
        yield CheckResult("found", "ok", how, advice)


def _netloc(url: str | None) -> str:
    return urlsplit(url or "").netloc.lower().replace("localhost", "127.0.0.1")


def _check_embedded_model(*, is_needed: bool) -> CheckResult:
    """The model for this machine; without any other it would be good to have."""
    from brim.providers.local import SMOLLM2, default_model

    name, advice = "embedded model", "`brim local` gets it"
    try:
        path = default_model()
    except BrimError as error:
        return CheckResult(name, "warn" if is_needed else "ok", str(error), None)
    if path is None:
        said = f"{SMOLLM2.file} is not here ({SMOLLM2.wheel_size / 1e6:.0f} MB)"
        return CheckResult(name, "warn" if is_needed else "ok", said, advice)
    if find_spec("xllamacpp") is None:
        said = f"{path} is here, but llama.cpp is not"
        return CheckResult(name, "warn", said, "pip install 'brim[local]'")
    return CheckResult(name, "ok", str(path))


# This machine


def _check_state_folder(environment: Mapping[str, str]) -> CheckResult:
    """Where conversations and spending are kept: writable, and nobody else's business."""
    from brim.config import Trust, home_as_tilde

    name, folder = "state folder", Trust.of(environment).path.parent
    path = home_as_tilde(folder)
    if not folder.exists():
        above = next(each for each in folder.parents if each.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return CheckResult(name, "ok", f"{path} will be made when it is needed")
        return CheckResult(name, "bad", f"{path} cannot be made", "BRIM_STATE names another folder")
    try:
        with tempfile.TemporaryFile(dir=folder):
            mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError as error:
        said = f"{path} cannot be written to: {error.strerror}"
        return CheckResult(name, "bad", said, "BRIM_STATE names another folder")
    if mode & 0o077 and os.name == "posix":
        return CheckResult(name, "warn", f"others can look into {path}", f"chmod 700 {path}")
    return CheckResult(name, "ok", f"{path} can be written to")


def _books(config: Config, environment: Mapping[str, str]) -> CheckResult:
    """Where the gateway keeps keys and caps, and whether they open; no file is made for that."""
    from brim.gateway.accounts import create_store, file_path
    from brim.gateway.accounts.addresses import redact_address
    from brim.storage import state_folder

    name, store, folder = "gateway's books", config.gateway.store, state_folder(environment)
    place, file = redact_address(store, folder), file_path(store, folder)
    try:
        if file is not None and not file.exists():
            return CheckResult(name, "ok", f"{place} will be made with the first key")
        living = asyncio.run(_living_keys(create_store(store, folder)))
    except (BrimError, OSError) as error:
        return CheckResult(name, "bad", str(error), "gateway.store names where they are")
    return CheckResult(name, "ok", f"{place} opens; living keys: {living:,}")


async def _living_keys(books: AccountStore) -> int:
    await books.open()
    try:
        return sum(key.revoked is None for key in await books.keys())
    finally:
        await books.close()


def _check_terminal(environment: Mapping[str, str]) -> Iterator[CheckResult]:
    name = "terminal"
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield CheckResult(name, "ok", "this is none, so output is plain")
    else:
        yield _check_screen(environment)
    encoding = (getattr(sys.stdout, "encoding", None) or "unknown").lower()
    if encoding.replace("-", "") != "utf8":
        advice = "export LC_ALL=C.UTF-8, or another locale with UTF-8"
        yield CheckResult(
            name, "warn", f"its encoding is {encoding}, which lacks characters", advice
        )


def _check_screen(environment: Mapping[str, str]) -> CheckResult:
    kind = environment.get("TERM") or "unknown"
    columns = shutil.get_terminal_size().columns
    colours = (
        "no colours (NO_COLOR)" if environment.get("NO_COLOR") else _describe_colors(environment)
    )
    said = f"{kind}, {columns} columns, {colours}"
    if kind in ("dumb", "unknown"):
        return CheckResult("terminal", "warn", said, "export TERM=xterm-256color, if it is one")
    if columns < NARROW:
        return CheckResult("terminal", "warn", said, f"make it {NARROW} columns wide or more")
    return CheckResult("terminal", "ok", said)


def _describe_colors(environment: Mapping[str, str]) -> str:
    if environment.get("COLORTERM") in ("truecolor", "24bit"):
        return "all colours"
    return "256 colours" if "256" in environment.get("TERM", "") else "a few colours"


def is_healthy(checks: Sequence[CheckResult]) -> bool:
    """Whether nothing is bad."""
    return all(check.state != "bad" for check in checks)


def format_check(check: CheckResult) -> Iterator[str]:
    """A check for people."""
    yield f"{check.state:5} {check.name:20} {check.said}".rstrip()
    if check.advice:
        yield f"{'':27}{check.advice}"
