"""Review a command line: every simple command in it, and what these run in turn.

The parse tree is walked once, without following control flow: a command counts in any position.
Words are expanded with the variables of the user's shell. Nothing is ever run, and a text whose
meaning is not certain counts as destructive.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from tree_sitter import Node

from brim.shell.risk import code, effects
from brim.shell.risk.calls import (
    ProgramCall,
    command_table,
    is_read_only_by_table,
    why_by_table,
)
from brim.shell.risk.findings import ReviewLog, Risk
from brim.shell.risk.places import Places
from brim.shell.risk.words import (
    UNKNOWN,
    Expander,
    UnreadableError,
    Word,
    check_word_boundaries,
    find_assigned,
    is_known,
    is_pattern,
    iterate_nodes,
    parse_command,
    plain,
    text_of,
)
from brim.shell.risk.wrappers import ASSIGNMENT, InnerCommand, find_inner_commands

DEEPEST: Final = 8
"""Levels of nested shells, scripts and aliases."""


@dataclass(frozen=True, slots=True)
class ShellNames:
    """The names that the user's shell knows."""

    variables: Mapping[str, str]
    aliases: Mapping[str, str]
    functions: frozenset[str] = frozenset()


_INDEX: Final = re.compile(r"\w\[[^\]]*(?:\$\(|`)")
"""An array index with a substitution, which some builtins run even in single quotes."""
_EVALUATED: Final = {
    "arithmetic_expansion": r"[A-Za-z_`]|\$(?!\(\()",
    "expansion": r":(?![-+?])|[@!\[=]",
    "test_command": r"-(?:eq|ne|lt|le|gt|ge)\b|^\(\(|-[vR]\s+(?!\w+\s)",
    "compound_statement": r"^\(\(",
}
"""Constructs that evaluate an expression, if their text matches."""
_DELIMITER: Final = re.compile(r"""\\?['"]?[\w.!:+-]+['"]?""")
_CONTINUED: Final = re.compile(r"['#]|<<")


