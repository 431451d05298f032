"""One command with its words expanded: what it is, what it runs in turn, what it prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from brim.shell.danger import inline, outputs, rules, rules_files, wrappers
from brim.shell.danger.assigning import declare
from brim.shell.danger.calls import Call
from brim.shell.danger.marks import PATTERNS, PIPE, SPREAD, UNKNOWN, is_known, plain, shown
from brim.shell.danger.rule_kinds import NOT_YET_KNOWN
from brim.shell.danger.walking import Walk
from brim.shell.danger.words import Word
from brim.shell.danger.wrapper_table import WRAPPERS

SHELLS: Final = frozenset((
    "sh", "bash", "zsh", "dash", "ash", "ksh", "mksh", "fish", "csh", "tcsh", "rbash", "yash",
    "posh", "pdksh", "ksh93", "oksh", "elvish", "nu", "xonsh",
))  # fmt: skip
_SHELL_VALUED: Final = frozenset(("-o", "-O", "+o", "+O", "--rcfile", "--init-file"))


def run_words(walk: Walk, words: Sequence[Word], stdin: str | None, source: str) -> str:
    """Judge a command and whatever it runs; gives what it prints."""
    if not words:
        return ""
    walk.judge.count_call(source)
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
    _remember(walk, call)
    inner = [_run_inner(walk, call, found, source) for found in runs]
    if call.name in SHELLS:
        inner.append(_shell(walk, call, source))
    changed = _BUILTINS.get(name)
    if changed is not None:
        changed(walk, call, source)
    if output is not None:
        return output
    return "".join(inner) if inner and call.name != "git" else outputs.printed(call)


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
    if "/" in exact or exact in scope.written:
        _file(walk, words[0].text, call, source, only_written=True)
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
    walk.scope.params = _params(call.texts)
    walk.scope.running = running | {name}
    output = walk.inner(walk.scope).run(body, call.stdin)
    walk.scope.params, walk.scope.running = params, running
    return output


def _params(texts: Sequence[str]) -> tuple[str, ...] | None:
    return None if any(SPREAD in text for text in texts) else tuple(plain(t) for t in texts)


def _run_inner(walk: Walk, call: Call, found: wrappers.Inner, source: str) -> str:
    if walk.depth >= 8:
        walk.judge.note(source, "it is nested too deep to be read")
        return UNKNOWN
    stdin = None if found.eats_stdin else call.stdin
    if found.is_own_shell:
        scope = walk.scope
    else:
        scope = walk.scope.elsewhere() if found.is_remote else walk.scope.copy()
    if found.script is not None:
        return walk.inner(scope).script(found.script, source, stdin)
    return run_words(walk.inner(scope), found.words, stdin, source)


def _shell(walk: Walk, call: Call, source: str) -> str:
    """`bash`, with -c, with a file, or with what is piped in."""
    at, has_code, reads = 0, False, False
    texts = [plain(text) for text in call.texts]
    while at < len(texts) and texts[at][:1] in ("-", "+") and len(texts[at]) > 1:
        option = texts[at]
        if option == "--":
            at += 1
            break
        has_code |= option == "--command" or bool(re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", option))
        reads |= bool(re.fullmatch(r"-[a-zA-Z]*s[a-zA-Z]*", option)) and not has_code
        at += 2 if option in _SHELL_VALUED else 1
    rest = call.words[at:]
    if has_code and rest:
        return _code(walk, rest, call, source)
    if rest and not reads and rest[0].text != "-":
        return _file(walk, rest[0].text, call.after(at + 1), source)
    if call.stdin is None:
        return UNKNOWN
    if not is_known(call.stdin):
        walk.judge.note(source, "runs what another command prints")
        return UNKNOWN
    return walk.inner().script(call.stdin, source)


def _code(walk: Walk, rest: Sequence[Word], call: Call, source: str) -> str:
    inside = walk.inner()
    inside.scope.params = _params([word.text for word in rest[2:]])
    return inside.script(plain(rest[0].text), source, call.stdin)


def _file(walk: Walk, name: str, call: Call, source: str, *, only_written: bool = False) -> str:
    """A script that is run by its name; what this command itself has written into it is read."""
    if name.startswith(PIPE):
        text: str | None = name.strip(PIPE)
    elif plain(name) in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
        text = call.stdin
    elif not is_known(name) and not only_written:
        walk.judge.note(source, "which file this runs is only known at run time")
        return UNKNOWN
    else:
        places = walk.ground.paths(name) or ()
        text = next((walk.scope.written[p] for p in places if p in walk.scope.written), None)
    if text is None:
        return UNKNOWN
    if not is_known(text):
        walk.judge.note(source, "runs what another command prints or this one writes")
        return UNKNOWN
    first = text.partition("\n")[0]
    language = next((n for n in inline.LANGUAGES if first.startswith("#!") and n in first), None)
    if language is not None:
        why = inline.why_code(language, text)
        if why:
            walk.judge.note(source, why)
        return UNKNOWN
    inside = walk.inner()
    inside.scope.params = _params(call.texts)
    return inside.script(text, source)


def _remember(walk: Walk, call: Call) -> None:
    """What the command puts where, for the commands after it."""
    written = walk.scope.written
    if call.name in ("mv", "cp", "ln", "install"):
        for name, source in rules_files.arrivals(call):
            known = plain(source).rpartition("/")[2]
            for place in walk.ground.paths(name) or ():
                if call.name != "cp":
                    walk.scope.arrivals.add(place)
                if known in rules.RULES or known in SHELLS or known in WRAPPERS:
                    written[place] = f'{known} "$@"'
                else:
                    for old in walk.ground.paths(source) or ():
                        if old in written:
                            written[place] = written[old]
    elif call.name in ("curl", "wget"):
        for name in rules_files.downloads(call):
            written.update(dict.fromkeys(walk.ground.paths(name) or (), UNKNOWN))
    elif call.name == "tee":
        for name in call.operands():
            written.update(dict.fromkeys(walk.ground.paths(name) or (), call.stdin or ""))
    language = inline.language_of(call.name)
    if language is not None:
        _written_code(walk, call, language)


def _written_code(walk: Walk, call: Call, language: str) -> None:
    """`python x.py`, where this command has written x.py."""
    for name in call.operands(*inline.LANGUAGES[language].valued)[:1]:
        for place in walk.ground.paths(name) or ():
            text = walk.scope.written.get(place)
            why = inline.why_code(language, text) if text is not None else None
            if why:
                walk.judge.note(name, why)


# Builtins that change the scope.


def _cd(walk: Walk, call: Call, source: str) -> None:
    operands = call.operands()
    empties = [name for w in call.words for name in w.empties]
    if not operands or operands == [""]:
        home = walk.scope.home
        walk.scope.folders = (home,) if home else ()
        walk.scope.lost = source.partition(" ")[2] if "$" in source else ""
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
    for text in [*call.operands("-p", "-d", "-n", "-t", "-u", "-i"), "REPLY", "MAPFILE", "OPTARG"]:
        name = re.sub(r"\W.*", "", plain(text))
        walk.scope.variables[name] = (UNKNOWN,)


def _printf(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    name = call.value("-v")
    if name:
        walk.scope.variables[re.sub(r"\W.*", "", plain(name))] = (UNKNOWN,)


def _export(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    for text in call.operands():
        declare(walk, text)


def _set(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    if "--" in call.texts:
        walk.scope.params = _params(call.texts[call.texts.index("--") + 1 :])
    elif call.texts and call.texts[0][:1] not in ("-", "+"):
        walk.scope.params = _params(call.texts)


def _shift(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    if walk.scope.params is not None:
        count = call.texts[0] if call.texts else "1"
        known = count.isdecimal()
        walk.scope.params = walk.scope.params[int(count) :] if known else None


def _unset(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    for text in call.operands():
        walk.scope.variables.pop(plain(text), None)


def _alias(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    for text in call.operands():
        name, equals, value = plain(text).partition("=")
        if equals:
            walk.scope.aliases[name] = value


def _hash(walk: Walk, call: Call, source: str) -> None:  # noqa: ARG001
    path = call.value("-p")
    if path:
        for name in call.operands("-p"):
            walk.scope.aliases[plain(name)] = plain(path)


def _source(walk: Walk, call: Call, source: str) -> None:
    if not call.words:
        return
    name = call.words[0].text
    trusted = name.startswith(PIPE) and not name.strip(PIPE)
    if not trusted:
        _file(walk, name, call.after(1), source)
    walk.scope.is_open = True


def _enable(walk: Walk, call: Call, source: str) -> None:
    if call.has("-f"):
        walk.judge.note(source, NOT_YET_KNOWN)


_BUILTINS: Final[dict[str, Callable[[Walk, Call, str], None]]] = {
    "cd": _cd, "chdir": _cd, "pushd": _cd, "popd": _wander, "read": _learn, "mapfile": _learn,
    "readarray": _learn, "getopts": _learn, "let": _learn, "printf": _printf, "export": _export,
    "declare": _export, "typeset": _export, "local": _export, "readonly": _export, "set": _set,
    "shift": _shift, "unset": _unset, "alias": _alias, "hash": _hash, "source": _source,
    ".": _source, "enable": _enable, "zoxide": _wander, "z": _wander, "j": _wander,
}  # fmt: skip
