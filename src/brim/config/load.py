"""All sources together: the effective value of every key and its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from brim.config.schema import Config, Group, Named, Node, group_of, key_of
from brim.config.sources import Setting, SettingsSource, build, read_file, read_flag, read_variables
from brim.config.toml_text import Key, format_key, home_as_tilde
from brim.config.trust import Trust, digest, system_folder
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

    @property
    def sources(self) -> Mapping[str, str]:
        """The source of each value, by dotted key."""
        return {key: setting.source for key, setting in self.settings.items()}


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
    if problems := list(_find_problems(config, settings)):
        raise ConfigError(problems)
    shown = {
        format_key(key): settings.get(key) or Setting(_value_at(config, key), DEFAULT)
        for key in _keys(config, root, ())
    }
    return LoadedConfig(config, MappingProxyType(shown), files)


def _find_problems(config: Config, settings: Mapping[Key, Setting]) -> Iterator[str]:
    """Yield problems that depend on several sources."""
    for section, servers in (("mcp", config.mcp), ("upstreams", config.upstreams)):
        for name, server in servers.items():
            if problem := server.find_problem():
                at = next(s.source for key, s in settings.items() if key[:2] == (section, name))
                yield f"{at}: {format_key((section, name))} {problem}"


def _keys(value: Any, node: Node, key: Key) -> Iterator[Key]:
    """Yield the keys of all effective values."""
    if isinstance(node, Group) and value is not None:
        for each in fields(node.made):
            name = key_of(each.name)
            yield from _keys(getattr(value, each.name), node.keys[name], (*key, name))
    elif isinstance(node, Named) and value:
        for name, inner in value.items():
            yield from _keys(inner, node.inner, (*key, name))
    else:
        yield key


def _value_at(config: Config, key: Key) -> object:
    value: Any = config
    for part in key:
        value = value[part] if isinstance(value, Mapping) else getattr(value, str(part))
    return value


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
    return system_folder("config", environment) / "config.toml"


def project_file(folder: Path) -> Path | None:
    """Return the project file of a folder or its closest parent in the same repository, or None."""
    for each in (folder.absolute(), *folder.absolute().parents):
        if (each / OVERLAY).is_file():
            return each / OVERLAY
        if (each / ".git").exists():
            break
    return None
