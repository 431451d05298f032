"""Assess one expanded command: what it is, what it runs in turn, what it prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from brim.shell.risk import inline_code, rules, rules_files, wrappers
from brim.shell.risk.builtins import BUILTINS, SHELLS, params_of, run_file, run_shell
from brim.shell.risk.expansion import Word
from brim.shell.risk.file_view import is_start_file
from brim.shell.risk.findings import Evaluator
from brim.shell.risk.invocation import Invocation, split_names
from brim.shell.risk.syntax import (
    PATTERNS,
    PIPE,
    SPREAD,
    TRUSTED,
    UNKNOWN,
    display,
    is_known,
    plain,
    unescape_ansi,
)
from brim.shell.risk.wrappers import WRAPPERS

EVALUATES: Final = split_names(
    "read printf unset test let declare export typeset local mapfile wait"
)
"""Builtins that evaluate an array index in a variable name, even in single quotes."""
_INDEX_SUBSTITUTION: Final = re.compile(r"\[[^\]]*(?:\$\(|`)")


def run_words(shell: Evaluator, words: Sequence[Word], stdin: str | None, source: str) -> str:
    """Assess a command and everything that it runs; return what it prints."""
    if not words:
        return ""
    shell.log.count_call(source)
    if plain(words[0].text) in EVALUATES and any(
        _INDEX_SUBSTITUTION.search(plain(w.text)) for w in words
    ):
        shell.log.add(source, "a substitution in an array index runs")
    name = _program_name(shell, words[0], source)
    if name is None:
        return UNKNOWN
    call = Invocation(name, tuple(words[1:]), shell.files, stdin, shell.state.lost)
    output = _run_user_defined(shell, call, words, source)
    runs = wrappers.inner_commands(call)
    runner = name in WRAPPERS or name in SHELLS or name in shell.state.functions
    why = _why_destructive(call, is_runner=runner or bool(runs))
    if why:
        shell.log.add(source, why)
    record_effects(shell, call)
    inner = [_run_inner(shell, call, found, source) for found in runs]
    if call.name in SHELLS:
        inner.append(run_shell(shell, call, source))
    changed = BUILTINS.get(name)
    if changed is not None:
        changed(shell, call, source)
    if output is not None:
        return output
    is_seen_through = call.name in WRAPPERS or call.name in SHELLS
    return "".join(inner) if inner and is_seen_through else predict_output(call)


def _why_destructive(call: Invocation, *, is_runner: bool) -> str | None:
    why = rules.why_destructive(call, is_known_runner=is_runner) or inline_code.why_inline(call)
    if call.name in ("awk", "gawk", "mawk", "nawk"):
        return why or inline_code.why_awk(call)
    return why


def _program_name(shell: Evaluator, word: Word, source: str) -> str | None:
    """Return the program's name without its folder; None, with a finding, if it is unknown."""
    text = word.text
    last = text.rpartition("/")[2]
    if SPREAD in text or PIPE in text or not is_known(last) or not PATTERNS.isdisjoint(text):
        shell.log.add(source, "which program this runs is known only at run time")
        return None
    name = plain(last).lower().removesuffix(".exe").lstrip("=")
    if name.startswith(("!", "^")) and len(name) > 1:
        shell.log.add(source, "it repeats an earlier command")
        return None
    return name


def _run_user_defined(
    shell: Evaluator, call: Invocation, words: Sequence[Word], source: str
) -> str | None:
    """Assess functions, aliases and written scripts with this name."""
    output = None
    scope = shell.state
    exact = plain(words[0].text)
    if exact in scope.functions:
        output = _function(shell, exact, call, source)
    alias = scope.aliases.get(exact)
    if alias is not None and words[0].source in ("", exact):
        inside = shell.inner()
        del inside.state.aliases[exact]
        inside.script(" ".join([alias, *map(_quote, call.words)]), source, call.stdin)
    if scope.written:
        run_file(shell, words[0].text, call, source, only_written=True)
    return output


