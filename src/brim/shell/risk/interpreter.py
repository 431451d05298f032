"""Follow a parsed command statement by statement, as a shell would, without running it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from brim.shell.risk.builtins import assign, declare
from brim.shell.risk.expansion import Expansion, Word
from brim.shell.risk.file_view import FileView, is_start_file
from brim.shell.risk.findings import DEEPEST, FindingLog
from brim.shell.risk.programs import run_words
from brim.shell.risk.redirects import (
    Link,
    Redirects,
    chain_of,
    check_word_boundaries,
    follow_redirects,
)
from brim.shell.risk.shell_state import ShellState
from brim.shell.risk.syntax import (
    TRUSTED,
    UNKNOWN,
    UnreadableError,
    is_known,
    is_pattern,
    parse_command,
    plain,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

MOST_ROUNDS: Final = 16
"""Items of a `for` loop that are followed individually."""
LONGEST_OUTPUT: Final = 20_000
_STATEMENTS: Final = frozenset((
    "program", "compound_statement", "do_group", "subshell", "else_clause", "elif_clause",
    "command_substitution", "process_substitution",
))  # fmt: skip
_REDIRECTS: Final = frozenset(("file_redirect", "heredoc_redirect", "herestring_redirect"))


_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=")
"""An assignment that the grammar reports as a command name."""


class Interpreter:
    """One shell: its state, the findings, and how deeply it is nested."""

    def __init__(self, log: FindingLog, state: ShellState, depth: int = 0) -> None:
        self.log = log
        self.state = state
        self.depth = depth

    @property
    def files(self) -> FileView:
        state = self.state
        return FileView(state.folders, state.home, frozenset(state.arrivals), state.is_remote)

    def inner(self, state: ShellState | None = None) -> Interpreter:
        """Return an interpreter for a shell inside this one."""
        return Interpreter(self.log, state or self.state.copy(), self.depth + 1)

    def script(self, text: str, source: str, stdin: str | None = None) -> str:
        """Assess a text as a script; return what it prints."""
        if self.depth > DEEPEST:
            self.log.add(source, "it is nested too deeply")
            return UNKNOWN
        self.log.count_text(text)
        if text.strip() == TRUSTED:
            return ""
        if not is_known(text):
            self.log.add(source, "what it runs is known only at run time")
        try:
            return self.run(parse_command(text), stdin)
        except UnreadableError as error:
            self.log.add(text, str(error))
            return UNKNOWN

    def uncalled(self, name: str, body: Node) -> None:
        """Assess a function that is defined but not called."""
        self.state.params = None
        self.state.running |= {name}
        self.inner(self.state).run(body)

    def run(self, node: Node, stdin: str | None = None) -> str:
        """Assess one statement; return what it prints."""
        kind = node.type
        if kind in _STATEMENTS:
            return self._block(node, stdin)
        method = getattr(self, "_" + kind, None)
        if method is None:
            self.follow_substitutions(node)
            return UNKNOWN
        output: str = method(node, stdin)
        return output if len(output) < LONGEST_OUTPUT else UNKNOWN

    def follow_substitutions(self, node: Node) -> None:
        """Assess the substitutions inside a node that is not a command itself."""
        stack, found = [node], False
        while stack:
            current = stack.pop()
            if current.type in ("command_substitution", "process_substitution"):
                self.substitute(current)
                found = True
            else:
                stack += current.named_children
        text = text_of(node)
        if not found and ("`" in text or "$(" in text.replace("$((", "")):
            self.log.add(text, "it has a substitution that cannot be parsed")

    def substitute(self, node: Node) -> str:
        """Assess `$(…)` or `<(…)`; return what it prints."""
        if node.type not in ("command_substitution", "process_substitution"):
            self.follow_substitutions(node)
            return UNKNOWN
        if self.depth >= DEEPEST:
            self.log.add(text_of(node), "it is nested too deeply")
            return UNKNOWN
        if any(child.type == "file_redirect" for child in node.named_children):
            self.follow_children(node)
            return UNKNOWN
        is_sink = text_of(node).startswith(">")
        return self.inner()._block(node, UNKNOWN if is_sink else None)

    def follow_children(self, node: Node) -> None:
        for child in node.named_children:
            if child.type in _REDIRECTS:
                follow_redirects(self, [child])
            else:
                self.inner().run(child)

    def words(self, nodes: Sequence[Node]) -> list[Word]:
        expansion = Expansion(self.state, self.substitute)
        return [word for node in nodes for word in expansion.words(node)]

    def text(self, node: Node) -> str:
        return Expansion(self.state, self.substitute).text(node)

    # Statements: methods are named after the node types of the grammar.

    def _block(self, node: Node, stdin: str | None) -> str:
        if node.type == "compound_statement" and text_of(node).startswith("(("):
            self.follow_substitutions(node)
            return ""
        if node.type == "subshell":
            inside = Interpreter(self.log, self.state.copy(), self.depth)
            return inside._sequence(node.named_children, stdin)
        return self._sequence(node.named_children, stdin)

    def _sequence(self, nodes: Sequence[Node], stdin: str | None) -> str:
        output = ""
        for node in nodes:
            output += self.run(node, stdin)
            self.state.settle()
        return output

    def _comment(self, node: Node, stdin: str | None) -> str:  # noqa: ARG002
        return ""

    def _list(self, node: Node, stdin: str | None) -> str:
        return self._run_chain(chain_of(node), stdin)

    def _run_chain(self, chain: Sequence[Link], stdin: str | None) -> str:
        """Follow `a && b && c`; `a || b` is a chain with one link."""
        (first, redirects), *rest = chain
        if not rest and first.type == "list":
            return self._run_either(first, redirects, stdin)
        output = self._run_link(first, redirects, stdin)
        with self.state.maybe():
            return output + "".join([self._run_link(*link, stdin) for link in rest])

    def _run_either(self, node: Node, redirects: Sequence[Node], stdin: str | None) -> str:
        first, *rest = [n for n in node.named_children if n.type != "comment"]
        output = self.run(first, stdin)
        self.state.settle()
        with self.state.maybe():
            return output + "".join([self._run_link(part, redirects, stdin) for part in rest])

    def _run_link(self, node: Node, redirects: Sequence[Node], stdin: str | None) -> str:
        return self._redirected(node, redirects, stdin) if redirects else self.run(node, stdin)

    def _negated_command(self, node: Node, stdin: str | None) -> str:
        return self._sequence(node.named_children, stdin)

    def _pipeline(self, node: Node, stdin: str | None) -> str:
        *stages, last = [n for n in node.named_children if n.type != "comment"]
        for stage in stages:
            stdin = Interpreter(self.log, self.state.copy(), self.depth).run(stage, stdin)
        if not stages and stdin is None:
            stdin = UNKNOWN
        with self.state.maybe():
            return self.run(last, stdin)

    def _if_statement(self, node: Node, stdin: str | None) -> str:
        then = next(child.start_byte for child in node.children if child.type == "then")
        parts = node.named_children
        clauses = [child for child in parts if child.type in ("elif_clause", "else_clause")]
        self._sequence([child for child in parts if child.start_byte < then], stdin)
        with self.state.maybe():
            body = [c for c in parts if c.start_byte > then and c not in clauses]
            self._sequence(body, stdin)
        for clause in clauses:
            with self.state.maybe():
                self.run(clause, stdin)
        return UNKNOWN

    def _while_statement(self, node: Node, stdin: str | None) -> str:
        return self._rounds(node.named_children, stdin)

    def _rounds(self, nodes: Sequence[Node], stdin: str | None) -> str:
        """Follow a loop twice: the second round sees the state that the first one left."""
        for _ in range(2):
            with self.state.maybe():
                self._sequence(nodes, stdin)
        return UNKNOWN

    def _c_style_for_statement(self, node: Node, stdin: str | None) -> str:
        body = node.child_by_field_name("body")
        for child in node.named_children:
            if child != body:
                self.follow_substitutions(child)
        name = re.search(r"\(\(\s*(\w+)\s*=", text_of(node))
        if name:
            self.state.variables[name[1]] = (UNKNOWN,)
        return self._rounds([body] if body else [], stdin)

    def _for_statement(self, node: Node, stdin: str | None) -> str:
        name = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if name is None or body is None:
            return UNKNOWN
        given = any(child.type == "in" for child in node.children)
        items = self._items(node) if given else list(self.state.value("@") or ())
        known = len(items) <= MOST_ROUNDS and all(is_known(item) for item in items)
        for item in items if known else [UNKNOWN, UNKNOWN]:
            with self.state.maybe():
                self.state.variables[text_of(name)] = (item,)
                self.run(body, stdin)
        self.state.variables[text_of(name)] = (UNKNOWN,)
        return UNKNOWN

    def _items(self, node: Node) -> list[str]:
        """Return the items of a `for` loop, with patterns matched against files."""
        items: list[str] = []
        for word in self.words(node.children_by_field_name("value")):
            if is_pattern(word.text) and is_known(word.text):
                items += self.files.matches(word.text) or (UNKNOWN,)
            else:
                items.append(word.text)
        return items

    def _case_statement(self, node: Node, stdin: str | None) -> str:
        for child in node.named_children:
            if child.type == "case_item":
                with self.state.maybe():
                    self._case_item(child, stdin)
            else:
                self.words([child])
        return UNKNOWN

    def _case_item(self, node: Node, stdin: str | None) -> str:
        patterns = node.children_by_field_name("value")
        for child in node.named_children:
            if child in patterns:
                self.follow_substitutions(child)
            else:
                self.run(child, stdin)
        return UNKNOWN

    def _function_definition(self, node: Node, stdin: str | None) -> str:  # noqa: ARG002
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            return ""
        called = plain(self.text(name))
        self.state.functions[called] = body
        self.log.pending[body.id] = (called, body, self.state.copy())
        follow_redirects(self, [child for child in node.named_children if child.type in _REDIRECTS])
        return ""

    def _test_command(self, node: Node, stdin: str | None) -> str:  # noqa: ARG002
        self.follow_substitutions(node)
        return ""

    def _variable_assignments(self, node: Node, stdin: str | None) -> str:
        check_word_boundaries(node)
        return self._sequence(node.named_children, stdin)

    def _variable_assignment(self, node: Node, stdin: str | None) -> str:  # noqa: ARG002
        assign(self, node)
        return ""

    def _declaration_command(self, node: Node, stdin: str | None) -> str:  # noqa: ARG002
        check_word_boundaries(node)
        flags = ""
        for child in node.named_children:
            if child.type == "variable_assignment":
                name = assign(self, child)
                if name and "n" in flags:
                    self.state.variables[name] = (UNKNOWN,)
                continue
            for word in self.words([child]):
                flags += word.text if word.text.startswith("-") else ""
                declare(self, word.text, is_name="n" in flags)
        return ""

    def _unset_command(self, node: Node, stdin: str | None) -> str:  # noqa: ARG002
        for word in self.words(node.named_children):
            self.state.variables.pop(plain(word.text), None)
            if "$(" in word.text or "`" in word.text:
                self.log.add(text_of(node), "a substitution in an array index runs")
        return ""

    # Commands and their redirections.

    def _redirected_statement(self, node: Node, stdin: str | None) -> str:
        body = node.child_by_field_name("body")
        if body is not None and body.type == "list":
            return self._run_chain(chain_of(node), stdin)
        return self._redirected(body, [c for c in node.named_children if c != body], stdin)

    def _redirected(self, body: Node | None, nodes: Sequence[Node], stdin: str | None) -> str:
        """Follow a statement with redirections, which apply to the last command of `a && b > c`."""
        if body is not None and body.type in ("list", "pipeline", "negated_command"):
            return self._redirected_last(body, nodes, stdin)
        redirects = follow_redirects(self, nodes)
        given = stdin if redirects.stdin is None else redirects.stdin
        if body is None:
            output = self._run_words(redirects.words, given, " ".join(map(text_of, nodes)))
        elif body.type == "command":
            output = self._command(body, given, redirects.words)
        elif redirects.words:
            raise UnreadableError("its word boundaries are ambiguous")
        else:
            output = self.run(body, given)
        return self._later(self._kept(redirects, output), redirects)

    def _redirected_last(self, body: Node, nodes: Sequence[Node], stdin: str | None) -> str:
        if body.type == "list":
            *links, (end, redirects) = chain_of(body)
            return self._run_chain([*links, (end, [*redirects, *nodes])], stdin)
        *before, last = [n for n in body.named_children if n.type != "comment"]
        for node in before:
            stdin = Interpreter(self.log, self.state.copy(), self.depth).run(node, stdin)
        with self.state.maybe():
            return self._redirected(last, nodes, stdin)

    def _kept(self, redirects: Redirects, output: str) -> str:
        """Record output that goes to a file; return what is still printed."""
        for name in redirects.written:
            for place in self.files.paths(name) or ():
                text = self.state.written.get(place, "") + output
                self.state.written[place] = text if len(text) < LONGEST_OUTPUT else UNKNOWN
            if is_start_file(name):
                self.inner().script(output, f"{output} >> {name}")
        return "" if redirects.takes_output else output

    def _later(self, output: str, redirects: Redirects) -> str:
        for node in redirects.later:
            if node.type == "pipeline":
                output = self._pipeline(node, output)
            else:
                with self.state.maybe():
                    output += self.run(node)
        return output

    def _command(self, node: Node, stdin: str | None, more: Sequence[Word] = ()) -> str:
        check_word_boundaries(node)
        children = node.named_children
        redirects = follow_redirects(self, [c for c in children if c.type in _REDIRECTS])
        given = stdin if redirects.stdin is None else redirects.stdin
        inside = [c for c in children if c.type in ("subshell", "compound_statement")]
        assigned = [c for c in children if c.type == "variable_assignment"]
        skipped = _REDIRECTS | {"variable_assignment", "subshell", "compound_statement"}
        words = self.words([c for c in children if c.type not in skipped])
        for child in inside:
            self.run(child, given)
        words += [*redirects.words, *more]
        before = dict(self.state.variables)
        for child in assigned:
            assign(self, child)
        output = self._run_words(words, given, text_of(node))
        if words and assigned:
            self.state.variables = before
        return self._later(self._kept(redirects, output), redirects)

    def _run_words(self, words: list[Word], stdin: str | None, source: str) -> str:
        """Run a command, applying leading assignments that the grammar reports as words."""
        while words and _ASSIGNMENT.match(words[0].source):
            declare(self, words.pop(0).text)
        return run_words(self, words, stdin, source)
