"""Shells that are started inside of a command, and the scripts that they are given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from brim.shell.risk import inline
from brim.shell.risk.calls import Call
from brim.shell.risk.marks import PIPE, SPREAD, TRUSTED, UNKNOWN, is_known, plain
from brim.shell.risk.walking import Walk
from brim.shell.risk.words import Word

SHELLS: Final = frozenset((
    "sh", "bash", "zsh", "dash", "ash", "ksh", "mksh", "fish", "csh", "tcsh", "rbash", "yash",
    "posh", "pdksh", "ksh93", "oksh", "elvish", "nu", "xonsh",
))  # fmt: skip
_CODE: Final = re.compile(r"-[a-zA-Z\ue000\ue001]*[c\ue000\ue001][a-zA-Z\ue000\ue001]*")
"""The option that says that a text follows, or one that may turn out to say it."""
_SHELL_VALUED: Final = frozenset(("-o", "-O", "+o", "+O", "--rcfile", "--init-file"))


def params_of(texts: Sequence[str]) -> tuple[str, ...] | None:
    return None if any(SPREAD in text for text in texts) else tuple(plain(t) for t in texts)


def run_shell(walk: Walk, call: Call, source: str) -> str:
    """`bash`, with -c, with a file, or with what is piped in."""
    at, has_code, reads = 0, False, False
    texts = [plain(text) for text in call.texts]
    while at < len(texts) and texts[at][:1] in ("-", "+") and len(texts[at]) > 1:
        option = texts[at]
        if option == "--":
            at += 1
            break
        has_code |= option == "--command" or bool(_CODE.fullmatch(option))
        reads |= bool(re.fullmatch(r"-[a-zA-Z]*s[a-zA-Z]*", option)) and not has_code
        if option in ("--rcfile", "--init-file") and at + 1 < len(texts):
            run_file(walk, call.texts[at + 1], call, source)
        at += 2 if option in _SHELL_VALUED else 1
    if has_code and texts[at : at + 1] == ["-"]:
        at += 1
    rest = call.words[at:]
    if has_code and rest:
        return _code(walk, rest, call, source)
    if rest and not reads and rest[0].text != "-":
        return run_file(walk, rest[0].text, call.after(at + 1), source)
    if call.stdin is None:
        return UNKNOWN
    if not is_known(call.stdin):
        walk.judge.note(source, "runs what another command prints")
        return UNKNOWN
    return walk.inner().script(call.stdin, source)


def _code(walk: Walk, rest: Sequence[Word], call: Call, source: str) -> str:
    inside = walk.inner()
    inside.scope.params = params_of([word.text for word in rest[2:]])
    return inside.script(plain(rest[0].text), source, call.stdin)


def run_file(walk: Walk, name: str, call: Call, source: str, *, only_written: bool = False) -> str:
    """A script that is run by its name; what this command itself has written into it is read."""
    if re.fullmatch(r"/(?:dev|proc/self)/fd/[1-9]\d*", plain(name)):
        walk.judge.note(source, "runs what comes from somewhere else")
        return UNKNOWN
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
    if text is None or text.strip() == TRUSTED:
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
    inside.scope.params = params_of(call.texts)
    return inside.script(text, source)
