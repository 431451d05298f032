"""Review a command line: every simple command in it, and what these run in turn.

The parse tree is walked once, without following control flow: a command counts in any position.
Words are expanded with the variables of the user's shell. Nothing is ever run, and a text whose
meaning is not certain counts as destructive.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from tree_sitter import Node

from brim.shell.risk import effects
from brim.shell.risk.calls import (
    ProgramCall,
    command_table,
    is_read_only_by_table,
    language_of,
    why_by_table,
)
from brim.shell.risk.findings import CALL_WORK, Assessment, LimitReachedError
from brim.shell.risk.inner import (
    ASSIGNMENT,
    InnerCommand,
    RunFile,
    find_inner_commands,
    find_run_code,
)
from brim.shell.risk.places import Places
from brim.shell.risk.words import (
    DEEPEST_TREE,
    LONGEST,
    UNKNOWN,
    Expander,
    UnreadableError,
    Word,
    check_word_boundaries,
    find_assigned,
    find_input,
    hides_substitution,
    is_known,
    is_pattern,
    parse_command,
    plain,
    text_of,
)

DEEPEST: Final = 8
"""Levels of nested shells, scripts and aliases."""


_INDEX: Final = re.compile(r"\w\[[^\]]*(?:\$\(|`)")
"""An array index with a substitution, which some builtins run although it is quoted."""
_DELIMITER: Final = re.compile(r"""\\?['"]?[\w.!:+-]+['"]?""")
_STREAMS: Final = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty")
_NO_NAME: Final = re.compile(r"[!^].|[A-Za-z_]\w*\+?=")
"""An earlier command, or an assignment."""
_CONTINUED: Final = re.compile(r"['#]|<<")


