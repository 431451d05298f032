"""Programs that run other programs: what it is that they run.

Most are data: which of their options take a word, how many words stand before the command, whether
the command is given as words or as a text for a shell. The few that are stranger have a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from brim.shell.risk.calls import Call
from brim.shell.risk.marks import SPREAD, UNKNOWN, is_known, plain
from brim.shell.risk.rule_kinds import listed
from brim.shell.risk.rules import READERS, RULES
from brim.shell.risk.words import Word, joined
from brim.shell.risk.wrapper_table import OWN_SHELL, SUBCOMMANDS, WRAPPERS, Wrapper

_ASSIGNING: Final = listed("sudo doas time then do else ! and or not begin noglob nocorrect")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*\+?=")


@dataclass(frozen=True, slots=True)
class Inner:
    """Something that a program runs: words, or a text for a shell."""

    words: tuple[Word, ...] = ()
    script: str | None = None
    is_remote: bool = False
    is_own_shell: bool = False
    """Whether it runs in the shell that reads the command, as `eval` does."""
    eats_stdin: bool = False


def inners(call: Call) -> list[Inner]:
    """What the program runs; nothing if it is none that runs others."""
    special = _SPECIAL.get(call.name)
    if special is not None:
        return special(call)
    if call.name == "command" and re.match(r"-p?[vV]", "".join(call.texts[:1])):
        return []
    wrapper = WRAPPERS.get(call.name)
    if wrapper is not None:
        return _unwrapped(call, wrapper)
    if call.name.startswith(("ld-linux", "ld-musl", "ld.so")):
        return _unwrapped(call, Wrapper())
    if call.name.startswith(("python", "pypy")) and "-m" in call.texts:
        return [Inner(call.words[call.texts.index("-m") + 1 :])]
    for at, text in enumerate(call.texts[:8]):
        found = SUBCOMMANDS.get((_family(call.name), plain(text)))
        if found is not None:
            return _unwrapped(call.after(at + 1), found)
    return _handed_on(call) if call.name not in RULES and call.name not in READERS else []


def _handed_on(call: Call) -> list[Inner]:
    """A program that nobody here knows, given words that look like a command."""
    names = [plain(text).rpartition("/")[2] for text in call.texts]
    at = next((n for n, name in enumerate(names) if name in _COMMANDS), None)
    return [] if at is None else [Inner(call.words[at:])]


_COMMANDS: Final = listed("rm sh bash zsh dash sudo doas xargs shred dd mkfs eval env")


def _family(name: str) -> str:
    return {"podman": "docker", "nerdctl": "docker", "oc": "kubectl", "k": "kubectl"}.get(
        name, name
    )


def _unwrapped(call: Call, wrapper: Wrapper) -> list[Inner]:
    valued, scripts = wrapper.valued.split(), wrapper.scripts.split()
    found = [
        Inner(script=plain(value), is_remote=wrapper.is_remote)
        for value in (call.values(*scripts) if scripts else ())
    ]
    at = _start(call, frozenset((*valued, *scripts)), wrapper)
    own = call.name in OWN_SHELL
    rest = call.words[at:]
    if not all(is_known(text) for text in call.texts[:at] if text.startswith("-")):
        found.append(Inner(script=UNKNOWN))
    if wrapper.each:
        return found + [Inner(script=plain(word.text)) for word in rest]
    if not wrapper.takes_words:
        rest = ()
    if rest and wrapper.joins:
        script = joined(list(rest))
        found.append(Inner(script=script, is_remote=wrapper.is_remote, is_own_shell=own))
    elif rest:
        found.append(Inner(rest, is_remote=wrapper.is_remote, is_own_shell=own))
    elif wrapper.reads and call.stdin is not None and not found:
        found.append(Inner(script=call.stdin, is_remote=wrapper.is_remote))
    return found


def _start(call: Call, valued: frozenset[str], wrapper: Wrapper) -> int:
    """Where the command begins."""
    texts, at, skips = call.texts, 0, wrapper.skips
    has_options = True
    while at < len(texts):
        text = plain(texts[at])
        if text == "--" and has_options:
            at, has_options = at + 1, False
        elif has_options and _is_option(call, text):
            at += 2 if _takes_next(text, valued) else 1
        elif _is_assignment(call, text):
            at += 1
        elif skips:
            at, skips = at + 1, skips - 1
        else:
            break
    return at


def _is_option(call: Call, text: str) -> bool:
    return text.startswith("-") and (len(text) > 1 or call.name in ("su", "sudo", "env"))


def _is_assignment(call: Call, text: str) -> bool:
    if call.name == "env":
        return "=" in text
    return call.name in _ASSIGNING and bool(_ASSIGNMENT.match(text))


def _takes_next(text: str, valued: frozenset[str]) -> bool:
    """Whether this option takes the next word: by its name, cut short, or at the end of `-iu`."""
    if text.startswith("--"):
        return any(name.startswith(text) for name in valued)
    return text in valued or (len(text) == 3 and text[1:].isalpha() and "-" + text[2] in valued)


_XARGS_VALUED: Final = listed(
    "-I -n -P -L -d -a -s -E -R -S --max-args --max-procs --delimiter --max-lines --arg-file "
    "--max-chars --eof"
)


def _xargs(call: Call) -> list[Inner]:
    at = _start(call, _XARGS_VALUED, Wrapper())
    mark = call.value("-I", "--replace")
    mark = plain(mark) if mark and mark != UNKNOWN else "{}"
    replaced = Call("xargs", call.words[:at], call.ground).has("-I", "-i", "--replace")
    words = [_filled(word, mark) if replaced else word for word in call.words[at:]]
    if not words:
        return []
    return [Inner((*words, *([] if replaced else _piped(call))), eats_stdin=True)]


def _piped(call: Call) -> list[Word]:
    """The words that come through the pipe."""
    text = call.stdin
    if text is None or not is_known(text) or len(text) > 2_000 or call.has("-a", "--arg-file"):
        return [Word(SPREAD)]
    return [Word(part) for part in text.split()]


def _filled(word: Word, mark: str) -> Word:
    return Word(word.text.replace(mark, UNKNOWN), word.source, word.empties)


def _find(call: Call) -> list[Inner]:
    """Each -exec of a find, up to its `;` or `+`."""
    found: list[Inner] = []
    current: list[Word] | None = None
    for word in call.words:
        text = plain(word.text)
        if text in _EXECS:
            current = []
        elif current is None:
            continue
        elif text in (";", "+") and current:
            found.append(Inner(tuple(current)))
            current = None
        else:
            current.append(_filled(Word(text, word.source), "{}"))
    return found + ([Inner(tuple(current))] if current else [])


_EXECS: Final = frozenset((
    "-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch",
))  # fmt: skip


def _fd(call: Call) -> list[Inner]:
    found = _find(call)
    return [Inner((*inner.words, Word(UNKNOWN))) for inner in found]


_PARALLEL_VALUED: Final = listed(
    "-j -n -N -I -a -d -P -L -S --jobs --arg-file --max-args --delay --timeout --joblog --results "
    "--colsep --sshlogin --tmpdir --retries -C"
)


def _parallel(call: Call) -> list[Inner]:
    at = _start(call, _PARALLEL_VALUED, Wrapper())
    texts = call.texts
    marks = [n for n in range(at, len(texts)) if texts[n].startswith(":::")]
    end = marks[0] if marks else len(texts)
    command = [_filled(word, "{}") for word in call.words[at:end]]
    if command:
        shape = re.sub(r"\{[\w/.#%]*\}", UNKNOWN, joined(command))
        return [Inner((*command, Word(SPREAD))), *_said(shape, command)]
    given = [plain(text) for text in texts[end:] if not text.startswith(":::")]
    lines = given or ([call.stdin] if call.stdin is not None else [])
    return [Inner(script=line) for line in lines]


def _said(shape: str, command: list[Word]) -> list[Inner]:
    """The command as the text that it is to parallel, if it is written as one."""
    if len(command) > 1 and not any(" " in word.text for word in command):
        return []
    return [Inner(script=shape.replace(UNKNOWN, "x"))]


def _git(call: Call) -> list[Inner]:
    """Settings and options of git that run something."""
    found = []
    for setting in call.values("-c", "--config-env"):
        key, _, value = plain(setting).partition("=")
        if value.startswith("!") or _GIT_RUNS.search(key.lower()):
            found.append(Inner(script=value.removeprefix("!")))
    texts = [plain(text) for text in call.texts]
    if "config" in texts:
        set_to = [t for t in texts[texts.index("config") + 1 :] if not t.startswith("-")]
        runs = bool(set_to) and bool(_GIT_RUNS.search(set_to[0].lower()))
        found += [Inner(script=text) for text in set_to[1:2] if runs]
    if "rebase" in texts or "difftool" in texts:
        found += [Inner(script=plain(v)) for v in call.values("-x", "--exec", "--extcmd")]
    if "bisect" in texts and "run" in texts:
        found.append(Inner(call.words[texts.index("run") + 1 :]))
    if "submodule" in texts and "foreach" in texts:
        rest = _after_options(list(call.words[texts.index("foreach") + 1 :]))
        found.append(Inner(script=joined(rest)))
    return found


_GIT_RUNS: Final = re.compile(
    r"pager|editor|sshcommand|askpass|helper|fsmonitor|external|textconv|\.cmd$|gpg\.program|proxy"
    r"|hookspath|\.clean$|\.smudge$|\.process$|uploadpack|receivepack"
)


def _tar(call: Call) -> list[Inner]:
    actions = [v.partition("exec=")[2] for v in call.values("--checkpoint-action") if "exec=" in v]
    programs = call.values("-I", "--use-compress-program", "--to-command", "--rsh-command")
    return [Inner(script=plain(text)) for text in [*actions, *programs]]


def _trap(call: Call) -> list[Inner]:
    operands = call.operands()
    if call.has("-l", "-p") or len(operands) < 2 or operands[0] in ("-", ""):
        return []
    return [Inner(script=plain(operands[0]), is_own_shell=True)]


def _rsync(call: Call) -> list[Inner]:
    remote = [plain(v) for v in call.values("-e", "--rsh", "--rsync-path")]
    return [Inner(script=text) for text in remote if not text.startswith("ssh")]


def _ssh(call: Call) -> list[Inner]:
    commands = [
        plain(value).partition("=")[2]
        for value in call.values("-o")
        if re.match(r"(?i)(proxy|local|remote|knownhosts)command\s*=", plain(value))
    ]
    return [*_unwrapped(call, WRAPPERS["ssh"]), *(Inner(script=text) for text in commands)]


def _tmux(call: Call) -> list[Inner]:
    """What is handed to a terminal to be run or typed."""
    texts = [plain(text) for text in call.texts]
    if not any(text.startswith(_TMUX_RUNS) for text in texts):
        return []
    found = [Inner(script=text) for text in texts if " " in text and not text.startswith("#")]
    typed = next((n + 1 for n, text in enumerate(texts) if text.startswith(("send", "run"))), None)
    if typed is None:
        return [*found, Inner(call.words[_start(call, _TMUX_VALUED, Wrapper(skips=1)) :])]
    rest = [word for word in call.words[typed:] if word.text not in ("Enter", "C-m")]
    return [*found, Inner(tuple(_after_options(rest)))]


_TMUX_RUNS: Final = ("new", "send", "split", "run", "respawn", "pipe", "if", "popup", "display-p")
_TMUX_VALUED: Final = listed("-L -S -f -t -s -n -c -p -x -y -F -e")


def _screen(call: Call) -> list[Inner]:
    """A command for a new window, or text that is typed into one."""
    found = [Inner(script=plain(text)) for text in call.texts if " " in text]
    at = _start(call, listed("-S -t -p -c -s -h -e -T"), Wrapper())
    return [*found, Inner(call.words[at:])]


def _after_options(words: list[Word]) -> list[Word]:
    while words and words[0].text.startswith("-"):
        words = words[2:] if words[0].text in ("-t", "-p") else words[1:]
    return words


_SPECIAL: Final[dict[str, Callable[[Call], list[Inner]]]] = {
    "xargs": _xargs, "gxargs": _xargs, "find": _find, "gfind": _find, "fd": _fd, "fdfind": _fd,
    "parallel": _parallel, "git": _git, "tar": _tar, "bsdtar": _tar, "trap": _trap,
    "rsync": _rsync, "ssh": _ssh, "tmux": _tmux, "screen": _screen,
}  # fmt: skip
