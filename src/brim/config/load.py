"""All layers together: which value counts, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from brim.config.keys import Config
from brim.config.layers import Layer, Setting, build, read_file, read_flag, read_variables
from brim.config.spelling import Key, format_key, home_as_tilde
from brim.config.tree import Group, Named, Node, group_of, key_of
from brim.config.trust import Trust, digest, system_folder
from brim.errors import ConfigError

OVERLAY: Final = ".brim.toml"
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that was looked at, and what came of it: used, not there, or not trusted."""

    path: Path
    state: Literal["used", "not there", "not trusted"]


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The configuration that is in effect, and how it came about."""

    config: Config
    settings: Mapping[str, Setting]
    """Every value by its dotted key, with its source."""
    files: tuple[ConfigFile, ...] = ()

    @property
    def notices(self) -> tuple[str, ...]:
        """What its owner should know: an overlay that is not used."""
        return tuple(
            f"{home_as_tilde(file.path)} is not used before `brim config trust`"
            for file in self.files
            if file.state == "not trusted"
        )

    @property
    def sources(self) -> Mapping[str, str]:
        """Where each value comes from, by its dotted key."""
        return {key: setting.source for key, setting in self.settings.items()}


def load(
    *,
    user: Path | None,
    project: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object] = MappingProxyType({}),
    trusted: Callable[[Path, str], bool],
) -> LoadedConfig:
    """Merge what the files, the environment and the flags say, the later before the earlier.

    `flags` go by their dotted key, and None stands for one that was not given. The overlay of a
    project counts only if `trusted` says so of its path and digest; else a notice names it.
    """
    layers: list[Layer] = []
    problems: list[str] = []
    looked = [*_read_file(user, lambda *_: True), *_read_file(project, trusted)]
    for file, data in looked:
        try:
            layers += [read_file(data, file.path)] if file.state == "used" else []
        except ConfigError as error:
            problems += error.problems
    if environment.get("BRIM_CONFIG") and user is not None and looked[0][0].state == "not there":
        problems.append(f"BRIM_CONFIG: there is no {user}")
    layers += read_variables(environment, _merge(layers))
    layers += [read_flag(key, value) for key, value in flags.items() if value is not None]
    problems += [problem for layer in layers for problem in layer.problems]
    if problems:
        raise ConfigError(problems)
    return _combine(_merge(layers), tuple(file for file, _ in looked))


def _read_file(
    path: Path | None, trusted: Callable[[Path, str], bool]
) -> Iterator[tuple[ConfigFile, bytes]]:
    """A file with its content, read once: what was judged is what is used."""
    if path is None:
        return
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        yield ConfigFile(path, "not there"), b""
    else:
        yield ConfigFile(path, "used" if trusted(path, digest(data)) else "not trusted"), data


def _merge(layers: Sequence[Layer]) -> dict[Key, Setting]:
    return {key: setting for layer in layers for key, setting in layer.settings.items()}


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
    """What can be said of servers only when all layers are together."""
    for section, servers in (("mcp", config.mcp), ("upstreams", config.upstreams)):
        for name, server in servers.items():
            if fault := server.fault():
                at = next(s.source for key, s in settings.items() if key[:2] == (section, name))
                yield f"{at}: {format_key((section, name))} {fault}"


def _keys(value: Any, node: Node, key: Key) -> Iterator[Key]:
    """The keys of all values that are in effect."""
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
    """`load` with the files of this user and of the project that a folder belongs to."""
    user, project = user_file(environment), project_file(folder)
    if project is not None and project.resolve() == user.resolve():
        project = None  # named by its user, it needs no other word
    return load(
        user=user,
        project=project,
        environment=environment,
        flags=flags,
        trusted=Trust.of(environment).is_trusted,
    )


def user_file(environment: Mapping[str, str]) -> Path:
    """The user's file: `BRIM_CONFIG` names it, else it is where the system keeps such files."""
    if named := environment.get("BRIM_CONFIG"):
        return Path(named).expanduser()
    return system_folder("config", environment) / "config.toml"


def project_file(folder: Path) -> Path | None:
    """The overlay of a folder, or of the nearest one above it within the same repository."""
    for each in (folder.absolute(), *folder.absolute().parents):
        if (each / OVERLAY).is_file():
            return each / OVERLAY
        if (each / ".git").exists():
            break
    return None
