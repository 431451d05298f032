"""Shell builtins, assignments and nested shells: commands that change the state of the shell."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from brim.shell.risk import inline_code
from brim.shell.risk.expansion import Word
from brim.shell.risk.findings import Evaluator
from brim.shell.risk.invocation import NOT_YET_KNOWN, Invocation
from brim.shell.risk.shell_state import Value
from brim.shell.risk.syntax import (
    PATTERNS,
    PIPE,
    SPREAD,
    TRUSTED,
    UNKNOWN,
    is_known,
    plain,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

EXECUTED_VARIABLES: Final = re.compile(
    r"[A-Z_]*(?:PAGER|EDITOR|VISUAL|BROWSER|ASKPASS|SSH_COMMAND|SSH|EXTERNAL_DIFF|COMMAND"
    r"|LESSOPEN|LESSCLOSE|PRELOAD|BASH_ENV|ENV|SHELLOPTS|PS4|PROMPT_COMMAND|RSH)"
)
"""Variables whose value a program executes."""


def declare(shell: Evaluator, text: str, *, is_name: bool = False) -> None:
    """Set a variable from a `name=value` word; with `is_name` the value names another variable."""
    name, equals, value = plain(text).partition("=")
    if not equals:
        return
    if is_known(name):
        appends = name.endswith("+")
        known = is_known(value) and not appends and not is_name
        set_variable(shell, name.rstrip("+"), (value if known else UNKNOWN,))
    else:
        shell.state.is_open = True


def assign(shell: Evaluator, node: Node) -> str:
    """Follow an assignment; return the variable's name."""
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name is None:
        return ""
    if name.type == "subscript":
        shell.follow_substitutions(name)
        array = name.child_by_field_name("name")
        if value is not None:
            shell.words([value])
        shell.state.variables[text_of(array) if array else ""] = (UNKNOWN,)
        return ""
    items = _evaluate_items(shell, value)
    if any(child.type == "+=" for child in node.children):
        items = _append_items(shell.state.value(text_of(name)) or (), items, value)
    set_variable(shell, text_of(name), items)
    return text_of(name)


def _evaluate_items(shell: Evaluator, value: Node | None) -> Value:
    if value is None:
        return ("",)
    if value.type != "array":
        return (plain(shell.text(value)),)
    if any(child.type == "variable_assignment" for child in value.named_children):
        shell.follow_substitutions(value)
        return (UNKNOWN,)
    return tuple(plain(word.text) for word in shell.words(value.named_children))


def set_variable(shell: Evaluator, name: str, value: Value) -> None:
    shell.state.variables[name] = value
    if any(re.search(r"\[[^\]]*(?:\$\(|`)", item) for item in value):
        shell.log.add(f"{name}={' '.join(value)}", "runs if it is used in a calculation")
    if name.startswith("PS") and any("$(" in item or "`" in item for item in value):
        shell.log.add(f"{name}={' '.join(value)}", "runs a command at each prompt")
    if EXECUTED_VARIABLES.fullmatch(name) and any(value):
        shell.inner().script(" ".join(value), f"{name}={' '.join(value)}")


def _append_items(before: Value, items: Value, value: Node | None) -> Value:
    if value is not None and value.type == "array":
        return before + items
    return ("".join(before[:1]) + "".join(items), *before[1:])


SHELLS: Final = frozenset((
    "sh", "bash", "zsh", "dash", "ash", "ksh", "mksh", "fish", "csh", "tcsh", "rbash", "yash",
    "posh", "pdksh", "ksh93", "oksh", "elvish", "nu", "xonsh",
))  # fmt: skip
_CODE_OPTION: Final = re.compile(r"-[a-zA-Z\ue000\ue001]*[c\ue000\ue001][a-zA-Z\ue000\ue001]*")
"""The option that a script follows as text, or an option that may expand to it."""
_SHELL_VALUED: Final = frozenset(("-o", "-O", "+o", "+O", "--rcfile", "--init-file"))