@dataclass(slots=True)
class Review:
    """Reviews texts and commands, and records what it finds."""

    log: Assessment
    places: Places
    whole: str
    """The outermost text."""
    variables: Mapping[str, str]
    """Those of the user's shell, as the aliases and functions."""
    aliases: Mapping[str, str]
    functions: frozenset[str]
    depth: int = 0
    stdin: str | None = None
    """What a command without input of its own reads; None for the terminal."""
    assigned: set[str] = field(default_factory=set)
    """Variables whose values are unknown."""

    def inner(self, stdin: str | None = None) -> Review:
        """Return a review of a shell inside this one."""
        if self.depth >= DEEPEST:
            self.log.add(self.whole, "it is nested too deeply")
            raise LimitReachedError
        return replace(self, stdin=stdin, depth=self.depth + 1)

    def script(self, text: str, source: str) -> None:
        """Review a text as a script."""
        if not is_known(text):
            self.log.add(source, "what it runs is known only at run time")
            return
        self.log.count(source, len(text))
        if "\\\n" in text and _CONTINUED.search(text):
            self.log.raise_to_other()
        text = text.replace("\\\n", "")
        try:
            root = parse_command(text)
            if command_table().patterns["endless"].search(text):
                self.log.add(source, "calls itself without end")
            self.assigned |= find_assigned(text)
            self._walk(root, Expander(self.variables, str(self.places.home), self.assigned))
        except UnreadableError as error:
            self.log.add(source, str(error))

    def _walk(self, root: Node, expander: Expander) -> None:
        """Review all nodes in the order of the text, each with the input that it has."""
        waiting = [(root, self.stdin, 0)]
        while waiting:
            node, stdin, depth = waiting.pop()
            if depth > DEEPEST_TREE:
                raise UnreadableError("it is nested too deeply")
            own = find_input(node, expander, stdin)
            self._node(node, own, expander)
            stdin = own if node.type == "redirected_statement" else stdin
            for child in reversed(node.named_children):
                is_piped = node.type == "pipeline" and child != node.named_children[0]
                is_fed = is_piped or node.type == "heredoc_redirect"
                waiting.append((child, UNKNOWN if is_fed else stdin, depth + 1))

    def _node(self, node: Node, stdin: str | None, expander: Expander) -> None:
        if node.type not in command_table().names["nodes"]:
            self.log.raise_to_other()
        match node.type:
            case "command":
                self._command(node, stdin, expander)
            case "variable_assignment":
                self._assignment(node, expander)
            case "file_redirect":
                self._redirect(node, expander)
            case "heredoc_redirect":
                self._document(node)
            case _:
                self._check_evaluation(node)

    def _check_evaluation(self, node: Node) -> None:
        """Check the constructs that run a text, or that the grammar does not report."""
        text = text_of(node)
        if node.type.endswith("string") and _INDEX.search(text):
            self.log.add(text, "a substitution in an array index runs")
        elif node.type == "expansion" and ("@P" in text or hides_substitution(node)):
            self.log.add(text, "may run the commands in a variable")
        elif node.type == "for_statement" and (name := node.child_by_field_name("variable")):
            self.assign(text_of(name), "", text, is_prefix=False)
        elif (pattern := command_table().evaluated.get(node.type)) and re.search(pattern, text):
            self.log.raise_to_other()  # the value of a variable can be an index that runs something

    def _command(self, node: Node, stdin: str | None, expander: Expander) -> None:
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
        self.run(words, stdin, source)

    def _assignment(self, node: Node, expander: Expander) -> None:
        is_prefix = node.parent is not None and node.parent.type == "command"
        name = text_of(node.named_children[0])
        value = node.child_by_field_name("value")
        text = expander.text(value) if value is not None else ""
        self.assign(name, text, text_of(node), is_prefix=is_prefix)

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
            is_new = name.isidentifier() and name.islower() and name not in self.variables
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
        is_copy = operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", plain(name))
        is_process = bool(targets) and targets[0].type == "process_substitution"
        if is_copy or is_process or name in _STREAMS:
            return
        self.log.raise_to_other()
        why = self.places.why_overwritten(name, appends=">>" in operator)
        if why:
            self.log.add(text_of(node), why)

    def _document(self, node: Node) -> None:
        """Check that the grammar finds the end of a here-document, and what it runs."""
        start = next((text_of(c) for c in node.children if c.type == "heredoc_start"), "")
        is_raw = any(sign in start for sign in "'\"\\")
        if not _DELIMITER.fullmatch(start):
            self.log.add(start, "the end of its here-document is ambiguous")
        elif not is_raw and any(map(hides_substitution, node.named_children)):
            self.log.add(start, "what its here-document runs is ambiguous")

    # One command

    def run(self, words: Sequence[Word], stdin: str | None, source: str) -> None:
        """Review a command and everything that it runs."""
        if not words:
            return
        self.log.count(source, CALL_WORK)
        first = plain(words[0].text)
        name = self._program_name(words[0], source)
        if name is None:
            return
        call = ProgramCall(name, tuple(words[1:]), self.places, stdin)
        alias = self.aliases.get(first)
        if alias is not None and words[0].is_bare:
            inside = self.inner(stdin)
            inside.aliases = {key: value for key, value in self.aliases.items() if key != first}
            inside.script(f"{alias}{source.removeprefix(first)}", source)
            return
        if name in ("cd", "pushd"):
            self._enter(call)
        if name == "read":
            for text in call.operands("-p", "-d", "-n", "-t", "-N", "-i"):
                self.assign(text, "", source, is_prefix=False)
        if "/" in first or first in self.functions:
            self.log.raise_to_other()
        is_installed = not is_known(first) or _INSTALLED.match(first)
        if "/" in first and not is_installed and not self.places.is_remote:
            self._run_file(RunFile(first), call, source)
        self._run_program(call, words, source)

    def _program_name(self, word: Word, source: str) -> str | None:
        """Return the program's name without its folder; None, with a finding, if it is unknown."""
        last = word.text.rpartition("/")[2]
        if not is_known(last) or is_pattern(word.text) or _NO_NAME.match(word.text):
            self.log.add(source, "which program this runs is known only at run time")
            return None
        return last.lower().removesuffix(".exe").lstrip("=")

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
        why = why or effects.why_destructive(call)
        if why:
            self.log.add(source, why)
        if inner or not self._is_read_only(call, words):
            self._run_inner(call, inner or list(find_run_code(call)), source)

    def _is_read_only(self, call: ProgramCall, words: Sequence[Word]) -> bool:
        if self.places.is_remote or not self.log.is_read_only or not is_read_only_by_table(call):
            return False
        secrets = command_table().patterns["secret_files"]  # not to be read without a question
        if any(secrets.search(plain(text)) for text in call.texts):
            return False
        folders = self.variables.get("PATH")
        if plain(words[0].text) != call.name or re.search(r"(^|:)(?!/|~)", folders or "/"):
            return False  # another program, or one in a relative folder
        path = shutil.which(call.name, path=folders)
        if path is not None and self.places.is_own_program(path):
            return False
        return call.name not in ("git", "gh") or _is_plain_git(call)

    # Programs that run others

    def _run_inner(self, call: ProgramCall, inner: Sequence[InnerCommand], source: str) -> None:
        is_found = call.name in ("find", "gfind", "fd", "fdfind", "stdbuf")
        writes = not is_found and call.has("-o", "--output", "-x", "--exec")
        if writes or not inner or not all("quiet" in traits for _, traits in inner):
            self.log.raise_to_other()
        stdin = None if call.name == "xargs" else call.stdin
        for found, traits in inner:
            review = self.inner(stdin)
            if "remote" in traits:
                review.places = replace(self.places, is_remote=True)
            if isinstance(found, RunFile):
                self._run_file(found, call, source)
            elif found == call.stdin == UNKNOWN:
                self.log.add(source, "runs the output of another command")
            elif isinstance(found, str):
                review.script(found, source)
            else:
                review.run(found, stdin, source)

    # Files that are run

    def _run_file(self, file: RunFile, call: ProgramCall, source: str) -> None:
        """Review a file that is run: it is as dangerous as its content."""
        name = plain(file.name)
        if not is_known(name):
            self.log.add(source, "runs a file that is known only at run time")
            return
        if has_changed := self.places.has_changed(name):
            self.log.runs_changed_file |= self.places.exists(name)
        elif command_table().patterns["users_files"].search(name):
            return
        text = self.places.read(name) if file.parts is None else None
        if file.parts is not None:
            for part in file.parts:
                self.inner().script(part, f"{source}: {part}")
        elif text is None:
            self._run_missing_file(name, source)
        elif (has_changed or len(text) <= LONGEST) and _is_shell_script(name, text, call):
            self.inner().script(text, f"{source}: {name}")
        elif found := command_table().patterns["removes"].search(text):
            self.log.add(source, f"{name} can remove things ({found[0].strip()[:40]})")

    def _run_missing_file(self, name: str, source: str) -> None:
        """A file that is not there yet, or is no text: the same line may write it."""
        base = re.escape(name.rpartition("/")[2])
        is_mentioned = len(re.findall(rf"(?<![\w.-]){base}(?![\w.-])", self.whole)) > 1
        is_new = is_mentioned and not self.places.exists(name)
        if is_new or name.startswith(("/dev/", "/proc/")):
            self.log.add(source, f"runs {name}, whose content is known only at run time")


_INSTALLED: Final = re.compile(r"/(usr/)?(local/)?s?bin/|/lib|/opt/")


def _is_shell_script(name: str, text: str, call: ProgramCall) -> bool:
    first = text.partition("\n")[0]
    if first.startswith("#!"):
        return language_of(re.split(r"[/\s]", first.strip())[-1]) is None
    is_other = name.lower().endswith((*command_table().names["suffixes"],))
    return not is_other and language_of(call.name) is None


def _is_plain_git(call: ProgramCall) -> bool:
    """Return whether git is called without global options that run something, in a plain place."""
    folder, texts = None, call.texts
    at = next((at for at, _ in call.subcommand_positions()), len(texts))
    for before, text in zip(["", *texts], texts[:at], strict=False):
        if before == "-C":
            folder = text
        elif text not in ("-C", "--no-pager", "-P", "--no-optional-locks", "--version", "--help"):
            return False
    return call.places.has_plain_repository(folder)
