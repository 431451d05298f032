"""Review a command line: every simple command in it, and what these run in turn.

The parse tree is walked once, without following control flow: a command counts in any position.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Final

from tree_sitter import Node

from brim.shell.risk import effects, syntax
from brim.shell.risk.calls import ProgramCall, is_read_only_by_table, load_rules, why_by_table
from brim.shell.risk.findings import CALL_WORK, Assessment, LimitReachedError
from brim.shell.risk.inner import InnerCommand, RunFile, find_inner_commands, find_run_code
from brim.shell.risk.places import Places
from brim.shell.risk.syntax import UNKNOWN, Expander, Word, is_known, is_pattern, plain, text_of
from brim.shell.risk.table import language_of, load_names, load_patterns

DEEPEST: Final = 8
"""Levels of nested shells, scripts and aliases."""


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
    constants: frozenset[str] = frozenset()
    """Variables that the outermost text sets, but whose values are known."""

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
        if "\\\n" in text and load_patterns()["continued"].search(text):
            self.log.raise_to_other()
        text = text.replace("\\\n", "")
        try:
            root = syntax.parse_command(text)
            if load_patterns()["endless"].search(text):
                self.log.add(source, "calls itself without end")
            constants = set() if self.depth else self.constants
            self.assigned |= syntax.find_assigned(text) - constants
            self._walk(root, Expander(self.variables, str(self.places.home), self.assigned))
        except syntax.UnreadableError as error:
            self.log.add(source, str(error))

    def _walk(self, root: Node, expander: Expander) -> None:
        """Review all nodes in the order of the text, each with the input that it has."""
        waiting = [(root, self.stdin, 0)]
        while waiting:
            node, stdin, depth = waiting.pop()
            if depth > syntax.DEEPEST_TREE:
                raise syntax.UnreadableError("it is nested too deeply")
            own = syntax.find_input(node, expander, stdin)
            self._node(node, own, expander)
            stdin = own if node.type == "redirected_statement" else stdin
            for child in reversed(node.named_children):
                is_piped = node.type == "pipeline" and child != node.named_children[0]
                is_fed = is_piped or node.type == "heredoc_redirect"
                waiting.append((child, UNKNOWN if is_fed else stdin, depth + 1))

    def _node(self, node: Node, stdin: str | None, expander: Expander) -> None:
        is_export = load_patterns()["exports"].fullmatch(text_of(node))
        if node.type not in load_names()["nodes"] and not is_export:
            self.log.raise_to_other()
        match node.type:
            case "command":
                self._command(node, stdin, expander)
            case "variable_assignment":
                value, outer = node.child_by_field_name("value"), node.parent
                is_prefix = outer is not None and outer.type == "command"
                text = expander.text(value) if value is not None else ""
                name = text_of(node.named_children[0])
                self.assign(name, text, text_of(node), is_prefix=is_prefix)
            case "file_redirect":
                self._redirect(node, expander)
            case "for_statement" if loop := node.child_by_field_name("variable"):
                self.assign(text_of(loop), "", text_of(node), is_prefix=False)
            case "heredoc_redirect":
                if not syntax.read_document(node)[1]:
                    self.log.add(text_of(node), "its here-document is ambiguous")
            case _:
                self._check_evaluation(node, expander)

    def _check_evaluation(self, node: Node, expander: Expander) -> None:
        """Check the constructs that run a text, or that the grammar does not report."""
        text, pattern = text_of(node), load_patterns("evaluated").get(node.type)
        if node.type.endswith("string") and load_patterns()["index"].search(text):
            self.log.add(text, "a substitution in an array index runs")
        elif node.type == "expansion" and ("@P" in text or syntax.hides_substitution(node)):
            self.log.add(text, "may run the commands in a variable")
        elif pattern and pattern.search(text) and not expander.is_number(text):
            self.log.raise_to_other()  # the value of a variable can be an index that runs something

    def _command(self, node: Node, stdin: str | None, expander: Expander) -> None:
        syntax.check_word_boundaries(node)
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

    def assign(self, name: str, value: str, source: str, *, is_prefix: bool) -> None:
        """Review an assignment: some variables hold commands, or load code."""
        table = load_names()
        if name in table["loaders"] or name.startswith("GIT_CONFIG"):
            self.log.add(source, f"{name} makes programs load other code")
        elif name in table["commands"]:
            if "$(" in value or "`" in value:
                self.log.add(source, "its value runs commands")
            elif value and not name.startswith("PS"):
                self.inner().script(value, source)
            self.log.raise_to_other()
        elif name == "PATH" and re.search(r"(^|:)(?![/~:\ue000\ue004]|$)", value):
            self.log.add(source, "programs would be taken from a relative folder")
        elif not any(fnmatchcase(name, pattern) for pattern in table["harmless"]):
            is_known = name in self.variables and name not in self.constants
            is_new = bool(re.fullmatch(r"[a-z_][a-z_0-9]*", name)) and not is_known
            if not (is_prefix if name == "IFS" else is_new and not is_prefix):
                self.log.raise_to_other()

    def _redirect(self, node: Node, expander: Expander) -> None:
        syntax.check_word_boundaries(node)
        operator = next((text_of(c) for c in node.children if not c.is_named), "")
        targets = node.children_by_field_name("destination")
        words = [word for target in targets for word in expander.words(target)]
        name = words[0].text if words else ""
        if words[1:]:
            self.log.raise_to_other()  # words of a command, which the grammar reports here
        is_input = operator == "<" and not re.match(r"/+dev/+(tcp|udp)\b", name)
        is_copy = operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", plain(name))
        is_process = bool(targets) and targets[0].type == "process_substitution"
        is_harmless = is_copy or is_process or name in load_names()["streams"]
        if is_harmless or (is_input and not name.startswith(UNKNOWN)):
            return
        self.log.raise_to_other()
        why = self.places.why_overwritten(name, appends=">>" in operator)
        if why and not is_input:
            self.log.add(text_of(node), why)

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
        is_installed = not is_known(first) or load_patterns()["installed"].match(first)
        if "/" in first and not is_installed and not self.places.is_remote:
            self._run_file(RunFile(first), call, source)
        self._run_program(call, words, source)

    def _program_name(self, word: Word, source: str) -> str | None:
        """Return the program's name without its folder; None, with a finding, if it is unknown."""
        last = word.text.rpartition("/")[2]
        is_clear = is_known(last) and not is_pattern(word.text)
        if not is_clear or load_patterns()["no_name"].match(word.text):
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
            matches = (load_patterns()["assignment"].fullmatch(plain(text)) for text in call.texts)
            for match in filter(None, matches):
                self.assign(match[1], match[2], source, is_prefix=True)
        is_listed = not inner or call.name in load_rules("destructive")
        if why := (why_by_table(call) if is_listed else None) or effects.why_destructive(call):
            self.log.add(source, why)
        if inner or not self._is_read_only(call, words):
            self._run_inner(call, inner or list(find_run_code(call)), source)

    def _is_read_only(self, call: ProgramCall, words: Sequence[Word]) -> bool:
        if self.places.is_remote or not self.log.is_read_only or not is_read_only_by_table(call):
            return False
        if _names_secret(call):
            return False
        folders, named = self.variables.get("PATH"), plain(words[0].text)
        path = shutil.which(named, path=folders)
        is_named = named in (call.name, *load_names()["capitals"])
        is_relative = re.search(r"(^|:)(?!/|~)", folders or "/")
        if is_relative or not is_named or (path and self.places.is_own_program(path)):
            return False
        return call.name not in ("git", "gh") or self.places.has_plain_repository(_git_folder(call))

    def _run_inner(self, call: ProgramCall, inner: Sequence[InnerCommand], source: str) -> None:
        is_found = call.name in ("find", "gfind", "fd", "fdfind", "stdbuf")
        writes = not is_found and call.has("-o", "--output", "-x", "--exec")
        is_noisy = not inner or not all("quiet" in traits for _, traits in inner)
        if writes or is_noisy or _names_secret(call):
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

    def _run_file(self, file: RunFile, call: ProgramCall, source: str) -> None:
        """Review a file that is run: it is as dangerous as its content."""
        name = plain(file.name)
        if not is_known(name):
            self.log.add(source, "runs a file that is known only at run time")
            return
        if has_changed := self.places.has_changed(name):
            self.log.runs_changed_file |= self.places.exists(name)
        elif load_patterns()["users_files"].search(name):
            return
        text = self.places.read(name) if file.parts is None else None
        if file.parts is not None:
            for part in file.parts:
                self.inner().script(part, f"{source}: {part}")
        elif text is None:
            self._run_missing_file(name, source)
        elif (has_changed or len(text) <= syntax.LONGEST) and _is_shell_script(name, text, call):
            self.inner().script(text, f"{source}: {name}")
        elif found := load_patterns()["removes"].search(text):
            self.log.add(source, f"{name} can remove things ({found[0].strip()[:40]})")

    def _run_missing_file(self, name: str, source: str) -> None:
        """A file that is not there yet, or is no text: the same line may write it."""
        base = re.escape(name.rpartition("/")[2])
        is_mentioned = len(re.findall(rf"(?<![\w.-]){base}(?![\w.-])", self.whole)) > 1
        is_new = is_mentioned and not self.places.exists(name)
        if is_new or name.startswith(("/dev/", "/proc/")):
            self.log.add(source, f"runs {name}, whose content is known only at run time")


def _names_secret(call: ProgramCall) -> bool:
    """Return whether a program may show a secret file, which is not read without a question."""
    is_secret = load_patterns()["secret_files"].search
    names = {call.name, ":".join([call.name, *call.texts[:1]])}
    is_lister = names & load_names()["listers"] and not call.has(*load_names()["execs"])
    return not is_lister and any(map(is_secret, map(plain, call.texts)))


def _is_shell_script(name: str, text: str, call: ProgramCall) -> bool:
    first = text.partition("\n")[0]
    if first.startswith("#!"):
        return language_of(re.split(r"[/\s]", first.strip())[-1]) is None
    is_other = name.lower().endswith((*load_names()["suffixes"],))
    return not is_other and language_of(call.name) is None


def _git_folder(call: ProgramCall) -> str:
    """Return the folder in which git runs."""
    at = next((at for at, _ in call.subcommand_positions()), 0)
    return str(Path(*(value for last, value in pairwise(call.texts[:at]) if last == "-C")))
