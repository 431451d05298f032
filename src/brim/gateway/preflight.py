"""Before the gateway serves: checks of the upstreams, and the message at startup.

The checks use only requests that cost nothing: the list of models and their context windows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from brim import config
from brim.config import Config, UpstreamConfig
from brim.errors import AuthenticationError, BrimError, InputError
from brim.fitting.profile import ModelProfile
from brim.fitting.text_tables import format_columns
from brim.gateway.model_route import UNKNOWN_WINDOW
from brim.gateway.upstreams import (
    FLAG_UPSTREAM,
    create_endpoint,
    find_authorizer,
    is_pattern,
    match_rank,
)
from brim.providers.server_info import ServerInfo
from brim.providers.transport import Transport

CheckState = Literal["ok", "warn", "bad"]

CHECK_SECONDS: Final = 5.0
"""Timeout of a check."""
MAX_LISTED_MODELS: Final = 5
"""Models of a list whose context windows are checked."""


@dataclass(frozen=True, slots=True)
class UpstreamCheck:
    """The state of an upstream, and what to do about it."""

    upstream: str
    state: CheckState
    message: str
    advice: str | None = None
    windows: Mapping[str, int | None] = field(default_factory=dict)
    """Context windows by model; None if unknown."""


def check_upstreams(config: Config, environment: Mapping[str, str]) -> list[UpstreamCheck]:
    """Check all upstreams concurrently."""
    if not config.upstreams:
        raise InputError(NO_UPSTREAM_MESSAGE)

    async def check_all() -> list[UpstreamCheck]:
        checks = (_check_upstream(name, config, environment) for name in config.upstreams)
        return list(await asyncio.gather(*checks))

    return asyncio.run(check_all())


async def _check_upstream(
    name: str, config: Config, environment: Mapping[str, str]
) -> UpstreamCheck:
    upstream = config.upstreams[name]
    if upstream.key_env and not environment.get(upstream.key_env):
        return UpstreamCheck(
            name, "bad", f"{upstream.key_env} is not set", f"export {upstream.key_env}=…"
        )
    if unserved := _find_unserved_fallbacks(upstream, config):
        message = f"no upstream serves its fallback {', '.join(unserved)}"
        return UpstreamCheck(name, "bad", message, f"change upstreams.{name}.fallback")
    key = environment.get(upstream.key_env or "")
    try:
        endpoint = create_endpoint(
            replace(upstream, timeout=CHECK_SECONDS), upstream.formats[0], key
        )
        authorizer = find_authorizer(upstream, key)
        async with Transport(endpoint, authorizer=authorizer) as connection:
            return await _check_models(name, upstream, ServerInfo(connection))
    except BrimError as error:
        return UpstreamCheck(
            name, "bad", str(error), f"upstreams.{name}.endpoint is {upstream.endpoint}"
        )


def _find_unserved_fallbacks(upstream: UpstreamConfig, config: Config) -> list[str]:
    aliases = config.gateway.aliases
    lists = [each.models for each in config.upstreams.values()]
    chains = (upstream.fallback, *upstream.fallback_by_error.values())
    names = dict.fromkeys(aliases.get(name, name) for chain in chains for name in chain)
    return [name for name in names if not any(match_rank(models, name) for models in lists)]


async def _check_models(name: str, upstream: UpstreamConfig, server: ServerInfo) -> UpstreamCheck:
    host = server.transport.endpoint.host
    try:
        offered = await server.offered()
    except AuthenticationError:
        if upstream.key_env:
            raise
        return UpstreamCheck(name, "ok", f"{host} responds, and requires a key, which clients send")
    named = [model for model in upstream.models if not is_pattern(model)]
    if len(offered) > 1 and (missing := [model for model in named if model not in offered]):
        message = f"{host} responds, but does not list {', '.join(missing)}"
        return UpstreamCheck(name, "bad", message, f"it lists {_shorten(offered)}")
    models = (
        named
        or [model for model in offered if match_rank(upstream.models, model)][:MAX_LISTED_MODELS]
    )
    windows = {model: await _find_window(model, upstream, server) for model in models}
    return _check_windows(name, f"{host} responds, with {_shorten(offered or named)}", windows)


def _check_windows(name: str, message: str, windows: Mapping[str, int | None]) -> UpstreamCheck:
    unknown = [model for model, tokens in windows.items() if tokens is None]
    if unknown:
        message += (
            f"; the context window of {_shorten(unknown)} is unknown, so nothing is trimmed "
            "before a context-length error"
        )
        return UpstreamCheck(name, "warn", message, f"set upstreams.{name}.window", windows)
    return UpstreamCheck(name, "ok", message, None, windows)


async def _find_window(model: str, upstream: UpstreamConfig, server: ServerInfo) -> int | None:
    """Return the window that requests for a model are fitted to; None if unknown."""
    reported = (await server.window_of(model)).tokens
    profile = ModelProfile(
        model, window=upstream.window, server_window=reported, guess=UNKNOWN_WINDOW
    )
    return None if profile.is_guessed else profile.budget(profile.counter()).window


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED_MODELS} more" if len(names) > MAX_LISTED_MODELS else ""
    return (", ".join(names[:MAX_LISTED_MODELS]) or "models that it does not list") + more


def format_check(check: UpstreamCheck) -> Iterator[str]:
    """Return the lines that describe a check."""
    yield f"{check.state:5} {check.upstream:12} {check.message}".rstrip()
    for model, tokens in check.windows.items():
        if tokens is not None:
            yield f"{'':19}{model}: {tokens:,} tokens"
    if check.advice:
        yield f"{'':19}{check.advice}"


# Upstreams from flags, and what is printed at startup


NO_UPSTREAM_MESSAGE: Final = (
    "No upstream is configured. Set one with --upstream https://api.openai.com/v1, add it to the "
    "configuration ([upstreams.NAME] with an endpoint, see `brim config --example`), or use the "
    "embedded model with --local."
)
HEADINGS: Final = ("upstream", "address", "formats", "key", "models")


def parse_upstream(flags: Mapping[str, object]) -> Mapping[str, UpstreamConfig]:
    """Return the upstream in command-line flags, validated like a configuration file."""
    loaded = config.load(
        user=None,
        project=None,
        environment={},
        flags={f"upstreams.{FLAG_UPSTREAM}.{key}": value for key, value in flags.items()},
        trusted=lambda *_: False,
    )
    return loaded.config.upstreams


def require_upstreams(config: Config, environment: Mapping[str, str]) -> None:
    """Raise `InputError` if there is no upstream, or the key of one is not set."""
    if not config.upstreams:
        raise InputError(NO_UPSTREAM_MESSAGE)
    unset = [
        f"{upstream.key_env}, the key of upstreams.{name}, is not set"
        for name, upstream in config.upstreams.items()
        if upstream.key_env and not environment.get(upstream.key_env)
    ]
    if unset:
        raise InputError(f"{'; '.join(unset)}.")


@dataclass(frozen=True, slots=True)
class StartupMessage:
    """What is printed when the gateway is ready."""

    address: str
    upstreams: Mapping[str, UpstreamConfig]
    has_keys: bool = False
    """Whether clients need a key."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "keys": self.has_keys,
            "upstreams": [
                {
                    "name": name,
                    "endpoint": upstream.endpoint,
                    "formats": list(upstream.formats),
                    "models": list(upstream.models),
                    "key_env": upstream.key_env,
                }
                for name, upstream in self.upstreams.items()
            ],
        }

    def lines(self, width: int | None) -> list[str]:
        """Return the message as text, with the environment variables for clients."""
        rows = [self._row(name, upstream) for name, upstream in self.upstreams.items()]
        keys = "Clients need a key (`brim keys`)" if self.has_keys else "No keys are required"
        return [
            f"brim listens on {self.address}. Press Ctrl-C to stop.",
            f"{keys}. Dashboard: {self.address}/",
            "",
            *(f"  {line}" for line in self._variables()),
            "",
            *format_columns([HEADINGS, *rows], width, "<<<<<"),
        ]

    def _variables(self) -> Iterator[str]:
        """Return the environment variables for each kind of client."""
        formats = {format for each in self.upstreams.values() for format in each.formats}
        if formats - {"anthropic"}:
            openai = f"OPENAI_BASE_URL={self.address}/v1"
            yield f"{openai:45}  for OpenAI's clients, LangChain, most agents"
        if "anthropic" in formats:
            anthropic = f"ANTHROPIC_BASE_URL={self.address}"
            yield f"{anthropic:45}  for Anthropic's clients, Claude Code"

    def _row(self, name: str, upstream: UpstreamConfig) -> tuple[str, str, str, str, str]:
        return (
            name,
            upstream.endpoint,
            ", ".join(upstream.formats),
            upstream.key_env or upstream.auth or ("none" if self.has_keys else "the client's"),
            ", ".join(upstream.models) or "all others",
        )
