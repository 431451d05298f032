"""All sources together: the effective value of every key and its source.

A project file counts only if the user has trusted its present content.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from brim.config.schema import Config, Group, Named, Node, group_of, key_of
from brim.config.settings_sources import (
    Setting,
    SettingsSource,
    build,
    read_file,
    read_flag,
    read_variables,
)
from brim.config.toml_text import Key, format_key, home_as_tilde
from brim.errors import ConfigError

OVERLAY: Final = ".brim.toml"
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file, and whether it is used, missing or not trusted."""

    path: Path
    state: Literal["used", "not found", "not trusted"]


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The effective configuration, and the source of each setting."""

    config: Config
    settings: Mapping[str, Setting]
    """Every value with its source, by dotted key."""
    files: tuple[ConfigFile, ...] = ()

    @property
    def notices(self) -> tuple[str, ...]:
        """Warnings for the user: a project file that is not trusted."""
        return tuple(
            f"{home_as_tilde(file.path)} is not trusted and not used. Run `brim config trust`."
            for file in self.files
            if file.state == "not trusted"
        )


def load(
    *,
    user: Path | None,
    project: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object] = MappingProxyType({}),
    trusted: Callable[[Path, str], bool],
) -> LoadedConfig:
    """Merge files, environment and flags; later sources override earlier ones.

    `flags` has dotted keys, and None for flags that were not given. A project file is used only if
    `trusted` returns True for its path and digest; otherwise a notice names it. Raise ConfigError
    with all problems of all sources.
    """
    sources: list[SettingsSource] = []
    problems: list[str] = []
    looked = [*_read_file(user, lambda *_: True), *_read_file(project, trusted)]
    for file, data in looked:
        try:
            sources += [read_file(data, file.path)] if file.state == "used" else []
        except ConfigError as error:
            problems += error.problems
    if environment.get("BRIM_CONFIG") and user is not None and looked[0][0].state == "not found":
        problems.append(f"BRIM_CONFIG: file not found: {user}")
    sources += read_variables(environment, _merge(sources))
    sources += [read_flag(key, value) for key, value in flags.items() if value is not None]
    problems += [problem for source in sources for problem in source.problems]
    if problems:
        raise ConfigError(problems)
    return _combine(_merge(sources), tuple(file for file, _ in looked))


def _read_file(
    path: Path | None, trusted: Callable[[Path, str], bool]
) -> Iterator[tuple[ConfigFile, bytes]]:
    """Yield a file with its content, read once: the content that was checked is the one used."""
    if path is None:
        return
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        yield ConfigFile(path, "not found"), b""
    else:
        yield ConfigFile(path, "used" if trusted(path, digest(data)) else "not trusted"), data


def _merge(sources: Sequence[SettingsSource]) -> dict[Key, Setting]:
    return {key: setting for source in sources for key, setting in source.settings.items()}


def _combine(settings: Mapping[Key, Setting], files: tuple[ConfigFile, ...]) -> LoadedConfig:
    root = group_of(Config)
    config: Config = build(root, (), settings)
    problems = []
    oidc = {"oidc": config.gateway.oidc}
    checked = (("mcp", config.mcp), ("upstreams", config.upstreams), ("gateway", oidc))
    for section, tables in checked:
        for name, table in tables.items():  # may come from several sources
            if problem := table.find_problem():
                at = next(s.source for key, s in settings.items() if key[:2] == (section, name))
                problems.append(f"{at}: {format_key((section, name))} {problem}")
    if problems:
        raise ConfigError(problems)
    shown = {
        format_key(key): settings.get(key) or Setting(value, DEFAULT)
        for key, value in _effective_values(config, root, ())
    }
    return LoadedConfig(config, MappingProxyType(shown), files)


def _effective_values(value: Any, node: Node, key: Key) -> Iterator[tuple[Key, object]]:
    """Yield all values with their keys."""
    if isinstance(node, Group) and value is not None:
        for each in fields(node.made):
            name = key_of(each.name)
            inner = getattr(value, each.name)
            yield from _effective_values(inner, node.keys[name], (*key, name))
    elif isinstance(node, Named) and value:
        for name, inner in value.items():
            yield from _effective_values(inner, node.inner, (*key, name))
    else:
        yield key, value


def read_example() -> str:
    """Return a file with every key, its default and its explanation, in which nothing is set."""
    from importlib import resources

    return resources.files("brim").joinpath("data/config_example.toml").read_text("utf-8")


def discover(
    *,
    folder: Path,
    environment: Mapping[str, str],
    flags: Mapping[str, object] = MappingProxyType({}),
) -> LoadedConfig:
    """Call `load` with the user's file and the project file of a folder."""
    user, project = user_file(environment), project_file(folder)
    if project is not None and project.resolve() == user.resolve():
        project = None  # chosen by the user, so it needs no trust
    return load(
        user=user,
        project=project,
        environment=environment,
        flags=flags,
        trusted=Trust.of(environment).is_trusted,
    )


def user_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's file: `BRIM_CONFIG`, or the default of the system."""
    if named := environment.get("BRIM_CONFIG"):
        return Path(named).expanduser()
    return _system_folder("config", environment) / "config.toml"


def project_file(folder: Path) -> Path | None:
    """Return the project file of a folder or its closest parent in the same repository, or None."""
    for each in (folder.absolute(), *folder.absolute().parents):
        if (each / OVERLAY).is_file():
            return each / OVERLAY
        if (each / ".git").exists():
            break
    return None


def _system_folder(kind: Literal["config", "state"], environment: Mapping[str, str]) -> Path:
    """Return the folder for the user's files of this kind."""
    try:
        import platformdirs
    except ImportError:
        plain = {"config": "~/.config", "state": "~/.local/state"}[kind]
        named = environment.get(f"XDG_{kind.upper()}_HOME")
        return Path(named or plain).expanduser() / "brim"
    if kind == "config":
        return platformdirs.user_config_path("brim")
    return platformdirs.user_state_path("brim")


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for state: `BRIM_STATE`, or the system's default."""
    named = environment.get("BRIM_STATE")
    return Path(named).expanduser() if named else _system_folder("state", environment)


def open_private(path: str, flags: int) -> int:
    """Open a file that only its user can read; for the argument `opener` of `open`."""
    return os.open(path, flags, 0o600)


def digest(data: bytes) -> str:
    """Return the digest that identifies the content of a file."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Trust:
    """The project files that the user has trusted, each with its content at that time."""

    path: Path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Trust:
        """Return the user's record, in the folder `BRIM_STATE` or the default state folder."""
        return cls(state_folder(environment) / "trusted.json")

    def is_trusted(self, path: Path, digest: str) -> bool:
        """Return whether the user trusted this content at this path."""
        return self._known().get(str(path.resolve())) == digest

    def trust(self, path: Path, digest: str) -> None:
        self._write({**self._known(), str(path.resolve()): digest})

    def revoke(self, path: Path) -> bool:
        """Remove a project file; return whether it was trusted."""
        known = self._known()
        if known.pop(str(path.resolve()), None) is None:
            return False
        self._write(known)
        return True

    def _known(self) -> dict[str, str]:
        """Return the trusted digests by path; nothing is trusted if the record cannot be read."""
        try:
            known = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}

    def _write(self, known: Mapping[str, str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        part.unlink(missing_ok=True)
        try:
            with open(part, "x", opener=open_private) as file:
                json.dump(known, file, indent=2)
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)
