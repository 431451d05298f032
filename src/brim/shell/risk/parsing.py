"""From the text of a command to its tree; what cannot be read says why instead."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from brim.errors import InputError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

LONGEST: Final = 16_384
"""Characters that are read; the grammar can take quadratic time over nonsense."""
KNOTS: Final = ("=(", "<<", "${")
"""What the grammar takes its time over, if there is much of it."""
MOST_KNOTS: Final = 300
DEEPEST: Final = 90
"""Brackets within brackets within a single text."""


class UnreadableError(InputError):
    """A command that no reader can be sure of."""


def parsed(text: str) -> Node:
    """The root of the tree, free of errors and not too deep to walk."""
    if len(text) > LONGEST:
        raise UnreadableError(f"it is too long to be read ({len(text):,} characters)")
    if any(text.count(knot) > MOST_KNOTS for knot in KNOTS):
        raise UnreadableError("it is too tangled to be read")
    text = text.replace("\r\n", "\n")
    if "\0" in text or "\r" in text:
        raise UnreadableError("it has a character in it that no command has")
    root = _parser().parse(text.encode("utf-8", "replace")).root_node
    if root.has_error:
        raise UnreadableError("it cannot be read as a shell command")
    if _is_deep(root):
        raise UnreadableError("it is nested too deep to be read")
    return root


@cache
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def _is_deep(root: Node) -> bool:
    """Whether some branch is longer than is walked; looks at each node once, without recursion."""
    cursor = root.walk()
    depth = 0
    while True:
        if cursor.goto_first_child():
            depth += 1
            if depth > DEEPEST:
                return True
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return False
            depth -= 1


def text_of(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def between(node: Node, start: int, end: int) -> str:
    """The text of a node between two byte positions of the whole."""
    whole = node.text or b""
    return whole[start - node.start_byte : end - node.start_byte].decode("utf-8", "replace")
