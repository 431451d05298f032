"""Shell syntax: the parse tree of a command, and its words as far as they are known."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise, product
from math import prod
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from brim.errors import InputError
from brim.shell.risk.table import load_names, load_patterns

UNKNOWN: Final = "\ue000"
"""Text that is known only at run time."""
SOLID: Final = "\ue004"  # before UNKNOWN: words without blanks, none of which begins with a dash
_GLOBS: Final = {ord("*"): "\ue001", ord("?"): "\ue002", ord("["): "\ue003"}
_PLAIN: Final = {0xE001: "*", 0xE002: "?", 0xE003: "["}
_SHOWN: Final = {**_PLAIN, 0xE000: "…", 0xE004: ""}
_PRIVATE: Final = dict.fromkeys(range(0xE000, 0xE010), "\ufffd")

LONGEST: Final = 16_384
"""Characters that are parsed; the grammar can take quadratic time on invalid text."""
KNOTS: Final = ("=(", "<<", "${")
"""Constructs that make the grammar slow if there are many."""
MOST_KNOTS: Final = 300
MOST_COMBINATIONS: Final = 32
DEEPEST_TREE: Final = 90
"""Levels of nesting; finding the parent of a node takes longer, the deeper it is."""


class UnreadableError(InputError):
    """A command whose meaning cannot be determined."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command."""

    text: str
    """Without quotes; unquoted patterns and unknown parts are marked."""
    empties: tuple[str, ...] = ()
    """The variables in it that are empty."""
    is_bare: bool = False
    """Whether it is plain text without quotes, so that an alias applies."""


def clean(text: str) -> str:
    """Return external text without characters that could be mistaken for marks."""
    return text.translate(_PRIVATE).replace("\r\n", "\n")


def plain(text: str) -> str:
    """Return the text with patterns as typed; unknown parts stay marked."""
    return text.translate(_PLAIN)


def display(text: str) -> str:
    """Return the text for people to read."""
    return text.translate(_SHOWN)


def is_known(text: str) -> bool:
    return UNKNOWN not in text


def is_pattern(text: str) -> bool:
    return text.translate(_PLAIN) != text


def parse_command(text: str) -> Node:
    """Return the root of the parse tree; raise UnreadableError if it has errors."""
    if len(text) > LONGEST:
        raise UnreadableError(f"it is too long to parse ({len(text):,} characters)")
    if any(text.count(knot) > MOST_KNOTS for knot in KNOTS):
        raise UnreadableError("it is too complex to parse")
    if "\0" in text or "\r" in text:
        raise UnreadableError("it contains a control character")
    root = bash_parser().parse(text.encode("utf-8", "replace")).root_node
    if root.has_error:
        raise UnreadableError("it is not a valid shell command")
    return root


