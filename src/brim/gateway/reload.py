"""A changed configuration in a running gateway: which settings apply, and which need a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from brim.config import Config

NEED_RESTART: Final = frozenset(
    (
        *("host", "port", "store", "require_keys", "lease_seconds", "keep_requests"),
        *("history_days", "retrieve", "export", "oidc"),
        *("alert_url", "alert_secret_env", "keep_ledger_days", "otlp_endpoint"),
        *("stop_seconds", "drain_seconds", "send_seconds"),
    )
)
"""Settings of the gateway that are read only when it starts."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The names of the settings that differ between two configurations."""

    changed: tuple[str, ...]
    """Settings that apply to new requests."""
    needs_restart: tuple[str, ...]

    @classmethod
    def of(cls, before: Config, after: Config) -> ConfigChange:
        names = [*_compare_gateways(before, after), *_compare_upstreams(before, after)]
        held = [name for name in names if name.removeprefix("gateway.") in NEED_RESTART]
        return cls(tuple(name for name in names if name not in held), tuple(held))


def _compare_gateways(before: Config, after: Config) -> Iterator[str]:
    for field in fields(before.gateway):
        if getattr(before.gateway, field.name) != getattr(after.gateway, field.name):
            yield f"gateway.{field.name}"


def _compare_upstreams(before: Config, after: Config) -> Iterator[str]:
    for name in sorted(before.upstreams.keys() | after.upstreams.keys()):
        if before.upstreams.get(name) != after.upstreams.get(name):
            yield f"upstreams.{name}"
    if before.models != after.models:
        yield "models"
