"""Rules for commands and tools that the user always allows.

A rule covers simple commands by their first words. A line with several commands is allowed if each
of them is. A line whose effect is not visible (variables, substitutions, assignments, output files,
loops, functions, options that name a program or an output file) is never allowed. A destructive
command needs a typed yes in spite of every rule; `brim.shell.risk` decides that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tree_sitter import Node

from brim.data import load_table
from brim.errors import InputError
from brim.shell.risk.syntax import bash_parser, text_of

LONGEST: Final = 10_000
"""Maximum length of a command line that a rule can allow."""


LISTS: Final = {
    name: frozenset(" ".join(each.split()) for each in items.split("," if "," in items else None))
    for name, items in load_table("approvals").items()
}
"""Words, or phrases of several words."""
_INTERPRETER: Final = re.compile(f"(?:{'|'.join(LISTS['interpreters'])})[\\d.]*w?", re.IGNORECASE)
_RISKY_LETTERS: Final = {"git": "O", "make": "Cf", "sort": "oT"}
"""Short options that name a program to run or a file to write, by program."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+@-]*")
_UNESCAPED: Final = re.compile(r"""(?:[^'"\\]|'[^']*'|"[^"\\]*")*+""")
"""No backslash outside of single quotes: the grammar misreads some line continuations."""
_SEPARATORS: Final = frozenset(("&&", "||", ";", "|", "\n"))
_GROUPS: Final = frozenset(("program", "list", "pipeline"))

Words = tuple[str, ...]
"""The words of a simple command."""


@dataclass(frozen=True, slots=True)
class AllowRules:
    """The commands and tools that need no confirmation; immutable."""

    prefixes: tuple[str, ...] = ()
    """The first words of allowed commands."""
    tools: tuple[tuple[str, str], ...] = ()
    """Allowed tools as (server, tool name)."""

    def with_command(self, prefix: str) -> AllowRules:
        prefix = _normalize_prefix(prefix)
        return self if prefix in self.prefixes else replace(self, prefixes=(*self.prefixes, prefix))

    def with_tool(self, server: str, name: str) -> AllowRules:
        tool = (server, name)
        return self if tool in self.tools else replace(self, tools=(*self.tools, tool))

    def allows_command(self, command: str) -> bool:
        """Return whether every simple command of a line begins with the words of a rule."""
        commands = simple_commands(command) if self.prefixes else None
        if not commands:
            return False
        return all(map(self._allows, commands))

    def _allows(self, words: Words) -> bool:
        prefixes = [tuple(prefix.split()) for prefix in self.prefixes]
        length = next((len(own) for own in prefixes if words[: len(own)] == own), 0)
        return length > 0 and not any(_is_risky(words[0], word) for word in words[length:])

    def allows_tool(self, server: str, name: str) -> bool:
        return (server, name) in self.tools

    def to_dict(self) -> dict[str, Any]:
        return {"commands": list(self.prefixes), "tools": [list(tool) for tool in self.tools]}

    @classmethod
    def from_dict(cls, data: object) -> AllowRules:
        """Return rules saved by `to_dict`. Raise InputError if the data is invalid."""
        given = data if isinstance(data, Mapping) else {"commands": None}
        match given.get("commands", []), given.get("tools", []):
            case [*prefixes], [*tools] if all(
                isinstance(tool, list | tuple) and [*map(type, tool)] == [str, str]
                for tool in tools
            ):
                checked = dict.fromkeys(_normalize_prefix(prefix) for prefix in prefixes)
                return cls(tuple(checked), tuple((server, name) for server, name in tools))
            case _:
                raise InputError(
                    "The saved allow rules are invalid. Remove them to start without rules."
                )


def _normalize_prefix(prefix: object) -> str:
    """Return a prefix with single spaces. Raise InputError if it is empty (allows everything)."""
    words = prefix.split() if isinstance(prefix, str) else []
    if not words:
        raise InputError(f"An allow rule needs the first words of a command: {prefix!r}.")
    return " ".join(words)


def suggest_prefix(command: str) -> str | None:
    """Return the prefix to offer for "always"; None if no rule should be offered."""
    commands = simple_commands(command) or ()
    if len(commands) != 1:
        return None
    (words,) = commands
    program = words[0]
    is_runner = program in LISTS["runners"] or _INTERPRETER.fullmatch(program)
    is_destroyer = program in LISTS["destroyers"] or program.startswith("mkfs.")
    if not _PLAIN.fullmatch(program) or is_runner or is_destroyer:
        return None
    has_three = " ".join(words[:2]) in LISTS["three_word_families"]
    length = 1 if program not in LISTS["subcommands"] else 3 if has_three else 2
    prefix = " ".join(words[:length])
    is_plain = len(words) >= length and all(map(_PLAIN.fullmatch, words[:length]))
    return prefix if is_plain and prefix not in LISTS["runner_phrases"] else None


def _is_risky(program: str, word: str) -> bool:
    """Return whether an option, maybe abbreviated, makes a program run or write something."""
    if word.startswith("--"):
        name = word[2:].partition("=")[0]
        return bool(name) and any(option.startswith(name) for option in LISTS["risky_options"])
    return word.startswith("-") and any(
        letter in word for letter in _RISKY_LETTERS.get(program, "")
    )


# Parsing a command line


def simple_commands(command: str) -> tuple[Words, ...] | None:
    """Return the simple commands of a line in order; None if the line may do more."""
    is_visible = all(character.isprintable() or character in "\n\t" for character in command)
    if len(command) > LONGEST or not is_visible or not _UNESCAPED.fullmatch(command):
        return None
    found: list[Words] = []
    waiting = [bash_parser().parse(command.encode()).root_node]
    while waiting:
        node = waiting.pop()
        if node.type == "command":
            words = _words(node)
            if words is None:
                return None
            found.append(words)
        elif (inner := _parts(node)) is not None:
            waiting.extend(reversed(inner))
        else:
            return None
    return tuple(found)


def _parts(node: Node) -> list[Node] | None:
    """Return the parts of a node that only joins commands; None for other nodes."""
    if node.has_error:
        return None
    separators = {child.type for child in node.children if not child.is_named}
    if node.type in _GROUPS and separators <= _SEPARATORS:
        return node.named_children
    if node.type == "redirected_statement":
        body, *redirects = node.named_children
        return [body] if all(map(_is_harmless, redirects)) else None
    return None


def _is_harmless(redirect: Node) -> bool:
    """Return whether a redirection only discards output or merges it with other output."""
    operator = next((child.type for child in redirect.children if not child.is_named), "")
    goals = [text_of(goal) for goal in redirect.children_by_field_name("destination")]
    if redirect.type != "file_redirect":
        return False
    return goals == ["/dev/null"] or (operator == ">&" and goals in (["1"], ["2"]))


def _words(command: Node) -> Words | None:
    """Return the words of a simple command; None if it contains anything else."""
    words: list[str] = []
    for child in command.children:
        part = child.named_children[0] if child.type == "command_name" else child
        word = _literal(part)
        if word is None:
            return None
        words.append(word)
    return tuple(words) or None


def _literal(node: Node) -> str | None:
    """Return the text of a literal word, quoted or not; None if the shell expands it."""
    match node.type:
        case "word" | "number" | "string_content" if not node.named_children:
            return text_of(node)
        case "raw_string":
            return text_of(node)[1:-1]
        case "string" | "concatenation":
            parts = [_literal(part) for part in node.named_children]
            return None if None in parts else "".join(part or "" for part in parts)
        case _:
            return None
