"""What a command prints, where that can be told without running it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from brim.shell.risk.calls import Call
from brim.shell.risk.marks import PIPE, TRUSTED, UNKNOWN, is_known, plain
from brim.shell.risk.quoting import ansi

QUIET: Final = frozenset((
    "true", "false", ":", "cd", "pushd", "popd", "test", "[", "export", "set", "unset", "shift",
    "mkdir", "touch", "sleep", "wait", "exit", "return", "read", "alias", "trap", "ulimit", "umask",
))  # fmt: skip
"""Programs that print nothing, or nothing of interest."""
SETTERS: Final = frozenset((
    "ssh-agent", "direnv", "brew", "pyenv", "rbenv", "nodenv", "goenv", "jenv", "starship",
    "dircolors", "conda", "mamba", "opam", "fnm", "mise", "rtx", "asdf", "minikube",
    "docker-machine", "zoxide",
    "lesspipe", "resize", "thefuck", "atuin", "keychain", "luarocks", "stack", "navi", "mcfly",
    "gnome-keyring-daemon", "vg", "chef", "hub", "register-python-argcomplete",
))  # fmt: skip
"""Programs whose output is made to be evaluated by the user's shell."""
COMPLETERS: Final = frozenset((
    "kubectl", "helm", "gh", "docker", "npm", "oc", "kind", "flux", "argocd", "rustup", "hugo",
    "istioctl", "eksctl", "tofu", "glab", "deno", "k9s", "kustomize", "skaffold", "podman", "yq",
))  # fmt: skip
"""Programs whose `completion` is as harmless."""
_FORMAT: Final = re.compile(r"%(?:%|[-+ #0-9.]*([a-zA-Z]))")


def printed(call: Call) -> str:
    """The output as far as it is known."""
    if call.name in QUIET:
        return ""
    if call.name in SETTERS or (call.name in COMPLETERS and "completion" in call.texts[:2]):
        return TRUSTED
    known = _OUTPUTS.get(call.name)
    return known(call) if known else UNKNOWN


def _echo(call: Call) -> str:
    texts = [plain(text) for text in call.texts]
    flags = ""
    while texts and re.fullmatch(r"-[neE]+", texts[0]):
        flags += texts.pop(0)
    text = " ".join(texts)
    if "e" in flags:
        return ansi(text)
    return UNKNOWN if "\\" in text else text + "\n"


def _printf(call: Call) -> str:
    texts = [plain(text) for text in call.texts]
    if texts[:1] == ["--"]:
        texts = texts[1:]
    if not texts or texts[0] == "-v" or not all(is_known(text) for text in texts):
        return UNKNOWN
    shape, rest = ansi(texts[0]), texts[1:]
    done = ""
    for _ in range(max(1, len(rest))):
        fed = iter(rest)
        count = sum(1 for m in _FORMAT.finditer(shape) if m[1])
        done += _FORMAT.sub(lambda m, fed=fed: _formatted(m, next(fed, "")) if m[1] else "%", shape)  # type: ignore[misc]
        rest = rest[count:]
        if not rest or not count:
            break
    return done


def _formatted(match: re.Match[str], value: str) -> str:
    if match[1] == "s" and len(match[0]) == 2:
        return value
    if match[1] == "b":
        return ansi(value)
    if match[1] in "di" and re.fullmatch(r"\d*", value) and len(match[0]) == 2:
        return value or "0"
    return UNKNOWN


def _cat(call: Call) -> str:
    operands = call.operands()
    if not operands or operands == ["-"]:
        return "" if call.stdin is None else call.stdin
    if all(text.startswith(PIPE) for text in operands):
        return "".join(text.strip(PIPE) for text in operands)
    return UNKNOWN


def _tee(call: Call) -> str:
    return call.stdin or ""


def _basename(call: Call) -> str:
    operands = call.operands()
    if len(operands) != 1 or not is_known(operands[0]):
        return UNKNOWN
    return plain(operands[0]).rstrip("/").rpartition("/")[2]


def _pwd(call: Call) -> str:
    folders = call.ground.folders
    return str(folders[0]) if len(folders) == 1 else UNKNOWN


def _yes(call: Call) -> str:
    text = " ".join(plain(text) for text in call.texts) or "y"
    return text + "\n"


_OUTPUTS: Final[dict[str, Callable[[Call], str]]] = {
    "echo": _echo, "printf": _printf, "cat": _cat, "tee": _tee, "basename": _basename,
    "pwd": _pwd, "yes": _yes,
}  # fmt: skip