def _quote(word: Word) -> str:
    return "'" + word.text.replace("'", "'\\''") + "'"


def _function(shell: Evaluator, name: str, call: Invocation, source: str) -> str:
    body = shell.state.functions[name]
    shell.log.pending.pop(body.id, None)
    if name in shell.state.running:
        shell.log.add(source, f"{display(name)} calls itself endlessly")
        return UNKNOWN
    if shell.depth >= 8:
        shell.log.add(source, "it is nested too deeply")
        return UNKNOWN
    params, running = shell.state.params, shell.state.running
    shell.state.params = params_of(call.texts)
    shell.state.running = running | {name}
    output = shell.inner(shell.state).run(body, call.stdin)
    shell.state.params, shell.state.running = params, running
    return output


def _run_inner(
    shell: Evaluator, call: Invocation, found: wrappers.InnerCommand, source: str
) -> str:
    if shell.depth >= 8:
        shell.log.add(source, "it is nested too deeply")
        return UNKNOWN
    stdin = None if found.eats_stdin else call.stdin
    if call.name == "coproc":
        stdin = UNKNOWN
    if found.is_own_shell:
        scope = shell.state
    else:
        scope = shell.state.elsewhere() if found.is_remote else shell.state.copy()
    if found.script is not None:
        return shell.inner(scope).script(found.script, source, stdin)
    return run_words(shell.inner(scope), found.words, stdin, source)


def record_effects(shell: Evaluator, call: Invocation) -> None:
    """Record which files the command writes, for the commands after it."""
    written = shell.state.written
    if call.name in ("mv", "cp", "ln", "install"):
        for name, source in rules_files.arrivals(call):
            known = plain(source).rpartition("/")[2]
            for place in shell.files.paths(name) or ():
                if call.name != "cp":
                    shell.state.arrivals.add(place)
                if known in rules.RULES or known in SHELLS or known in WRAPPERS:
                    written[place] = f'{known} "$@"'
                else:
                    for old in shell.files.paths(source) or ():
                        if old in written:
                            written[place] = written[old]
    elif call.name in ("curl", "wget"):
        for name in rules_files.downloads(call):
            written.update(dict.fromkeys(shell.files.paths(name) or (), UNKNOWN))
    elif call.name == "mkdir":
        for name in call.operands("-m"):
            shell.state.made.update(shell.files.paths(name) or ())
    elif call.name == "mkfifo":
        for name in call.operands():
            written.update(dict.fromkeys(shell.files.paths(name) or (), UNKNOWN))
    elif call.name == "tee":
        for name in call.operands():
            if is_start_file(name):
                shell.inner().script(call.stdin or "", f"tee {name}")
            written.update(dict.fromkeys(shell.files.paths(name) or (), call.stdin or ""))
    language = inline_code.language_of(call.name)
    if language is not None:
        _check_written_code(shell, call, language)


def _check_written_code(shell: Evaluator, call: Invocation, language: str) -> None:
    """Assess `python x.py` if this command has written x.py."""
    for name in call.operands(*inline_code.LANGUAGES[language].valued)[:1]:
        places = shell.files.paths(name) or ()
        texts = (
            [name.strip(PIPE)] if name.startswith(PIPE) else map(shell.state.written.get, places)
        )
        for text in texts:
            why = inline_code.why_code(language, text) if text is not None else None
            if why:
                shell.log.add(name, why)


