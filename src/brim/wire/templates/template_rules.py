"""Rules: what a chat template takes, by the name of a model or of a table (tables in TOML)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Final, Literal, TypeAlias

from brim.errors import InputError
from brim.models.names import NameIndex

Raw: TypeAlias = Mapping[str, Any]

NINE_CHARACTERS: Final = re.compile(r"[0-9A-Za-z]{9}")
"""What an id is, where a template wants nine letters and digits."""


@dataclass(frozen=True, slots=True)
class TemplateRules:
    """What a chat template takes; as it stands here, everything."""

    name: str = "free"
    alternate: bool = False
    """A user begins, an assistant's turn without calls stands before each further user turn, and no
    assistant turn follows another. Such a template takes nothing else in between, so the rules
    about system turns, orphans, unanswered calls and other roles must be set too."""
    one_system: bool = False
    """There is one system message at most, and it stands first."""
    system: Literal["own", "user"] = "own"
    """Where the system text goes: `user` is before the first user's words."""
    tool_role: bool = True
    """Whether calls and results can be expressed at all."""
    parallel: bool = True
    """Whether one turn may call several tools."""
    orphans: bool = True
    """Whether a result may stand without its call."""
    unanswered: bool = True
    """Whether a call may stand without its result."""
    other_roles: bool = True
    """Whether there may be other roles than system, user, assistant and tool."""
    needs_user: bool = False
    """Whether there has to be a user turn."""
    ids: Literal["any", "nine"] = "any"
    """The ids of calls: any text, or nine letters and digits."""

    def __post_init__(self) -> None:
        loose = self.orphans or self.unanswered or self.other_roles or not self.one_system
        if self.alternate and loose:
            raise InputError(
                f"{self.name}: a template whose turns alternate has one system message, "
                "no orphans, no unanswered calls and no other roles"
            )

    @property
    def moves_systems(self) -> bool:
        """Whether a system turn in the middle becomes a user's, which no step can hold."""
        return self.one_system or self.system == "user"

    @property
    def free(self) -> bool:
        """Whether every conversation can go out as it is."""
        return replace(self, name=PERMISSIVE.name) == PERMISSIVE


PERMISSIVE: Final = TemplateRules()


@lru_cache(maxsize=256)
def rules_for(model: str | None) -> TemplateRules:
    """The rules of a model's template, by any spelling of its name; none for an unknown one."""
    return (_load_tables()[1].find(model) if model else None) or PERMISSIVE


def list_rule_names() -> list[str]:
    """What `rules_named` knows."""
    return sorted(_load_tables()[0])


def find_rules(name: str) -> TemplateRules:
    """The rules that somebody asks for by the name of their table."""
    known = _load_tables()[0]
    try:
        return known[name.strip().lower()]
    except KeyError:
        raise InputError(
            f"no template rules are called {name!r}; there are {', '.join(list_rule_names())}"
        ) from None


@cache
def _load_tables() -> tuple[dict[str, TemplateRules], NameIndex[TemplateRules]]:
    import tomllib
    from importlib import resources

    text = resources.files("brim").joinpath("data/templates.toml").read_text(encoding="utf-8")
    known = {PERMISSIVE.name: PERMISSIVE}
    index: NameIndex[TemplateRules] = NameIndex(versions=False)
    for name, facts in tomllib.loads(text).items():
        beginnings = facts.pop("names")
        known[name] = TemplateRules(name, **facts)
        for beginning in beginnings:
            index.add(beginning, known[name])
    return known, index
