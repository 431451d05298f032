"""One command with its words expanded: what it is, what it runs in turn, what it prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from brim.shell.risk import inline, outputs, rules, wrappers
from brim.shell.risk.builtins import BUILTINS
from brim.shell.risk.calls import Call
from brim.shell.risk.marks import PATTERNS, PIPE, SPREAD, UNKNOWN, is_known, plain, shown
from brim.shell.risk.remembering import remember
from brim.shell.risk.rule_kinds import listed
from brim.shell.risk.scripts import SHELLS, params_of, run_file, run_shell
from brim.shell.risk.walking import Walk
from brim.shell.risk.words import Word
from brim.shell.risk.wrapper_table import WRAPPERS

EVALUATES: Final = listed("read printf unset test let declare export typeset local mapfile wait")
"""Builtins that run what stands in the index of a variable's name, even in single quotes."""
_HIDDEN: Final = re.compile(r"\[[^\]]*(?:\$\(|`)")


def run_words(walk: Walk, words: Sequence[Word], stdin: str | None, source: str) -> str:
    """Judge a command and whatever it runs; gives what it prints."""
    if not words:
        return ""
    walk.judge.count_call(source)
    if plain(words[0].text) in EVALUATES and any(_HIDDEN.search(plain(w.text)) for w in words):
        walk.judge.note(source, "a substitution in an index of it runs")
    name = _name(walk, words[0], source)
    if name is None:
        return UNKNOWN
    call = Call(name, tuple(words[1:]), walk.ground, stdin, walk.scope.lost)
    output = _own(walk, call, words, source)
    runs = wrappers.inners(call)
    runner = name in WRAPPERS or name in SHELLS or name in walk.scope.functions
    why = _why(call, is_runner=runner or bool(runs))
    if why:
        walk.judge.note(source, why)
    remember(walk, call)
    inner = [_run_inner(walk, call, found, source) for found in runs]
    if call.name in SHELLS:
        inner.append(run_shell(walk, call, source))
    changed = BUILTINS.get(name)
    if changed is not None:
        changed(walk, call, source)
    if output is not None:
        return output
    is_seen_through = call.name in WRAPPERS or call.name in SHELLS
    return "".join(inner) if inner and is_seen_through else outputs.printed(call)


def _why(call: Call, *, is_runner: bool) -> str | None:
    why = rules.why_destructive(call, is_known_runner=is_runner) or inline.why_inline(call)
    if call.name in ("awk", "gawk", "mawk", "nawk"):
        return why or inline.why_awk(call)
    return why


def _name(walk: Walk, word: Word, source: str) -> str | None:
    """The program's name without its folder; None, and noted, if nobody knows it yet."""
    text = word.text
    last = text.rpartition("/")[2]
    if SPREAD in text or PIPE in text or not is_known(last) or not PATTERNS.isdisjoint(text):
        walk.judge.note(source, "which program this runs is only known at run time")
        return None
    name = plain(last).lower().removesuffix(".exe").lstrip("=")
    if name.startswith(("!", "^")) and len(name) > 1:
        walk.judge.note(source, "it repeats an earlier command")
        return None
    return name


def _own(walk: Walk, call: Call, words: Sequence[Word], source: str) -> str | None:
    """Functions, aliases and scripts that go by this name."""
    output = None
    scope = walk.scope
    exact = plain(words[0].text)
    if exact in scope.functions:
        output = _function(walk, exact, call, source)
    alias = scope.aliases.get(exact)
    if alias is not None and words[0].source in ("", exact):
        inside = walk.inner()
        del inside.scope.aliases[exact]
        inside.script(" ".join([alias, *map(_quoted, call.words)]), source, call.stdin)
    if scope.written:
        run_file(walk, words[0].text, call, source, only_written=True)
    return output


def _quoted(word: Word) -> str:
    return "'" + word.text.replace("'", "'\\''") + "'"


def _function(walk: Walk, name: str, call: Call, source: str) -> str:
    body = walk.scope.functions[name]
    walk.judge.pending.pop(body.id, None)
    if name in walk.scope.running:
        walk.judge.note(source, f"{shown(name)} calls itself again and again")
        return UNKNOWN
    if walk.depth >= 8:
        walk.judge.note(source, "it is nested too deep to be read")
        return UNKNOWN
    params, running = walk.scope.params, walk.scope.running
    walk.scope.params = params_of(call.texts)
    walk.scope.running = running | {name}
    output = walk.inner(walk.scope).run(body, call.stdin)
    walk.scope.params, walk.scope.running = params, running
    return output


def _run_inner(walk: Walk, call: Call, found: wrappers.Inner, source: str) -> str:
    if walk.depth >= 8:
        walk.judge.note(source, "it is nested too deep to be read")
        return UNKNOWN
    stdin = None if found.eats_stdin else call.stdin
    if call.name == "coproc":
        stdin = UNKNOWN
    if found.is_own_shell:
        scope = walk.scope
    else:
        scope = walk.scope.elsewhere() if found.is_remote else walk.scope.copy()
    if found.script is not None:
        return walk.inner(scope).script(found.script, source, stdin)
    return run_words(walk.inner(scope), found.words, stdin, source)