QUIET: Final = frozenset((
    "true", "false", ":", "cd", "pushd", "popd", "test", "[", "export", "set", "unset", "shift",
    "mkdir", "touch", "sleep", "wait", "exit", "return", "read", "alias", "trap", "ulimit", "umask",
))  # fmt: skip
"""Programs that print nothing, or nothing that matters here."""
SETTERS: Final = frozenset((
    "ssh-agent", "direnv", "brew", "pyenv", "rbenv", "nodenv", "goenv", "jenv", "starship",
    "dircolors", "conda", "mamba", "opam", "fnm", "mise", "rtx", "asdf", "minikube",
    "docker-machine", "zoxide",
    "lesspipe", "resize", "thefuck", "atuin", "keychain", "luarocks", "stack", "navi", "mcfly",
    "gnome-keyring-daemon", "vg", "chef", "hub", "register-python-argcomplete",
))  # fmt: skip
"""Programs whose output is meant to be evaluated by the user's shell."""
COMPLETERS: Final = frozenset((
    "kubectl", "helm", "gh", "docker", "npm", "oc", "kind", "flux", "argocd", "rustup", "hugo",
    "istioctl", "eksctl", "tofu", "glab", "deno", "k9s", "kustomize", "skaffold", "podman", "yq",
))  # fmt: skip
"""Programs whose `completion` output is equally harmless."""
_FORMAT: Final = re.compile(r"%(?:%|[-+ #0-9.]*([a-zA-Z]))")


def predict_output(call: Invocation) -> str:
    """Return what a program prints, as far as that is known."""
    if call.name in QUIET:
        return ""
    if call.name in SETTERS or (call.name in COMPLETERS and "completion" in call.texts[:2]):
        return TRUSTED
    known = _OUTPUTS.get(call.name)
    return known(call) if known else UNKNOWN


def _echo_output(call: Invocation) -> str:
    texts = [plain(text) for text in call.texts]
    flags = ""
    while texts and re.fullmatch(r"-[neE]+", texts[0]):
        flags += texts.pop(0)
    text = " ".join(texts)
    if "e" in flags:
        return unescape_ansi(text)
    return UNKNOWN if "\\" in text else text + "\n"


def _printf_output(call: Invocation) -> str:
    texts = [plain(text) for text in call.texts]
    if texts[:1] == ["--"]:
        texts = texts[1:]
    if not texts or texts[0] == "-v" or not all(is_known(text) for text in texts):
        return UNKNOWN
    shape, rest = unescape_ansi(texts[0]), texts[1:]
    done = ""
    for _ in range(max(1, len(rest))):
        values = iter(rest)
        count = sum(1 for m in _FORMAT.finditer(shape) if m[1])
        done += _FORMAT.sub(partial(_format_next, values), shape)
        rest = rest[count:]
        if not rest or not count:
            break
    return done


def _format_next(values: Iterator[str], match: re.Match[str]) -> str:
    return _format_value(match, next(values, "")) if match[1] else "%"


def _format_value(match: re.Match[str], value: str) -> str:
    if match[1] == "s" and len(match[0]) == 2:
        return value
    if match[1] == "b":
        return unescape_ansi(value)
    if match[1] in "di" and re.fullmatch(r"\d*", value) and len(match[0]) == 2:
        return value or "0"
    return UNKNOWN


def _cat_output(call: Invocation) -> str:
    operands = call.operands()
    if not operands or operands == ["-"]:
        return "" if call.stdin is None else call.stdin
    if all(text.startswith(PIPE) for text in operands):
        return "".join(text.strip(PIPE) for text in operands)
    return UNKNOWN


def _tee_output(call: Invocation) -> str:
    return call.stdin or ""


def _basename_output(call: Invocation) -> str:
    operands = call.operands()
    if len(operands) != 1 or not is_known(operands[0]):
        return UNKNOWN
    return plain(operands[0]).rstrip("/").rpartition("/")[2]


def _pwd_output(call: Invocation) -> str:
    folders = call.files.folders
    return str(folders[0]) if len(folders) == 1 else UNKNOWN


def _yes_output(call: Invocation) -> str:
    text = " ".join(plain(text) for text in call.texts) or "y"
    return text + "\n"


_OUTPUTS: Final[dict[str, Callable[[Invocation], str]]] = {
    "echo": _echo_output, "printf": _printf_output, "cat": _cat_output, "tee": _tee_output,
    "basename": _basename_output, "pwd": _pwd_output, "yes": _yes_output,
}  # fmt: skip