def params_of(texts: Sequence[str]) -> tuple[str, ...] | None:
    return None if any(SPREAD in text for text in texts) else tuple(plain(t) for t in texts)


def run_shell(shell: Evaluator, call: Invocation, source: str) -> str:
    """Assess `bash` with `-c`, with a file, or with a script on standard input."""
    at, has_code, reads = 0, False, False
    texts = [plain(text) for text in call.texts]
    while at < len(texts) and texts[at][:1] in ("-", "+") and len(texts[at]) > 1:
        option = texts[at]
        if option == "--":
            at += 1
            break
        has_code |= option == "--command" or bool(_CODE_OPTION.fullmatch(option))
        reads |= bool(re.fullmatch(r"-[a-zA-Z]*s[a-zA-Z]*", option)) and not has_code
        if option in ("--rcfile", "--init-file") and at + 1 < len(texts):
            run_file(shell, call.texts[at + 1], call, source)
        at += 2 if option in _SHELL_VALUED else 1
    if has_code and texts[at : at + 1] == ["-"]:
        at += 1
    rest = call.words[at:]
    if has_code and rest:
        return _run_code(shell, rest, call, source)
    if rest and not reads and rest[0].text != "-":
        return run_file(shell, rest[0].text, call.after(at + 1), source)
    if call.stdin is None:
        return UNKNOWN
    if not is_known(call.stdin):
        shell.log.add(source, "runs the output of another command")
        return UNKNOWN
    return shell.inner().script(call.stdin, source)


def _run_code(shell: Evaluator, rest: Sequence[Word], call: Invocation, source: str) -> str:
    inside = shell.inner()
    inside.state.params = params_of([word.text for word in rest[2:]])
    return inside.script(plain(rest[0].text), source, call.stdin)


def run_file(
    shell: Evaluator, name: str, call: Invocation, source: str, *, only_written: bool = False
) -> str:
    """Assess a script that is run by name, if this command has written its content."""
    if re.fullmatch(r"/(?:dev|proc/self)/fd/[1-9]\d*", plain(name)):
        shell.log.add(source, "runs input from an unknown source")
        return UNKNOWN
    if name.startswith(PIPE):
        text: str | None = name.strip(PIPE)
    elif plain(name) in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
        text = call.stdin
    elif not is_known(name) and not only_written:
        shell.log.add(source, "which file this runs is known only at run time")
        return UNKNOWN
    else:
        places = shell.files.paths(name) or ()
        text = next((shell.state.written[p] for p in places if p in shell.state.written), None)
    if text is None or text.strip() == TRUSTED:
        return UNKNOWN
    if not is_known(text):
        shell.log.add(source, "runs the output of a command")
        return UNKNOWN
    first = text.partition("\n")[0]
    language = next(
        (n for n in inline_code.LANGUAGES if first.startswith("#!") and n in first), None
    )
    if language is not None:
        why = inline_code.why_code(language, text)
        if why:
            shell.log.add(source, why)
        return UNKNOWN
    inside = shell.inner()
    inside.state.params = params_of(call.texts)
    return inside.script(text, source)


def _cd(shell: Evaluator, call: Invocation, source: str) -> None:
    operands = call.operands()
    empties = [name for w in call.words for name in w.empties]
    if not operands or operands == [""]:
        home = shell.state.home
        shell.state.folders = (home,) if home else ()
        shell.state.lost = source.partition(" ")[2] if "$" in source else ""
        return
    if operands[0] == "-":
        shell.state.previous, shell.state.folders = shell.state.folders, shell.state.previous
        return
    if not is_known(operands[0]) or not PATTERNS.isdisjoint(operands[0]):
        shell.state.wander()
        return
    shell.state.go(plain(operands[0]))
    shell.state.lost = empties[0] if empties else ""


def _cd_unknown(shell: Evaluator, call: Invocation, source: str) -> None:  # noqa: ARG001
    shell.state.wander()


