"""Redirections: where a command reads from and writes to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from brim.shell.risk.expansion import Expansion, Word
from brim.shell.risk.file_view import why_overwritten
from brim.shell.risk.findings import Evaluator
from brim.shell.risk.syntax import PIPE, UNKNOWN, UnreadableError, plain, text_of

if TYPE_CHECKING:
    from tree_sitter import Node


_JOINED: Final = re.compile(rb"(?:\\\r?\n)+")
_WORDS: Final = frozenset((
    "word", "number", "string", "raw_string", "ansi_c_string", "concatenation", "command_name",
    "simple_expansion", "expansion", "command_substitution", "arithmetic_expansion",
    "translated_string", "variable_assignment", "brace_expression", "variable_name",
))  # fmt: skip
_DELIMITER: Final = re.compile(r"""\\?['"]?[\w.!:+-]+['"]?""")
_BLANK: Final = re.compile(rb"(?:[ \t]|\\\n)+")


@dataclass(slots=True)
class Redirects:
    """The redirections of one command."""

    stdin: str | None = None
    words: list[Word] = field(default_factory=list)
    """Words after a redirection that belong to the command."""
    written: list[str] = field(default_factory=list)
    takes_output: bool = False
    later: list[Node] = field(default_factory=list)
    """Statements on the line on which a here-document begins."""


def follow_redirects(shell: Evaluator, nodes: Sequence[Node]) -> Redirects:
    """Follow the redirections of one command and record what they overwrite."""
    found = Redirects()
    for node in nodes:
        match node.type:
            case "file_redirect":
                _to_file(shell, node, found)
            case "herestring_redirect":
                found.stdin = shell.text(node.named_children[-1]) + "\n"
            case "heredoc_redirect":
                _document(shell, node, found)
            case _:
                shell.follow_substitutions(node)
    return found


def _to_file(shell: Evaluator, node: Node, found: Redirects) -> None:
    check_word_boundaries(node)
    operator = next((text_of(c) for c in node.children if not c.is_named), "")
    names = shell.words(node.children_by_field_name("destination"))
    if not names:
        return
    name = names[0].text
    found.words += names[1:]
    if operator.startswith("<"):
        found.stdin = _content(shell, name) if operator == "<" else UNKNOWN
        return
    if operator == ">&" and re.fullmatch(r"\d+-?|-", plain(name)):
        return
    why = why_overwritten(name, shell.files, appends=">>" in operator)
    if why:
        shell.log.add(text_of(node), why)
    found.written.append(name)
    descriptor = node.child_by_field_name("descriptor")
    if descriptor is None or text_of(descriptor) == "1":
        found.takes_output = True


def _content(shell: Evaluator, name: str) -> str:
    """Return the content of a file that is read, if it is known."""
    if name.startswith(PIPE):
        return name.strip(PIPE)
    places = shell.files.paths(name) or ()
    known = [shell.state.written[place] for place in places if place in shell.state.written]
    if known:
        return known[0]
    return "" if plain(name) == "/dev/null" else UNKNOWN


def _document(shell: Evaluator, node: Node, found: Redirects) -> None:
    """Follow a here-document: its text, and the rest of its first line."""
    start = next((text_of(c) for c in node.children if c.type == "heredoc_start"), "")
    if not _DELIMITER.fullmatch(start):
        raise UnreadableError("the end of its here-document is ambiguous")
    is_raw = any(sign in start for sign in "'\"\\")
    for child in node.named_children:
        match child.type:
            case "heredoc_body":
                found.stdin = text_of(child) if is_raw else _expand_document(shell, child)
            case "file_redirect":
                _to_file(shell, child, found)
            case "herestring_redirect" | "heredoc_redirect":
                found.stdin = UNKNOWN
                shell.follow_substitutions(child)
            case "heredoc_start" | "heredoc_end" | "file_descriptor" | "comment":
                pass
            case _ if node.children_by_field_name("argument").count(child):
                found.words += shell.words([child])
            case _:
                found.later.append(child)


def _expand_document(shell: Evaluator, body: Node) -> str:
    expansion = Expansion(shell.state, shell.substitute)
    text = expansion.document(body)
    _follow_backquotes(shell, text_of(body))
    return text if "`" not in text else UNKNOWN


def _follow_backquotes(shell: Evaluator, text: str) -> None:
    """Assess backquotes in a here-document, which the grammar does not report."""
    pieces = re.split(r"(?<!\\)`", text)
    for piece in pieces[1::2]:
        shell.inner().script(piece, f"`{piece}`")


def check_word_boundaries(node: Node) -> None:
    """Raise UnreadableError if the grammar and a shell disagree about word boundaries."""
    whole, start = node.text or b"", node.start_byte
    for one, two in pairwise(node.children):
        gap = whole[one.end_byte - start : two.start_byte - start]
        if _JOINED.fullmatch(gap) or (not gap and one.type in _WORDS and two.type in _WORDS):
            raise UnreadableError("its word boundaries are ambiguous")
        if gap and not _BLANK.fullmatch(gap):
            raise UnreadableError("its word boundaries are ambiguous")


Link = tuple["Node", Sequence["Node"]]
"""A statement of `a && b`, with its redirections."""


def chain_of(node: Node) -> list[Link]:
    """Return the statements that `&&` joins; anything else is a chain of one."""
    body = node.child_by_field_name("body") if node.type == "redirected_statement" else None
    if body is not None and body.type == "list":
        *links, (last, redirects) = chain_of(body)
        return [*links, (last, [*redirects, *(c for c in node.named_children if c != body)])]
    if node.type != "list" or all(child.type != "&&" for child in node.children):
        return [(node, ())]
    first, *rest = [n for n in node.named_children if n.type != "comment"]
    return [*chain_of(first), *((part, ()) for part in rest)]
