"""Caps as commands take and show them: read from words, and with what stands against them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brim.errors import InputError
from brim.gateway.accounts.cap_usage import read_cap_usage
from brim.gateway.accounts.caps import ALL, Cap, key_scope, scope_parts, to_dollars
from brim.gateway.accounts.keys import no_active_key_error
from brim.models.spending import format_dollars

if TYPE_CHECKING:
    from brim.gateway.accounts.keys import ApiKey
    from brim.gateway.accounts.store import AccountStore


@dataclass(frozen=True, slots=True)
class CapStatus:
    """A cap, and how much of it is gone in the period that runs."""

    cap: Cap
    spent: int = 0
    reserved: int = 0
    """What requests that are under way may still come to."""

    def __str__(self) -> str:
        text = f"{_format_amount(self.spent, self.cap)} of {self.cap}"
        return (
            f"{text}, {_format_amount(self.reserved, self.cap)} reserved" if self.reserved else text
        )

    def to_dict(self) -> dict[str, Any]:
        """For programs; dollars are text, as no other number holds them exactly."""
        numbers = {"cap": self.cap.limit, "spent": self.spent, "reserved": self.reserved}
        if self.cap.unit == "dollars":
            return _kind(self.cap) | {name: str(to_dollars(n)) for name, n in numbers.items()}
        return _kind(self.cap) | numbers


@dataclass(frozen=True, slots=True)
class AccountSnapshot:
    """All keys, and the caps of every scope with what stands against them."""

    keys: Sequence[ApiKey]
    standings: Mapping[str, Sequence[CapStatus]]

    @classmethod
    async def of(cls, books: AccountStore) -> AccountSnapshot:
        found: dict[str, list[CapStatus]] = {}
        for each in await read_cap_usage(books):
            standing = CapStatus(each.cap, each.spent, each.reserved)
            found.setdefault(each.scope, []).append(standing)
        return cls(await books.keys(), found)

    @property
    def living(self) -> list[ApiKey]:
        return [key for key in self.keys if key.revoked is None]

    def against(self, scope: str) -> Sequence[CapStatus]:
        return self.standings.get(scope, ())

    @property
    def shared(self) -> list[str]:
        """The scopes with caps that several keys share: projects, then all together."""
        several = [scope for scope in self.standings if scope_parts(scope)[0] != "key"]
        return sorted(several, key=lambda scope: (scope == ALL, scope))

    @property
    def scopes(self) -> list[str]:
        """All that have caps: living keys in their order, then what they share."""
        own = [key_scope(key.id) for key in self.living]
        return [*(scope for scope in own if self.against(scope)), *self.shared]

    def scope_of(self, name: str) -> str:
        """The scope of the living key that a name or an id means."""
        for key in self.living:
            if name in (key.name, key.id):
                if key.is_operator:
                    raise InputError(f"{name} is an operator's key, which spends nothing")
                return key_scope(key.id)
        raise no_active_key_error(name)

    def named(self, scope: str) -> str:
        """A scope in words."""
        kind, whose = scope_parts(scope)
        if kind == "key":
            return next((key.name for key in self.living if key.id == whose), whose)
        return "all keys together" if kind == ALL else f"project {whose}"

    def is_idle(self, scope: str) -> bool:
        """Whether it is a project that no key belongs to."""
        kind, whose = scope_parts(scope)
        return kind == "project" and all(key.project != whose for key in self.living)


def parse_caps(words: Iterable[str]) -> tuple[Cap, ...]:
    """Caps as they were typed; two for the same are one too many."""
    caps: dict[tuple[str, str], Cap] = {}
    for cap in map(Cap.parse, words):
        if (other := caps.get((cap.unit, cap.period))) is not None:
            raise InputError(f"{other} and {cap} are caps for the same; give one of them")
        caps[cap.unit, cap.period] = cap
    return tuple(caps.values())


def format_caps(standings: Iterable[CapStatus]) -> str:
    return "; ".join(map(str, standings))


def _kind(cap: Cap) -> dict[str, Any]:
    return {"unit": cap.unit, "period": cap.period}


def _format_amount(number: int, cap: Cap) -> str:
    return format_dollars(to_dollars(number)) if cap.unit == "dollars" else f"{number:,}"
