"""Checking: whether each upstream can be used, and which windows its models have.

Asks only what costs nothing: the list of models, and their windows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from brim.config import Config, UpstreamConfig
from brim.errors import AuthenticationError, BrimError, InputError, ProviderError
from brim.fitting.profile import ModelProfile
from brim.gateway.model_patterns import is_pattern, meaning
from brim.gateway.routes import UNKNOWN_WINDOW
from brim.gateway.upstreams import NOWHERE
from brim.providers import Endpoint, ServerInfo, Transport

State = Literal["ok", "warn", "bad"]

PATIENCE: Final = 5.0
"""Seconds that a server may be silent."""
MOST: Final = 5
"""Models of a list whose windows are asked for."""
_NO_LIST: Final = frozenset((404, 405, 501))


@dataclass(frozen=True, slots=True)
class Check:
    """An upstream, how it is, and what can be done."""

    upstream: str
    state: State
    said: str
    advice: str | None = None
    windows: Mapping[str, int | None] = field(default_factory=dict)
    """The tokens that models hold, as far as anybody knows."""


def checked(config: Config, environment: Mapping[str, str]) -> list[Check]:
    """How each upstream is."""
    if not config.upstreams:
        raise InputError(NOWHERE)

    async def all_of_them() -> list[Check]:
        checks = (_checked(name, config, environment) for name in config.upstreams)
        return list(await asyncio.gather(*checks))

    return asyncio.run(all_of_them())


async def _checked(name: str, config: Config, environment: Mapping[str, str]) -> Check:
    upstream = config.upstreams[name]
    if upstream.key_env and not environment.get(upstream.key_env):
        return Check(name, "bad", f"{upstream.key_env} is not set", f"export {upstream.key_env}=…")
    if upstream.fallback and not _is_served(upstream.fallback, config):
        said = f"no upstream serves its fallback, {upstream.fallback}"
        return Check(name, "bad", said, f"set upstreams.{name}.fallback anew")
    key = environment.get(upstream.key_env or "")
    try:
        endpoint = Endpoint(
            upstream.endpoint, upstream.formats[0], key, upstream.headers, PATIENCE, retries=0
        )
        async with Transport(endpoint) as connection:
            return await _asked(name, upstream, ServerInfo(connection))
    except BrimError as error:
        return Check(name, "bad", str(error), f"upstreams.{name}.endpoint is {upstream.endpoint}")


async def _asked(name: str, upstream: UpstreamConfig, server: ServerInfo) -> Check:
    host = server.connection.endpoint.host
    try:
        offered = await server.models()
    except AuthenticationError:
        if upstream.key_env:
            raise
        return Check(name, "ok", f"{host} answers, and wants the key that clients send")
    except ProviderError as error:
        if error.status not in _NO_LIST:  # some have no list, and work
            raise
        offered = []
    named = [model for model in upstream.models if not is_pattern(model)]
    if len(offered) > 1 and (missing := [model for model in named if model not in offered]):
        said = f"{host} answers, but does not offer {', '.join(missing)}"
        return Check(name, "bad", said, f"it offers {_few(offered)}")
    meant = named or [model for model in offered if meaning(upstream.models, model)][:MOST]
    windows = {model: await _window(model, upstream, server) for model in meant}
    return _judged(name, f"{host} answers, with {_few(offered or named)}", windows)


def _judged(name: str, said: str, windows: Mapping[str, int | None]) -> Check:
    unknown = [model for model, tokens in windows.items() if tokens is None]
    if unknown:
        said += f"; nobody tells the window of {_few(unknown)}, so nothing is cut before a refusal"
        return Check(name, "warn", said, f"set upstreams.{name}.window", windows)
    return Check(name, "ok", said, None, windows)


async def _window(model: str, upstream: UpstreamConfig, server: ServerInfo) -> int | None:
    """The window that requests for a model would be cut to."""
    told = (await server.window_of(model)).tokens
    target = ModelProfile(model, window=upstream.window, server_window=told, guess=UNKNOWN_WINDOW)
    return None if target.is_guessed else target.budget(target.counter()).window


def _is_served(model: str, config: Config) -> bool:
    return any(meaning(upstream.models, model) for upstream in config.upstreams.values())


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return (", ".join(names[:MOST]) or "models that it does not list") + more


def lines(check: Check) -> Iterator[str]:
    """A check for people."""
    yield f"{check.state:5} {check.upstream:12} {check.said}".rstrip()
    for model, tokens in check.windows.items():
        if tokens is not None:
            yield f"{'':19}{model}: {tokens:,} tokens"
    if check.advice:
        yield f"{'':19}{check.advice}"
