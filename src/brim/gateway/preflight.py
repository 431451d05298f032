"""Checking: whether each upstream can be used, and which windows its models have.

Asks only what costs nothing: the list of models, and their windows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from brim import config
from brim.config import Config, UpstreamConfig
from brim.errors import AuthenticationError, BrimError, InputError, ProviderError
from brim.fitting.explain import format_columns
from brim.fitting.profile import ModelProfile
from brim.gateway.routes import FLAG_UPSTREAM, UNKNOWN_WINDOW, is_pattern, match_rank
from brim.providers import Endpoint, ServerInfo, Transport

CheckState = Literal["ok", "warn", "bad"]

CHECK_SECONDS: Final = 5.0
"""Seconds that a server may be silent."""
MAX_LISTED_MODELS: Final = 5
"""Models of a list whose windows are asked for."""
_NO_MODEL_LIST: Final = frozenset((404, 405, 501))


@dataclass(frozen=True, slots=True)
class UpstreamCheck:
    """An upstream, how it is, and what can be done."""

    upstream: str
    state: CheckState
    said: str
    advice: str | None = None
    windows: Mapping[str, int | None] = field(default_factory=dict)
    """The tokens that models hold, as far as anybody knows."""


def check_upstreams(config: Config, environment: Mapping[str, str]) -> list[UpstreamCheck]:
    """How each upstream is."""
    if not config.upstreams:
        raise InputError(NO_UPSTREAM_MESSAGE)

    async def all_of_them() -> list[UpstreamCheck]:
        checks = (_check_upstream(name, config, environment) for name in config.upstreams)
        return list(await asyncio.gather(*checks))

    return asyncio.run(all_of_them())


async def _check_upstream(
    name: str, config: Config, environment: Mapping[str, str]
) -> UpstreamCheck:
    upstream = config.upstreams[name]
    if upstream.key_env and not environment.get(upstream.key_env):
        return UpstreamCheck(
            name, "bad", f"{upstream.key_env} is not set", f"export {upstream.key_env}=…"
        )
    if upstream.fallback and not _is_served(upstream.fallback, config):
        said = f"no upstream serves its fallback, {upstream.fallback}"
        return UpstreamCheck(name, "bad", said, f"set upstreams.{name}.fallback anew")
    key = environment.get(upstream.key_env or "")
    try:
        endpoint = Endpoint(
            upstream.endpoint, upstream.formats[0], key, upstream.headers, CHECK_SECONDS, retries=0
        )
        async with Transport(endpoint) as connection:
            return await _check_models(name, upstream, ServerInfo(connection))
    except BrimError as error:
        return UpstreamCheck(
            name, "bad", str(error), f"upstreams.{name}.endpoint is {upstream.endpoint}"
        )


async def _check_models(name: str, upstream: UpstreamConfig, server: ServerInfo) -> UpstreamCheck:
    host = server.connection.endpoint.host
    try:
        offered = await server.models()
    except AuthenticationError:
        if upstream.key_env:
            raise
        return UpstreamCheck(name, "ok", f"{host} answers, and wants the key that clients send")
    except ProviderError as error:
        if error.status not in _NO_MODEL_LIST:  # some have no list, and work
            raise
        offered = []
    named = [model for model in upstream.models if not is_pattern(model)]
    if len(offered) > 1 and (missing := [model for model in named if model not in offered]):
        said = f"{host} answers, but does not offer {', '.join(missing)}"
        return UpstreamCheck(name, "bad", said, f"it offers {_shorten(offered)}")
    meant = (
        named
        or [model for model in offered if match_rank(upstream.models, model)][:MAX_LISTED_MODELS]
    )
    windows = {model: await _find_window(model, upstream, server) for model in meant}
    return _check_windows(name, f"{host} answers, with {_shorten(offered or named)}", windows)


def _check_windows(name: str, said: str, windows: Mapping[str, int | None]) -> UpstreamCheck:
    unknown = [model for model, tokens in windows.items() if tokens is None]
    if unknown:
        said += (
            f"; nobody tells the window of {_shorten(unknown)}, so nothing is cut before a refusal"
        )
        return UpstreamCheck(name, "warn", said, f"set upstreams.{name}.window", windows)
    return UpstreamCheck(name, "ok", said, None, windows)


async def _find_window(model: str, upstream: UpstreamConfig, server: ServerInfo) -> int | None:
    """The window that requests for a model would be cut to."""
    told = (await server.window_of(model)).tokens
    target = ModelProfile(model, window=upstream.window, server_window=told, guess=UNKNOWN_WINDOW)
    return None if target.is_guessed else target.budget(target.counter()).window


def _is_served(model: str, config: Config) -> bool:
    return any(match_rank(upstream.models, model) for upstream in config.upstreams.values())


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED_MODELS} more" if len(names) > MAX_LISTED_MODELS else ""
    return (", ".join(names[:MAX_LISTED_MODELS]) or "models that it does not list") + more


def format_check(check: UpstreamCheck) -> Iterator[str]:
    """A check for people."""
    yield f"{check.state:5} {check.upstream:12} {check.said}".rstrip()
    for model, tokens in check.windows.items():
        if tokens is not None:
            yield f"{'':19}{model}: {tokens:,} tokens"
    if check.advice:
        yield f"{'':19}{check.advice}"


# Upstreams from flags, and what is printed at startup


NO_UPSTREAM_MESSAGE: Final = (
    "there is no upstream that requests could go to. Give one with --upstream "
    "https://api.openai.com/v1, name it in the configuration ([upstreams.NAME] with an endpoint, "
    "as `brim config --example` shows), or take the embedded model with --local."
)
HEADINGS: Final = ("upstream", "address", "speaks", "key", "models")


def parse_upstream(flags: Mapping[str, object]) -> Mapping[str, UpstreamConfig]:
    """The upstream that flags describe, checked as one of a file would be."""
    loaded = config.load(
        user=None,
        project=None,
        environment={},
        flags={f"upstreams.{FLAG_UPSTREAM}.{key}": value for key, value in flags.items()},
        trusted=lambda *_: False,
    )
    return loaded.config.upstreams


def require_upstreams(config: Config, environment: Mapping[str, str]) -> None:
    """Raise where there is nowhere to go, or no key to go with."""
    if not config.upstreams:
        raise InputError(NO_UPSTREAM_MESSAGE)
    unset = [
        f"the key of upstreams.{name} is to stand in {upstream.key_env}, which is not set"
        for name, upstream in config.upstreams.items()
        if upstream.key_env and not environment.get(upstream.key_env)
    ]
    if unset:
        raise InputError("; ".join(unset))


@dataclass(frozen=True, slots=True)
class StartupMessage:
    """What is told once requests can come."""

    address: str
    upstreams: Mapping[str, UpstreamConfig]
    has_keys: bool = False
    """Whether clients have to show a key of `brim keys`."""

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
        """The same for people, with what to set for which client."""
        rows = [self._row(name, upstream) for name, upstream in self.upstreams.items()]
        known = "clients show a key of `brim keys`" if self.has_keys else "no keys are asked for"
        return [
            f"brim serves at {self.address}; Ctrl-C stops it",
            f"{known}; what goes on is shown at {self.address}/",
            "",
            *(f"  {line}" for line in self._variables()),
            "",
            *format_columns([HEADINGS, *rows], width, "<<<<<"),
        ]

    def _variables(self) -> Iterator[str]:
        """What to set for which client."""
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
            upstream.key_env or ("none" if self.has_keys else "the client's"),
            ", ".join(upstream.models) or "all that no other names",
        )