@dataclass(slots=True)
class Review:
    """Reviews texts and commands, and records what it finds."""

    log: ReviewLog
    names: ShellNames
    places: Places
    whole: str
    """The outermost text."""
    depth: int = 0
    stdin: str | None = None
    """What a command without input of its own reads; None for the terminal."""
    assigned: set[str] = field(default_factory=set)
    """Variables whose values are unknown."""
    functions: set[str] = field(default_factory=set)
    """Functions that the text defines."""

    def inner(self, places: Places | None = None, stdin: str | None = None) -> Review:
        """Return a review of a shell inside this one."""
        places = places or self.places
        return replace(self, places=places, stdin=stdin, depth=self.depth + 1)

    def script(self, text: str, source: str) -> None:
        """Review a text as a script."""
        if not is_known(text):
            self.log.add(source, "what it runs is known only at run time")
            return
        if self.depth > DEEPEST:
            self.log.add(source, "it is nested too deeply")
            return
        self.log.count(source, parsed=len(text))
        if "\\\n" in text:
            if _CONTINUED.search(text):
                self.log.raise_to_other()
            text = text.replace("\\\n", "")
        try:
            root = parse_command(text)
            self.assigned |= find_assigned(text)
            variables, home = self.names.variables, str(self.places.home)
            self._walk(root, Expander(variables, home, self.assigned))
        except UnreadableError as error:
            self.log.add(source, str(error))

    def _walk(self, root: Node, expander: Expander) -> None:
        for node in iterate_nodes(root):
            if node.type == "function_definition":
                self.functions.add(text_of(node.child_by_field_name("name") or node))
        for node in iterate_nodes(root):
            if node.type not in command_table().names["nodes"]:
                self.log.raise_to_other()
            match node.type:
                case "command":
                    self._command(node, expander)
                case "declaration_command" | "variable_assignment":
                    self._assignment(node, expander)
                case "file_redirect":
                    self._redirect(node, expander)
                case "heredoc_redirect":
                    self._document(node)
                case "function_definition":
                    self._function(node)
                case _:
                    self._check_evaluation(node)

    def _check_evaluation(self, node: Node) -> None:
        """Check the constructs that run a text, or that the grammar does not report."""
        text = text_of(node)
        if node.type in ("raw_string", "ansi_c_string") and _INDEX.search(text):
            self.log.add(text, "a substitution in an array index runs")
        elif node.type == "expansion" and re.search(r"`|\$\(", text):
            for piece in _substitutions(text):
                self.inner().script(piece, piece)
        elif node.type == "for_statement" and (name := node.child_by_field_name("variable")):
            self.assign(text_of(name), "", text, is_prefix=False)
        elif (pattern := _EVALUATED.get(node.type)) and re.search(pattern, text):
            self.log.raise_to_other()  # the value of a variable can be an index that runs something

    def _function(self, node: Node) -> None:
        """A function that calls itself in the background fills the machine."""
        name = text_of(node.child_by_field_name("name") or node)
        body = text_of(node.child_by_field_name("body") or node)
        if "&" in body.replace("&&", "") and re.search(
            rf"(?<![\w-]){re.escape(name)}\b|:\s*\|", body
        ):
            self.log.add(text_of(node), "calls itself without end")

    def _command(self, node: Node, expander: Expander) -> None:
        check_word_boundaries(node)
        source = text_of(node)
        words: list[Word] = []
        for child in node.children:
            parts = child.named_children[:1] if child.type == "command_name" else [child]
            if child.type == "file_redirect":
                parts = child.children_by_field_name("destination")[1:]
            if child.type not in ("variable_assignment", "herestring_redirect"):
                words += [word for part in parts for word in expander.words(part)]
        arguments = node.children_by_field_name("argument")
        if arguments and [word.text for word in words] == ["cd"]:
            words.append(Word("", (text_of(arguments[0]),)))
        stdin = _find_input(node, expander)
        self.run(words, self.stdin if stdin is None else stdin, source)

    def _assignment(self, node: Node, expander: Expander) -> None:
        parent = node.parent.type if node.parent else ""
        if node.type == "declaration_command" or parent == "declaration_command":
            self.log.raise_to_other()
        if node.type != "variable_assignment":
            return
        name = text_of(node.named_children[0])
        value = node.child_by_field_name("value")
        text = expander.text(value) if value is not None else ""
        self.assign(name, text, text_of(node), is_prefix=parent == "command")

    def assign(self, name: str, value: str, source: str, *, is_prefix: bool) -> None:
        """Review an assignment: some variables hold commands, or load code."""
        table = command_table().names
        if name in table["loaders"] or name.startswith("GIT_CONFIG"):
            self.log.add(source, f"{name} makes programs load other code")
        elif name in table["commands"]:
            if "$(" in value or "`" in value:
                self.log.add(source, "its value runs commands")
            elif value and not name.startswith("PS"):
                self.inner().script(value, source)
            self.log.raise_to_other()
        elif name == "PATH" and re.search(r"(^|:)(?![/~:\ue000]|$)", value):
            self.log.add(source, "programs would be taken from a relative folder")
        elif not any(fnmatchcase(name, pattern) for pattern in table["harmless"]):
            is_new = name.isidentifier() and name.islower() and name not in self.names.variables
            if name == "IFS" and is_prefix:
                return
            if is_prefix or not is_new:
                self.log.raise_to_other()

    def _redirect(self, node: Node, expander: Expander) -> None:
        check_word_boundaries(node)
        operator = next((text_of(c) for c in node.children if not c.is_named), "")
        targets = node.children_by_field_name("destination")
        words = [word for target in targets for word in expander.words(target)]
        name = words[0].text if words else ""
        if words[1:]:
            self.log.raise_to_other()  # words of a command, which the grammar reports here
        if operator == "<" and not re.match(rf"{UNKNOWN}|/+dev/+(tcp|udp)\b", name):
            return
        if operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", plain(name)):
            return
        if targets and targets[0].type == "process_substitution":
            return
        if name in ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"):
            return
        self.log.raise_to_other()
        why = self.places.why_overwritten(name, appends=">>" in operator)
        if why:
            self.log.add(text_of(node), why)

    def _document(self, node: Node) -> None:
        """Review the substitutions in a here-document, which the grammar may not report."""
        start = next((text_of(c) for c in node.children if c.type == "heredoc_start"), "")
        if not _DELIMITER.fullmatch(start):
            self.log.add(start, "the end of its here-document is ambiguous")
        if any(sign in start for sign in "'\"\\"):
            return
        for child in node.named_children:
            if child.type == "heredoc_body":
                for piece in _substitutions(text_of(child)):
                    self.inner().script(piece, piece)

    # One command

    def run(self, words: Sequence[Word], stdin: str | None, source: str) -> None:
        """Review a command and everything that it runs."""
        if not words:
            return
        self.log.count(source, calls=1)
        first = plain(words[0].text)
        name = self._program_name(words[0], source)
        if name is None:
            return
        call = ProgramCall(name, tuple(words[1:]), self.places, stdin)
        alias = self.names.aliases.get(first)
        if alias is not None and words[0].is_bare:
            self._run_alias(first, alias, call, source)
            return
        if name in ("cd", "pushd"):
            self._enter(call)
        if name == "read":
            for text in call.operands("-p", "-d", "-n", "-t", "-N", "-i"):
                self.assigned.add(text)
                self.assign(text, "", source, is_prefix=False)
        if name in ("eval", "source", ".") and code.is_trusted_output(source):
            self.log.raise_to_other()
            return
        if "/" in first or first in self.functions or first in self.names.functions:
            self.log.raise_to_other()
        if "/" in first and not self.places.is_remote:
            code.review_file(self, words[0].text, call, source, is_program=True)
        self._run_program(call, words, source)

    def _run_alias(self, name: str, text: str, call: ProgramCall, source: str) -> None:
        kept = {key: value for key, value in self.names.aliases.items() if key != name}
        inside = replace(self.inner(), names=replace(self.names, aliases=kept))
        if re.fullmatch(r"[\w ./:=+-]+", text):
            words = [Word(part) for part in text.split()]
            inside.run([*words, *call.words], call.stdin, source)
        else:
            self.log.raise_to_other()
            inside.script(text, source)

    def _program_name(self, word: Word, source: str) -> str | None:
        """Return the program's name without its folder; None, with a finding, if it is unknown."""
        last = word.text.rpartition("/")[2]
        if not is_known(last) or is_pattern(word.text) or ASSIGNMENT.match(word.text):
            self.log.add(source, "which program this runs is known only at run time")
            return None
        name = last.lower().removesuffix(".exe").lstrip("=")
        if name.startswith(("!", "^")) and len(name) > 1:
            self.log.add(source, "it repeats an earlier command")
            return None
        return name

    def _enter(self, call: ProgramCall) -> None:
        """Follow `cd`: later names may be relative to the new folder."""
        words = [word for word in call.words if not re.fullmatch(r"-[LPe@n]*|--", word.text)]
        word = next(iter([*words, Word(str(self.places.home))]))
        self.places = self.places.enter(word.text, word.empties)

    def _run_program(self, call: ProgramCall, words: Sequence[Word], source: str) -> None:
        inner = list(find_inner_commands(call))
        if call.name in ("env", "sudo", "doas"):
            for match in filter(None, (ASSIGNMENT.fullmatch(plain(text)) for text in call.texts)):
                self.assign(match[1], match[2], source, is_prefix=True)
        why = why_by_table(call) if not inner or call.name in command_table().destructive else None
        why = why or effects.why_destructive(call) or code.why_inline(call)
        if why:
            self.log.add(source, why)
        if call.name in command_table().names["shells"]:
            self.log.raise_to_other()
            code.review_shell(self, call, source)
        elif inner:
            self._run_inner(call, inner, source)
        elif not self._is_read_only(call, words):
            self.log.raise_to_other()
            code.review_program(self, call, source)

    def _is_read_only(self, call: ProgramCall, words: Sequence[Word]) -> bool:
        if self.places.is_remote or self.log.risk is not Risk.READ_ONLY:
            return False
        if not (is_read_only_by_table(call) or effects.is_read_only(call)):
            return False
        secrets = command_table().patterns["secret_files"]  # not to be read without a question
        if any(secrets.search(plain(text)) for text in call.texts):
            return False
        folders = self.names.variables.get("PATH")
        if plain(words[0].text) != call.name or re.search(r"(^|:)(?!/|~)", folders or "/"):
            return False  # another program, or one in a relative folder
        path = shutil.which(call.name, path=folders)
        if path is not None and self.places.is_own_program(path):
            return False
        if call.name in ("git", "gh"):
            return _is_plain_git(call)
        return True

    # Programs that run others

    def _run_inner(self, call: ProgramCall, inner: Sequence[InnerCommand], source: str) -> None:
        is_found = call.name in ("find", "gfind", "fd", "fdfind", "stdbuf")
        writes = not is_found and call.has("-o", "--output", "-x", "--exec")
        if writes or not all("quiet" in traits for _, traits in inner):
            self.log.raise_to_other()
        stdin = None if call.name == "xargs" else call.stdin
        for found, traits in inner:
            is_remote = "remote" in traits
            review = self.inner(self.places.elsewhere() if is_remote else None, stdin)
            if isinstance(found, str):
                review.script(found, source)
            elif self.depth > DEEPEST:
                self.log.add(source, "it is nested too deeply")
            else:
                review.run(found, stdin, source)