@cache
def bash_parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def text_of(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


_BLANK: Final = re.compile(rb"[ \t]+")


def check_word_boundaries(node: Node) -> None:
    """Raise UnreadableError if the grammar and a shell disagree about word boundaries."""
    whole, start = node.text or b"", node.start_byte
    for one, two in pairwise(node.children):
        gap = whole[one.end_byte - start : two.start_byte - start]
        is_joined = not gap and {one.type, two.type} <= load_names()["word_nodes"]
        if is_joined or (gap and not _BLANK.fullmatch(gap)):
            raise UnreadableError("its word boundaries are ambiguous")


def reads_alike_in_fish(text: str) -> bool:
    """Return whether fish certainly reads a command as the other shells do."""
    rest = load_patterns()["alike_in_fish"].sub("", text)
    is_nested = '"' in rest and bool(re.search(r"['\\]", text))
    return not is_nested and not load_patterns()["other_in_fish"].search(rest)


_BARE: Final = re.compile(r"\\(.)|(.)", re.DOTALL)
_QUOTED: Final = re.compile(r'\\([$`"\\])|\\\n')
_BRACES: Final = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_NAME: Final = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")


def find_assigned(text: str) -> set[str]:
    """Return the variables that a text may assign; rather too many."""
    if load_patterns()["assigners"].search(text):
        return set(re.findall(r"[A-Za-z_]\w*", text))
    return {name for names in load_patterns()["assigned"].findall(text) for name in names if name}


@dataclass(frozen=True, slots=True)
class Expander:
    """Expands words of a text; a variable that is `assigned` by the text itself is unknown."""

    variables: Mapping[str, str]
    home: str
    assigned: set[str]

    def words(self, node: Node) -> list[Word]:
        """Return the words that a node expands to: none if an unquoted variable is empty."""
        if node.type in ("simple_expansion", "expansion"):
            value = self._variable(node) if "IFS" not in self.assigned else UNKNOWN
            parts = value.split() if is_known(value) else [value]
            return [Word(part.translate(_GLOBS)) for part in parts]
        empties: list[str] = []
        text = self._expand(node, empties)
        if node.type in ("word", "concatenation") and text.startswith("~"):
            head, slash, rest = text.partition("/")
            text = (self.home if head == "~" else UNKNOWN) + slash + rest
        split = load_names()["split_nodes"]
        splits = [self.text(part) for part in node.named_children if part.type in split]
        if node.type == "concatenation" and not is_known(
            "".join(splits).replace(SOLID + UNKNOWN, "")
        ):
            text = UNKNOWN + text
        return [Word(text, tuple(empties), is_bare=text == text_of(node))]

    def text(self, node: Node) -> str:
        """Return the node as one text, without splitting."""
        return self._expand(node, [])

    def _expand(self, node: Node, empties: list[str]) -> str:
        match node.type:
            case "word" | "number" | "command_name" if not node.named_children:
                return _unquote_bare(text_of(node))
            case "ansi_c_string" if not re.search(r"\\[^tn\\]", text_of(node)):
                return text_of(node)[2:-1].replace("\\t", "\t").replace("\\n", "\n")
            case "process_substitution" if text_of(node).startswith("<"):
                return f"/dev/fd/{UNKNOWN}"
            case "string_content":
                return _QUOTED.sub(lambda m: m[1] or "", text_of(node))
            case "raw_string":
                return text_of(node)[1:-1]
            case "simple_expansion" | "expansion":
                value = self._variable(node)
                if not value:
                    empties.append(text_of(node))
                return value
            case "string" | "concatenation" | "command_name" | "word":
                return self._join(node, empties)
            case "command_substitution" if "IFS" not in self.assigned:
                return SOLID * bool(load_patterns()["solid"].fullmatch(text_of(node))) + UNKNOWN
            case _:
                return UNKNOWN

    def _join(self, node: Node, empties: list[str]) -> str:
        """Return the parts of a node together with the text between them."""
        whole, start = node.text or b"", node.start_byte
        ends = 1 if node.type == "string" else 0
        parts, at = [], start + ends
        for child in node.named_children:
            gap = whole[at - start : child.start_byte - start].decode("utf-8", "replace")
            parts.append(UNKNOWN if gap and node.type == "concatenation" else gap)
            value = self._expand(child, empties)
            if node.type == "concatenation" and child.type in ("simple_expansion", "expansion"):
                value = UNKNOWN if re.search(r"[\s*?\[]", value) else value
            parts.append(value)
            at = child.end_byte
        parts.append(whole[at - start : len(whole) - ends].decode("utf-8", "replace"))
        joined = "".join(parts)
        bare = (text_of(child) for child in node.children if not child.type.endswith("string"))
        braces = node.type == "concatenation" and _BRACES.search("".join(bare))
        return f"{UNKNOWN}{joined}{UNKNOWN}" if braces else joined

    def is_number(self, text: str) -> bool:
        """Return whether an arithmetic text has only variables with known numbers."""
        text = load_patterns()["counts"].sub("0", text)
        names = set(re.findall(r"(?<!-)\b[A-Za-z_]\w*", text))
        are_numbers = all(re.fullmatch(r"-?\d*", self.variables.get(name, "")) for name in names)
        is_simple = bool(load_patterns()["numbers"].fullmatch(text))
        return is_simple and are_numbers and names.isdisjoint(self.assigned)

    def _variable(self, node: Node) -> str:
        match = _NAME.fullmatch(text_of(node))
        if match is None or match[1] in self.assigned or match[1] in ("IFS", "_"):
            return UNKNOWN
        return self.variables.get(match[1], "")


def _unquote_bare(text: str) -> str:
    marked = _BARE.sub(lambda m: m[1] or m[2].translate(_GLOBS), text)
    return f"{UNKNOWN}{marked}{UNKNOWN}" if _BRACES.search(text) else marked


def find_input(node: Node, expander: Expander, outer: str | None) -> str | None:
    """Return what a command reads, as far as it is known; `outer` if it has no input of its own."""
    if node.type in ("command", "redirected_statement"):
        for child in node.named_children:
            if child.type == "herestring_redirect":
                return expander.text(child.named_children[-1])
            if child.type == "heredoc_redirect":
                return read_document(child)[0]
            if child.type == "file_redirect" and child.children[-2].type == "<":
                return "" if text_of(child.children[-1]) == "/dev/null" else UNKNOWN
    return outer


_DELIMITER: Final = re.compile(r"""\\?['"]?[\w.!:+-]+['"]?""")


def read_document(node: Node) -> tuple[str, bool]:
    """Return the text of a here-document, if not expanded, and whether it is read as in a shell."""
    parts = {child.type: text_of(child) for child in node.named_children}
    body, start = parts.get("heredoc_body", UNKNOWN), parts.get("heredoc_start", "")
    is_raw = any(sign in start for sign in "'\"\\")
    is_clear = is_raw or not any(map(hides_substitution, node.named_children))
    text = body if is_raw or not re.search(r"[$`\\]", body) else UNKNOWN
    return text, is_clear and bool(_DELIMITER.fullmatch(start))


def hides_substitution(node: Node) -> bool:
    """Return whether a text may run a command that the grammar does not report."""
    signs = re.findall(r"(?<!\\)(?:`|\$\((?!\())", text_of(node))
    return len(signs) > str(node).count("(command_substitution")


def find_values(text: str, variables: Mapping[str, str], home: str) -> Iterator[dict[str, str]]:
    """Yield the combinations of values, old ones too, of variables that get only known values."""
    is_set = load_patterns()["assigned"].search(text)
    if not is_set or load_patterns()["assigners"].search(text):
        return
    found: dict[str, list[list[str]]] = defaultdict(list)
    expander, waiting = Expander(variables, home, find_assigned(text)), [parse_command(text)]
    while waiting:
        node = waiting.pop()
        waiting += node.named_children
        if node.type in ("variable_assignment", "for_statement") and node.named_children:
            found[text_of(node.named_children[0])].append(list(_values(node, expander)))
    times = Counter(name for names in load_patterns()["assigned"].findall(text) for name in names)
    known = {
        name: {variables.get(name, ""), *chain(*values)}
        for name, values in found.items()
        if len(values) == times[name]
        and is_known("".join(chain(*values)).replace(SOLID + UNKNOWN, ""))
    }
    if known and prod(map(len, known.values())) <= MOST_COMBINATIONS:
        yield from (dict(zip(known, each, strict=True)) for each in product(*known.values()))


def _values(node: Node, expander: Expander) -> Iterator[str]:
    """Yield the values that an assignment or a loop gives to its variable."""
    nodes = node.children_by_field_name("value")
    if node.type == "for_statement":
        words = [word.text for each in nodes for word in expander.words(each)]
        yield from words or [UNKNOWN]
    elif text_of(node).partition("=")[0].endswith("+"):
        yield UNKNOWN
    elif nodes and nodes[0].type == "arithmetic_expansion":
        yield "1"  # always a number
    elif nodes and load_patterns()["counts"].fullmatch(text_of(nodes[0])):
        yield "1"
    else:
        yield " ".join(plain(word.text) for each in nodes for word in expander.words(each))