def _read(shell: Evaluator, call: Invocation, source: str) -> None:  # noqa: ARG001
    """Follow `read x` and similar: the value of x is unknown afterwards."""
    given = [text for text in call.texts if not text.startswith("-")]
    for text in [*given, "REPLY", "MAPFILE", "OPTARG"]:
        name = re.sub(r"\W.*", "", plain(text))
        shell.state.variables[name] = (UNKNOWN,)


def _printf(shell: Evaluator, call: Invocation, source: str) -> None:  # noqa: ARG001
    if call.texts and not is_known(call.texts[0]):
        shell.state.is_open = True
    name = call.value("-v")
    if name:
        shell.state.variables[re.sub(r"\W.*", "", plain(name))] = (UNKNOWN,)


def _export(shell: Evaluator, call: Invocation, source: str) -> None:  # noqa: ARG001
    for text in call.operands():
        declare(shell, text, is_name=call.has("-n"))


def _set(shell: Evaluator, call: Invocation, source: str) -> None:  # noqa: ARG001
    texts = call.texts
    at = 0
    while at < len(texts) and texts[at][:1] in ("-", "+") and texts[at] not in ("-", "--"):
        at += 2 if texts[at] in ("-o", "+o") else 1
    if at < len(texts):
        shell.state.params = params_of(texts[at + (texts[at] in ("-", "--")) :])


def _shift(shell: Evaluator, call: Invocation, source: str) -> None:  # noqa: ARG001
    if shell.state.params is not None:
        count = call.texts[0] if call.texts else "1"
        known = count.isdecimal()
        shell.state.params = shell.state.params[int(count) :] if known else None


def _unset(shell: Evaluator, call: Invocation, source: str) -> None:  # noqa: ARG001
    for text in call.operands():
        shell.state.variables.pop(plain(text), None)


def _alias(shell: Evaluator, call: Invocation, source: str) -> None:
    """Assess a new alias now: later the user may type it without an assessment."""
    for text in call.operands():
        name, equals, value = plain(text).partition("=")
        if equals:
            shell.state.aliases[name] = value
            if value not in _CAUTIOUS_ALIASES:
                shell.inner().script(value, source)


_CAUTIOUS_ALIASES: Final = frozenset(
    ("rm -i", "rm -I", "cp -i", "mv -i", "rm -iv", "cp -iv", "mv -iv")
)
"""Aliases that only add a confirmation."""


def _hash(shell: Evaluator, call: Invocation, source: str) -> None:  # noqa: ARG001
    path = call.value("-p")
    if path:
        for name in call.operands("-p"):
            shell.state.aliases[plain(name)] = plain(path)


def _source(shell: Evaluator, call: Invocation, source: str) -> None:
    if not call.words:
        return
    run_file(shell, call.words[0].text, call.after(1), source)
    shell.state.is_open = True


def _enable(shell: Evaluator, call: Invocation, source: str) -> None:
    if call.has("-f"):
        shell.log.add(source, NOT_YET_KNOWN)


def _time(shell: Evaluator, call: Invocation, source: str) -> None:  # noqa: ARG001
    """Follow `time x=1`, which sets x."""
    for text in call.operands():
        if not re.match(r"\w+\+?=", text):
            return
        declare(shell, text)


BUILTINS: Final[dict[str, Callable[[Evaluator, Invocation, str], None]]] = {
    "cd": _cd, "chdir": _cd, "pushd": _cd, "popd": _cd_unknown, "read": _read,
    "mapfile": _read, "readarray": _read, "getopts": _read, "let": _read, "printf": _printf,
    "export": _export,
    "declare": _export, "typeset": _export, "local": _export, "readonly": _export, "set": _set,
    "shift": _shift, "unset": _unset, "alias": _alias, "hash": _hash, "source": _source,
    ".": _source, "enable": _enable, "time": _time,
    "zoxide": _cd_unknown, "z": _cd_unknown, "j": _cd_unknown,
}  # fmt: skip
