"""Variables that a command sets on its way."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from brim.shell.risk.marks import UNKNOWN, is_known, plain
from brim.shell.risk.parsing import text_of
from brim.shell.risk.scope import Value

if TYPE_CHECKING:
    from tree_sitter import Node

    from brim.shell.risk.walking import Walk

RUN_BY: Final = re.compile(
    r"[A-Z_]*(?:PAGER|EDITOR|VISUAL|BROWSER|ASKPASS|SSH_COMMAND|SSH|EXTERNAL_DIFF|COMMAND"
    r"|LESSOPEN|LESSCLOSE|PRELOAD|BASH_ENV|ENV|SHELLOPTS|PS4|PROMPT_COMMAND|RSH)"
)
"""Variables that some program takes for a command."""


def declare(walk: Walk, text: str, *, is_name: bool = False) -> None:
    """A `name=value` that is given as a word; the value may be the name of another variable."""
    name, equals, value = plain(text).partition("=")
    if not equals:
        return
    if is_known(name):
        appends = name.endswith("+")
        known = is_known(value) and not appends and not is_name
        set_variable(walk, name.rstrip("+"), (value if known else UNKNOWN,))
    else:
        walk.scope.is_open = True


def assign(walk: Walk, node: Node) -> str:
    """Follow an assignment; gives the variable's name."""
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name is None:
        return ""
    if name.type == "subscript":
        walk.look(name)
        array = name.child_by_field_name("name")
        if value is not None:
            walk.words([value])
        walk.scope.variables[text_of(array) if array else ""] = (UNKNOWN,)
        return ""
    items = _assigned(walk, value)
    if any(child.type == "+=" for child in node.children):
        items = _appended(walk.scope.value(text_of(name)) or (), items, value)
    set_variable(walk, text_of(name), items)
    return text_of(name)


def _assigned(walk: Walk, value: Node | None) -> Value:
    if value is None:
        return ("",)
    if value.type != "array":
        return (plain(walk.text(value)),)
    if any(child.type == "variable_assignment" for child in value.named_children):
        walk.look(value)
        return (UNKNOWN,)
    return tuple(plain(word.text) for word in walk.words(value.named_children))


def set_variable(walk: Walk, name: str, value: Value) -> None:
    walk.scope.variables[name] = value
    if any(re.search(r"\[[^\]]*(?:\$\(|`)", item) for item in value):
        walk.judge.note(f"{name}={' '.join(value)}", "runs if it is used in a calculation")
    if name.startswith("PS") and any("$(" in item or "`" in item for item in value):
        walk.judge.note(f"{name}={' '.join(value)}", "runs a command at each prompt")
    if RUN_BY.fullmatch(name) and any(value):
        walk.inner().script(" ".join(value), f"{name}={' '.join(value)}")


def _appended(before: Value, items: Value, value: Node | None) -> Value:
    if value is not None and value.type == "array":
        return before + items
    return ("".join(before[:1]) + "".join(items), *before[1:])
