"""Expand the words of the parse tree into the words that a program receives."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brim.shell.risk.shell_state import ShellState, Value
from brim.shell.risk.syntax import (
    PIPE,
    SPREAD,
    TILDE,
    UNKNOWN,
    UnreadableError,
    apply_expansion_operator,
    expand_braces,
    is_known,
    mark_globs,
    mark_quoted,
    mark_unquoted,
    plain,
    restore_braces,
    text_between,
    text_of,
    unescape_ansi,
    unquote_bare,
    unquote_double,
)

if TYPE_CHECKING:
    from tree_sitter import Node

LONGEST_VALUE: Final = 4_000
_BLANK_BEFORE: Final = re.compile(r"^(?:\s|\\\n)+")
_QUOTED_PIECES: Final = re.compile(
    r"\\.|(?P<run>\$\(|\$\{|`)|\$(?P<value>[A-Za-z_]\w*|[0-9@*#?$!-])|[^\\$`]+|.", re.DOTALL
)
"""The pieces of quoted text."""
RunSubstitution = Callable[["Node"], str]
"""Assess a substitution and return what it prints."""
_INNER: Final = frozenset((
    "simple_expansion", "expansion", "command_substitution", "process_substitution",
    "arithmetic_expansion", "string", "raw_string", "ansi_c_string", "translated_string",
    "concatenation", "brace_expression",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Word:
    """One word, as a program receives it."""

    text: str
    source: str = ""
    empties: tuple[str, ...] = ()
    """The empty variables that were expanded in it."""


@dataclass(slots=True)
class _Fields:
    """A builder for words: quoted text extends the last word, unquoted values may split."""

    done: list[str] = field(default_factory=list)
    last: str = ""
    is_open: bool = False
    empties: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        if len(self.last) > LONGEST_VALUE:
            text = UNKNOWN
        self.last += text
        self.is_open = True

    def close(self) -> None:
        if self.is_open:
            self.done.append(self.last)
        self.last, self.is_open = "", False

    def split(self, text: str, separators: str) -> None:
        """Add an unquoted value, starting a new word at each separator."""
        value = mark_unquoted(mark_globs(text))
        if not separators or not any(sign in value for sign in separators):
            if value:
                self.add(value)
            return
        pieces = re.split(f"[{re.escape(separators)}]", value)
        for at, piece in enumerate(pieces):
            if at:
                self.close()
            if piece:
                self.add(piece)


class Expansion:
    """Expansion of words as a shell does it, in one shell state."""

    def __init__(self, scope: ShellState, run: RunSubstitution) -> None:
        self.scope = scope
        self.run = run

    def words(self, node: Node) -> list[Word]:
        """Return the words that one word of the tree expands to: none, one or several."""
        fields = _Fields()
        self._bare(node, fields)
        fields.close()
        source, empties = text_of(node), tuple(fields.empties)
        return [
            Word(restore_braces(self._at_home(text)), source, empties)
            for whole in fields.done
            for text in expand_braces(whole)
            if text or not whole
        ]

    def text(self, node: Node) -> str:
        """Return the word as one text without splitting, as in an assignment."""
        fields = _Fields()
        self._bare(node, fields, splits=False)
        return self._at_home(fields.last)

    def document(self, node: Node) -> str:
        """Return the text of a here-document with its variables expanded."""
        fields = _Fields()
        self._quoted(node, fields, node.start_byte, node.end_byte, is_document=True)
        fields.close()
        return "\n".join(fields.done)

    def _at_home(self, text: str) -> str:
        if not text.startswith(TILDE):
            return text
        name, slash, rest = text[1:].partition("/")
        if name == "+":
            home = (self.scope.value("PWD") or (UNKNOWN,))[0]
        elif name:
            home = UNKNOWN
        else:
            home = (self.scope.value("HOME") or ("",))[0]
        return home + slash + rest

    def _bare(self, node: Node, fields: _Fields, *, splits: bool = True) -> None:
        match node.type:
            case "string":
                self._string(node, fields)
            case "translated_string":
                for child in node.named_children:
                    self._bare(child, fields, splits=splits)
            case "raw_string":
                fields.add(text_of(node)[1:-1])
            case "ansi_c_string":
                fields.add(unescape_ansi(text_of(node)[2:-1]))
            case "simple_expansion" | "expansion":
                self._variable(node, fields, splits=splits)
            case "command_substitution":
                self._add(fields, (self._printed(node),), splits=splits)
            case "process_substitution":
                fields.add(PIPE + self.run(node) + PIPE)
            case "arithmetic_expansion":
                self.run(node)
                fields.add(UNKNOWN)
            case _:
                self._parts(node, fields, splits=splits)

    def _parts(self, node: Node, fields: _Fields, *, splits: bool) -> None:
        """Expand a concatenation, a command name or a plain word, part by part."""
        at = node.start_byte
        for child in node.named_children:
            if child.type in _INNER or child.named_child_count or child.type == "word":
                gap = text_between(node, at, child.start_byte)
                at = child.end_byte
                if gap.endswith("$") and child.type in ("string", "raw_string"):
                    self._dollared(gap[:-1], child, fields)
                    continue
                self._literal(gap, fields)
                self._bare(child, fields, splits=splits)
        self._literal(text_between(node, at, node.end_byte), fields)

    def _dollared(self, gap: str, node: Node, fields: _Fields) -> None:
        """Expand `$"…"` or `$'…'` in the middle of a word."""
        self._literal(gap, fields)
        if node.type == "string":
            self._string(node, fields)
        else:
            fields.add(unescape_ansi(text_of(node)[1:-1]))

    def _literal(self, text: str, fields: _Fields) -> None:
        """Add unquoted text; the grammar and a shell disagree about newlines in it."""
        if not text:
            return
        if "\n" in text:
            raise UnreadableError("its word boundaries are ambiguous")
        fields.add(unquote_bare(text))

    def _string(self, node: Node, fields: _Fields) -> None:
        if not text_of(node).startswith('"'):
            raise UnreadableError("its word boundaries are ambiguous")
        fields.is_open = True
        only = node.named_children
        if len(only) == 1 and len(text_of(only[0])) + 2 == len(text_of(node)):
            name = _array_name(only[0])
            if name and not (self.scope.value(name) or ()):
                fields.is_open = False
        self._quoted(node, fields, node.start_byte + 1, node.end_byte - 1)

    def _quoted(
        self, node: Node, fields: _Fields, start: int, end: int, *, is_document: bool = False
    ) -> None:
        at = start
        for child in node.named_children:
            if child.type not in _INNER:
                continue
            self._quote(text_between(node, at, child.start_byte), fields, is_document)
            fields.add(_blank_before(text_of(child)))
            self._inside(child, fields)
            at = child.end_byte
        self._quote(text_between(node, at, end), fields, is_document)

    def _quote(self, text: str, fields: _Fields, is_document: bool) -> None:
        """Add quoted text, expanding variables that the grammar did not recognize."""
        for piece in _QUOTED_PIECES.finditer(text):
            if piece["value"]:
                value = self.scope.value(piece["value"])
                fields.add(" ".join(mark_quoted(item) for item in value or ()))
            elif piece["run"] and not (is_document and piece["run"] == "`"):
                raise UnreadableError("it has a substitution that cannot be parsed")
            else:
                fields.add(unquote_double(piece[0], is_document=is_document))

    def _inside(self, node: Node, fields: _Fields) -> None:
        """Expand a substitution inside double quotes."""
        match node.type:
            case "simple_expansion" | "expansion":
                self._variable(node, fields, splits=False, is_quoted=True)
            case "command_substitution":
                fields.add(mark_quoted(self._printed(node)))
            case "arithmetic_expansion":
                self.run(node)
                fields.add(UNKNOWN)
            case _:
                fields.add(text_of(node))

    def _printed(self, node: Node) -> str:
        return self.run(node).rstrip("\n")

    def _variable(
        self, node: Node, fields: _Fields, *, splits: bool, is_quoted: bool = False
    ) -> None:
        text = _BLANK_BEFORE.sub("", text_of(node))
        if text[1:2].isspace() or text == "$":
            fields.add(text)
            return
        if "\\\n" in text:
            raise UnreadableError("a word of it continues on the next line")
        if len(text) > 2 and text[1].isdigit():
            self._add(fields, self.scope.value(text[1]) or (), splits=splits)
            fields.add(text[2:])
            return
        name = _array_name(node)
        if name and is_quoted:
            self._list(name, fields)
            return
        value = self._value(node)
        if not "".join(value):
            fields.empties.append(text)
        if is_quoted:
            fields.add(" ".join(mark_quoted(item) for item in value))
        else:
            self._add(fields, value, splits=splits)

    def _list(self, name: str, fields: _Fields) -> None:
        """Add a quoted array: each item is a word."""
        for at, item in enumerate(self.scope.value(name) or ()):
            if at:
                fields.close()
            fields.add(mark_unquoted(item) if item == UNKNOWN else item)

    def _add(self, fields: _Fields, value: Value, *, splits: bool) -> None:
        if not splits:
            fields.add(" ".join(value))
            return
        separators = "".join(self.scope.value("IFS") or ())
        for at, item in enumerate(value):
            if at:
                fields.close()
            if is_known(separators):
                fields.split(item, separators)
            elif item:
                fields.add(SPREAD)

    def _value(self, node: Node) -> Value:
        """Return the value of `$x`, `${x}` or `${x…}`; UNKNOWN for forms that are not supported."""
        parts = node.named_children
        if not parts:
            return (UNKNOWN,)
        name, operators = parts[0], [c for c in node.children[1:-1] if not c.is_named]
        if node.type == "simple_expansion" or (not operators and len(parts) == 1):
            return self._plain(name)
        rest = parts[1:]
        inner = " ".join(self.text(part) for part in rest)
        self._stray(node)
        first = text_of(operators[0]) if operators else ""
        if first in ("!", "#") and operators[0].start_byte < name.start_byte:
            return (UNKNOWN,)
        if name.type not in ("variable_name", "special_variable_name"):
            return (UNKNOWN,)
        return self._changed(
            text_of(name), first, inner, text_between(node, name.end_byte, node.end_byte - 1)
        )

    def _stray(self, node: Node) -> None:
        """Assess backquotes inside `${…}`, which the grammar treats as plain text."""
        text = text_of(node)
        if "`" in text or "$(" in text:
            self.run(node)

    def _plain(self, name: Node) -> Value:
        if name.type == "subscript":
            return self._item(name)
        value = self.scope.value(text_of(name))
        if value is None:
            return ()
        return value if text_of(name) in ("@", "*") else value[:1]

    def _item(self, node: Node) -> Value:
        """Return `a[0]`, or all items of `a[@]`."""
        name, index = node.child_by_field_name("name"), node.child_by_field_name("index")
        number = text_of(index) if index else ""
        if not number.isalnum() and number not in ("@", "*"):
            self.run(node)
        value = self.scope.value(text_of(name)) if name else None
        if value is None:
            return ()
        if number in ("@", "*"):
            return value
        if not all(map(is_known, value)) or not number.isdecimal():
            return (UNKNOWN,)
        return value[int(number) : int(number) + 1]

    def _changed(self, name: str, operator: str, inner: str, raw: str) -> Value:
        value = self.scope.value(name)
        text = " ".join((value if name in ("@", "*") else value and value[:1]) or ())
        match operator:
            case ":-" | "-" | ":=" | "=":
                if text or (value is not None and not operator.startswith(":")):
                    return (text,)
                if operator in (":=", "="):
                    self.scope.variables[name] = (inner,)
                return (inner,)
            case ":+" | "+":
                return (inner,) if text else ()
            case ":?" | "?":
                return (text or UNKNOWN,)
            case _:
                return (apply_expansion_operator(text, operator, raw),)


def _blank_before(text: str) -> str:
    """Return the blanks that the grammar includes in a substitution."""
    blank = _BLANK_BEFORE.match(text)
    return blank[0].replace("\\\n", "") if blank else ""


def _array_name(node: Node) -> str:
    """Return the name in `$@` or `${a[@]}`, which expand to one word per item; else ''."""
    text = _BLANK_BEFORE.sub("", text_of(node))
    if text in ("$@", "${@}"):
        return "@"
    match = re.fullmatch(r"\$\{(\w+)\[@\]\}", text)
    return match[1] if match else ""


def join_words(words: list[Word]) -> str:
    """Join words into one text, as `eval` and `ssh` do."""
    return " ".join(plain(word.text) for word in words)
