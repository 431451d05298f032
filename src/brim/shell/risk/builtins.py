"""The shell's own commands that change what it knows: folder, variables, aliases."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from brim.shell.risk.assigning import declare
from brim.shell.risk.calls import Call
from brim.shell.risk.marks import PATTERNS, UNKNOWN, is_known, plain
from brim.shell.risk.rule_kinds import NOT_YET_KNOWN
from brim.shell.risk.scripts import params_of, run_file
from brim.shell.risk.walking import Walk


def _cd(walk: Walk, call: Call, source: str) -> None:
    operands = call.operands()
    empties = [name for w in call.words for name in w.empties]
    if not operands or operands == [""]:
        home = walk.scope.home
        walk.scope.folders = (home,) if home else ()
        walk.scope.lost = source.partition(" ")[2] if "$" in source else ""
        return
    if operands[0] == "-":
        walk.scope.previous, walk.scope.folders = walk.scope.folders, walk.scope.previous
        return
    if not is_known(operands[0]) or not PATTERNS.isdisjoint(operands[0]):
        walk.scope.wander()
        return
    walk.scope.go(plain(operands[0]))
    walk.scope.lost = empties[0] if empties else ""


def _wander(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    walk.scope.wander()


def _learn(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    """`read x` and its like: nobody knows what x is afterwards."""
    given = [text for text in call.texts if not text.startswith("-")]
    for text in [*given, "REPLY", "MAPFILE", "OPTARG"]:
        name = re.sub(r"\W.*", "", plain(text))
        walk.scope.variables[name] = (UNKNOWN,)


def _printf(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    if call.texts and not is_known(call.texts[0]):
        walk.scope.is_open = True
    name = call.value("-v")
    if name:
        walk.scope.variables[re.sub(r"\W.*", "", plain(name))] = (UNKNOWN,)


def _export(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    for text in call.operands():
        declare(walk, text, is_name=call.has("-n"))


def _set(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    texts = call.texts
    at = 0
    while at < len(texts) and texts[at][:1] in ("-", "+") and texts[at] not in ("-", "--"):
        at += 2 if texts[at] in ("-o", "+o") else 1
    if at < len(texts):
        walk.scope.params = params_of(texts[at + (texts[at] in ("-", "--")) :])


def _shift(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    if walk.scope.params is not None:
        count = call.texts[0] if call.texts else "1"
        known = count.isdecimal()
        walk.scope.params = walk.scope.params[int(count) :] if known else None


def _unset(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    for text in call.operands():
        walk.scope.variables.pop(plain(text), None)


def _alias(walk: Walk, call: Call, source: str) -> None:
    """A new alias is judged at once: the user may type it when nobody judges."""
    for text in call.operands():
        name, equals, value = plain(text).partition("=")
        if equals:
            walk.scope.aliases[name] = value
            if value not in _CAREFUL:
                walk.inner().script(value, source)


_CAREFUL: Final = frozenset(("rm -i", "rm -I", "cp -i", "mv -i", "rm -iv", "cp -iv", "mv -iv"))
"""What some people set as an alias to be asked more often."""


def _hash(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    path = call.value("-p")
    if path:
        for name in call.operands("-p"):
            walk.scope.aliases[plain(name)] = plain(path)


def _source(walk: Walk, call: Call, source: str) -> None:
    if not call.words:
        return
    run_file(walk, call.words[0].text, call.after(1), source)
    walk.scope.is_open = True


def _enable(walk: Walk, call: Call, source: str) -> None:
    if call.has("-f"):
        walk.judge.note(source, NOT_YET_KNOWN)


def _time(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    """`time x=1` sets x."""
    for text in call.operands():
        if not re.match(r"\w+\+?=", text):
            return
        declare(walk, text)


BUILTINS: Final[dict[str, Callable[[Walk, Call, str], None]]] = {
    "cd": _cd, "chdir": _cd, "pushd": _cd, "popd": _wander, "read": _learn, "mapfile": _learn,
    "readarray": _learn, "getopts": _learn, "let": _learn, "printf": _printf, "export": _export,
    "declare": _export, "typeset": _export, "local": _export, "readonly": _export, "set": _set,
    "shift": _shift, "unset": _unset, "alias": _alias, "hash": _hash, "source": _source,
    ".": _source, "enable": _enable, "time": _time, "zoxide": _wander, "z": _wander, "j": _wander,
}  # fmt: skip
