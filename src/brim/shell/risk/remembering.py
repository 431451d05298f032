"""What a command puts where, for the commands after it on the same line."""

from __future__ import annotations

from brim.shell.risk import inline, rules, rules_files
from brim.shell.risk.calls import Call
from brim.shell.risk.marks import PIPE, UNKNOWN, plain
from brim.shell.risk.scripts import SHELLS
from brim.shell.risk.targets import is_start_file
from brim.shell.risk.walking import Walk
from brim.shell.risk.wrapper_table import WRAPPERS


def remember(walk: Walk, call: Call) -> None:
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
    elif call.name == "mkdir":
        for name in call.operands("-m"):
            walk.scope.made.update(walk.ground.paths(name) or ())
    elif call.name == "mkfifo":
        for name in call.operands():
            written.update(dict.fromkeys(walk.ground.paths(name) or (), UNKNOWN))
    elif call.name == "tee":
        for name in call.operands():
            if is_start_file(name):
                walk.inner().script(call.stdin or "", f"tee {name}")
            written.update(dict.fromkeys(walk.ground.paths(name) or (), call.stdin or ""))
    language = inline.language_of(call.name)
    if language is not None:
        _written_code(walk, call, language)


def _written_code(walk: Walk, call: Call, language: str) -> None:
    """`python x.py`, where this command has written x.py."""
    for name in call.operands(*inline.LANGUAGES[language].valued)[:1]:
        places = walk.ground.paths(name) or ()
        texts = [name.strip(PIPE)] if name.startswith(PIPE) else map(walk.scope.written.get, places)
        for text in texts:
            why = inline.why_code(language, text) if text is not None else None
            if why:
                walk.judge.note(name, why)
