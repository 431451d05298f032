"""Starting: which upstreams a gateway has, whether they can be used, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from brim import config
from brim.config import Config, UpstreamConfig
from brim.errors import InputError
from brim.fitting.explain import format_columns

FLAG_UPSTREAM: Final = "default"
"""The name of an upstream that the command line describes."""
LOCAL_UPSTREAM: Final = "local"
"""The name of the embedded model, where that is the upstream."""
UNCONFIGURED_UPSTREAMS: Final = (FLAG_UPSTREAM, LOCAL_UPSTREAM)
"""Those that no file has settings for."""
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