def _is_plain_git(call: ProgramCall) -> bool:
    """Return whether git is called without global options that run something, in a plain place."""
    folder, texts = None, call.texts
    at = next(iter(call.subcommand_positions()), len(texts))
    for before, text in zip(["", *texts], texts[:at], strict=False):
        if before == "-C":
            folder = text
        elif text not in ("-C", "--no-pager", "-P", "--no-optional-locks", "--version", "--help"):
            return False
    return call.places.has_plain_repository(folder)


def _find_input(node: Node, expander: Expander) -> str | None:
    """Return what a command reads, as far as it is known; None for the terminal."""
    at: Node | None = node
    while at is not None:
        for child in at.named_children if at == node or at.type == "redirected_statement" else ():
            if child.type == "herestring_redirect":
                return expander.text(child.named_children[-1])
            if child.type == "heredoc_redirect":
                return _document_text(child)
            if child.type == "file_redirect" and child.children[-2].type == "<":
                return "" if text_of(child.children[-1]) == "/dev/null" else UNKNOWN
        parent = at.parent
        is_piped = (
            parent is not None and parent.type == "pipeline" and parent.named_children[0] != at
        )
        if is_piped or (parent is not None and parent.type == "heredoc_redirect"):
            return UNKNOWN
        at = parent
    return None


def _document_text(node: Node) -> str:
    """Return the text of a here-document; UNKNOWN if the shell expands it."""
    parts = {child.type: text_of(child) for child in node.named_children}
    body, start = parts.get("heredoc_body", UNKNOWN), parts.get("heredoc_start", "")
    is_raw = any(sign in start for sign in "'\"\\")
    return body if is_raw or not re.search(r"[$`\\]", body) else UNKNOWN


def _substitutions(text: str) -> Iterator[str]:
    """Yield the commands that a here-document runs."""
    yield from re.split(r"(?<!\\)`", text)[1::2]
    for match in re.finditer(r"(?<!\\)\$\((?!\()", text):
        depth = 0
        for at in range(match.end() - 1, len(text)):
            depth += (text[at] == "(") - (text[at] == ")")
            if not depth:
                yield text[match.end() : at]
                break
        else:
            yield UNKNOWN
