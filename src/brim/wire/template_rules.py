"""Rules of chat templates, by model name or by rule name (tables in `data/templates.toml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from typing import Any, Final, Literal, TypeAlias

from brim.data import load_table
from brim.errors import InputError
from brim.models.catalog import NameIndex

Raw: TypeAlias = Mapping[str, Any]

NINE_CHARACTERS: Final = re.compile(r"[0-9A-Za-z]{9}")
"""An id, if the template requires nine letters and digits."""


@dataclass(frozen=True, slots=True)
class TemplateRules:
    """What a chat template accepts; the defaults accept everything."""

    name: str = "free"
    alternate: bool = False
    """A user turn comes first, an assistant turn without calls precedes each further user turn, and
    assistant turns are never adjacent. Such a template accepts nothing else in between, so the
    rules about system turns, orphans, unanswered calls and other roles must be set too."""
    one_system: bool = False
    """Whether there may be only one system message, which must be first."""
    system: Literal["own", "user"] = "own"
    """Where the system text goes; `user`: before the text of the first user turn."""
    tool_role: bool = True
    """Whether the template supports calls and results."""
    parallel: bool = True
    """Whether one turn may call several tools."""
    orphans: bool = True
    """Whether a result may have no call."""
    unanswered: bool = True
    """Whether a call may have no result."""
    other_roles: bool = True
    """Whether roles other than system, user, assistant and tool are accepted."""
    needs_user: bool = False
    """Whether a user turn is required."""
    ids: Literal["any", "nine"] = "any"
    """Call ids: any text, or nine letters and digits."""
    call_content: Literal["any", "null", "empty"] = "any"
    """The content of a calling turn without text: any, or only null, or only an empty string."""
    call_text: bool = True
    """Whether the text of a calling turn is printed; if not, it becomes a turn of its own."""
    repeats: bool = True
    """Whether user turns may be equal; some templates print the tools for each turn that equals the
    last one, so brim adds white space to repeated turns."""
    tools: bool = True
    """Whether the definitions of tools are printed; if not, they take no tokens."""
    own_text: int = 0
    """Tokens that the template prints in addition to the messages, as the fallback tokenizer counts
    them."""
    default_system: int = 0
    """Tokens of the system text that it prints if there is none."""
    tool_text: int = 0
    """Tokens that it prints in addition to the definitions of tools."""

    def __post_init__(self) -> None:
        loose = self.orphans or self.unanswered or self.other_roles or not self.one_system
        if self.alternate and loose:
            raise InputError(
                f"Invalid template rules: {self.name}. Alternating turns require one system "
                "message, and no orphans, unanswered calls or other roles."
            )

    @property
    def moves_systems(self) -> bool:
        """Whether a later system turn becomes a user turn, which cannot be inside a step."""
        return self.one_system or self.system == "user"

    @property
    def free(self) -> bool:
        """Whether every conversation is accepted unchanged."""
        sizes = dict.fromkeys(_SIZES, 0)
        return replace(self, name=PERMISSIVE.name, **sizes) == PERMISSIVE  # type: ignore[arg-type]

    @property
    def adds_text(self) -> bool:
        """Whether the template prints text of its own."""
        return any(getattr(self, name) for name in _SIZES)


_SIZES: Final = ("own_text", "default_system", "tool_text")
PERMISSIVE: Final = TemplateRules()

_PHRASES: Final[Mapping[str, str]] = {
    "alternate": "roles alternate",
    "one_system": "one system message",
    "system": "no system role",
    "tool_role": "no tool role",
    "parallel": "one call per turn",
    "orphans": "no results without calls",
    "unanswered": "no calls without results",
    "other_roles": "no other roles",
    "needs_user": "a user turn is required",
    "ids": "ids of nine characters",
    "call_content": "{} content next to calls",
    "call_text": "no text next to calls",
    "repeats": "no equal user turns",
    "tools": "no definitions of tools",
    "own_text": "{} tokens of its own",
    "default_system": "{} tokens in place of a system text",
    "tool_text": "{} tokens next to tools",
}


def list_changes(rules: TemplateRules) -> dict[str, Any]:
    """Return the rules that differ from those of a template that accepts everything."""
    free, given = asdict(PERMISSIVE), asdict(rules)
    return {name: given[name] for name in _PHRASES if given[name] != free[name]}


def describe_rules(rules: TemplateRules) -> str:
    """Return the rules as a short text."""
    phrases = [_PHRASES[name].format(value) for name, value in list_changes(rules).items()]
    return ", ".join(phrases) or "every conversation is accepted"


@lru_cache(maxsize=256)
def rules_for(model: str | None) -> TemplateRules:
    """Return the rules of a model's template, by any of its names; an unknown model has none."""
    return (_load_tables()[1].find(model) if model else None) or PERMISSIVE


def list_rule_names() -> list[str]:
    """Return the names that `find_named_rules` accepts."""
    return sorted(_load_tables()[0])


def find_named_rules(name: str) -> TemplateRules:
    """Return rules by their name; raise `InputError` if there are none."""
    try:
        return _load_tables()[0][name.strip().lower()]
    except KeyError:
        raise InputError(
            f"Unknown template rules: {name!r}. Use one of "
            f"{', '.join(list_rule_names())}, or the path of a Jinja template."
        ) from None


@cache
def _load_tables() -> tuple[dict[str, TemplateRules], NameIndex[TemplateRules]]:
    known = {PERMISSIVE.name: PERMISSIVE}
    index: NameIndex[TemplateRules] = NameIndex(versions=False)
    for name, table in load_table("templates").items():
        facts = {**table}
        beginnings = facts.pop("names")
        known[name] = TemplateRules(name, **facts)
        for beginning in beginnings:
            index.add(beginning, known[name])
    return known, index
