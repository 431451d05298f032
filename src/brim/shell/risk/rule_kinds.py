"""The kinds of rules that the tables are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

from brim.shell.risk.calls import Call
from brim.shell.risk.marks import is_known, plain

Rule = Callable[[Call], str | None]
"""Why a call is destructive; None if it is not."""
NOT_YET_KNOWN: Final = "what it is asked to do is only known at run time"
Branch = str | Rule | Mapping[str, "Branch"]


def always(why: str) -> Rule:
    """A program that destroys whatever it is given; asked for its help, it does not."""
    return lambda call: None if call.texts in (["--help"], ["--version"]) else why


def flag(*flags: str, why: str) -> Rule:
    """Destructive with one of these options."""
    return lambda call: why if call.has(*flags) or any(f in call.texts for f in flags) else None


def first(*starts: str, why: str, otherwise: Rule | None = None) -> Rule:
    """Destructive if the first word begins so."""

    def rule(call: Call) -> str | None:
        name = plain(call.texts[0]).lower() if call.words else ""
        if name.startswith(tuple(start.lower() for start in starts)):
            return why
        return otherwise(call) if otherwise else None

    return rule


def verbs(*names: str, why: str, depth: int = 1, otherwise: Rule | None = None) -> Rule:
    """Destructive if one of these is among the first words that are no options."""

    def rule(call: Call) -> str | None:
        operands = call.operands()[: depth + 1]
        alone = _alone(call)[: depth + 1]
        if any(operand in names for operand in (*operands, *alone)):
            return why
        if operands and not is_known(operands[0]):
            return NOT_YET_KNOWN
        return otherwise(call) if otherwise else None

    return rule


def _alone(call: Call) -> list[str]:
    """The words that follow no option, and so cannot be the value of one."""
    pairs = pairwise(["", *call.texts])
    return [text for before, text in pairs if not before.startswith("-") and text[:1] != "-"]


def sub(branches: Mapping[str, Branch], *valued: str) -> Rule:
    """A program with subcommands; `valued` are the options before them that take a word."""

    def rule(call: Call) -> str | None:
        at = command_at(call, *valued)
        if at is None:
            return None
        name = call.texts[at]
        if at and name not in branches and call.texts[at - 1].startswith("-"):
            # an option that is not known here may have taken this word for its value
            later = next(
                (n for n in range(at + 1, len(call.texts)) if call.texts[n] in branches), at
            )
            name, at = call.texts[later], later
        if not is_known(name):
            return NOT_YET_KNOWN
        branch = branches.get(name)
        if branch is None or isinstance(branch, str):
            return branch
        chosen = sub(branch) if isinstance(branch, Mapping) else branch
        return chosen(call.after(at + 1))

    return rule


def command_at(call: Call, *valued: str) -> int | None:
    """Where the subcommand stands."""
    texts, at = call.texts, 0
    while at < len(texts):
        if not texts[at].startswith("-"):
            return at
        at += 2 if texts[at] in valued else 1
    return None


def any_of(*rules: Rule) -> Rule:
    """Destructive if one of these says so."""
    return lambda call: next((why for rule in rules if (why := rule(call))), None)


def listed(names: str) -> frozenset[str]:
    """Names that are written as one text."""
    return frozenset(names.split())


def words(rule: Rule, names: str) -> dict[str, Rule]:
    """One rule for several programs."""
    return dict.fromkeys(names.split(), rule)
