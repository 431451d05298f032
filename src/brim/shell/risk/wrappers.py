"""Programs that run other programs, and how to find what they run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from brim.shell.risk.expansion import Word, join_words
from brim.shell.risk.invocation import Invocation, split_names
from brim.shell.risk.rules import READERS, RULES
from brim.shell.risk.syntax import SPREAD, UNKNOWN, is_known, plain


@dataclass(frozen=True, slots=True)
class Wrapper:
    """How to find the inner command among the arguments of a program."""

    valued: str = ""
    """The options that take the next argument."""
    skips: int = 0
    """The number of operands before the inner command."""
    scripts: str = ""
    """The options whose value is a shell script."""
    joins: bool = False
    """Whether the arguments are joined and parsed by a shell again."""
    is_remote: bool = False
    reads: bool = False
    """Whether it runs standard input if no command is given."""
    each: bool = False
    """Whether each argument is a separate command."""
    takes_words: bool = True


_PLAIN: Final = Wrapper()
_TOOL: Final = Wrapper(skips=1)
WRAPPERS: Final[dict[str, Wrapper]] = {
    "sudo": Wrapper(
        "-u -g -h -p -C -D -R -T -U -r -t --user --group --host --prompt --chdir --chroot",
        reads=True,
    ),
    "doas": Wrapper("-u -C", reads=True),
    "su": Wrapper("-s --shell -g -w", scripts="-c --command --session-command", takes_words=False,
                  reads=True),
    "runuser": Wrapper("-u -g -s -w --user", scripts="-c --command"),
    "sg": Wrapper("", skips=1, scripts="-c"),
    "pkexec": Wrapper("--user"),
    **dict.fromkeys(("gosu", "su-exec", "setuidgid", "chpst"), _TOOL),
    "env": Wrapper("-u -C --unset --chdir", scripts="-S --split-string"),
    **dict.fromkeys(("compgen", "complete", "mapfile", "readarray"),
                    Wrapper("-C", scripts="-C", takes_words=False)),
    "man": Wrapper("-P --pager", scripts="-P --pager", takes_words=False),
    "zip": Wrapper("", scripts="-TT --unzip-command", takes_words=False),
    "nice": Wrapper("-n --adjustment"),
    "ionice": Wrapper("-c -n -p --class --classdata"),
    **dict.fromkeys(
        split_names(
            "nohup setsid builtin noglob nocorrect coproc busybox toybox fakeroot catchsegv "
            "unbuffer torsocks tsocks dbus-run-session eatmydata proot then do else ! and or not "
            "begin jobs"
        ),
        _PLAIN,
    ),
    "command": Wrapper(""),
    "exec": Wrapper("-a"),
    "time": Wrapper("-f -o --format --output"),
    "timeout": Wrapper("-k -s --kill-after --signal", skips=1),
    "gtimeout": Wrapper("-k -s --kill-after --signal", skips=1),
    "stdbuf": Wrapper("-i -o -e --input --output --error"),
    "caffeinate": Wrapper("-t -w"),
    **dict.fromkeys(("chrt", "taskset", "repeat", "cpulimit"), _TOOL),
    "numactl": Wrapper("-N -m -C -p"),
    "prlimit": Wrapper("-p"),
    "choom": Wrapper("-n -p"),
    "setpriv": Wrapper("--reuid --regid --groups"),
    "setarch": _TOOL,
    "strace": Wrapper("-e -o -p -s -P -E -u -a -b -I -O -S -X"),
    "ltrace": Wrapper("-e -o -p -s -u -a -n -l -x"),
    "valgrind": Wrapper(""),
    "gdb": Wrapper("-ex -x -p"),
    "perf": Wrapper("-e -o -g -F", skips=1),
    "rlwrap": Wrapper("-f -H -a -b -C -S"),
    "watch": Wrapper("-n --interval -q --equexit", joins=True),
    "hyperfine": Wrapper("-w -r -m -M -u -i -N -P -L --warmup --runs --export-json "
                         "--export-markdown --min-runs --max-runs", scripts="-p -c -s --prepare "
                         "--cleanup --setup", each=True),
    "entr": Wrapper(""),
    "watchexec": Wrapper("-e -w -i --exts --watch --ignore", joins=True),
    "nodemon": Wrapper("-e -w -i --ext --watch --ignore", scripts="-x --exec"),
    "flock": Wrapper("-w -E --timeout", skips=1, scripts="-c --command"),
    "script": Wrapper("-t -T -I -O -B", scripts="-c --command"),
    "chroot": Wrapper("", skips=1, reads=True),
    "unshare": Wrapper("-S -G -R -w", reads=True),
    "nsenter": Wrapper("-t --target -S -G", reads=True),
    "systemd-run": Wrapper("-u -p -t --unit --property --slice"),
    "firejail": Wrapper(""),
    "xvfb-run": Wrapper("-n -s -e -f -a"),
    "proxychains": Wrapper("-f"), "proxychains4": Wrapper("-f"),
    "faketime": _TOOL,
    "eval": Wrapper("", joins=True),
    "trap": Wrapper("", each=True),
    "ssh": Wrapper("-p -i -l -o -F -J -L -R -D -W -b -c -e -m -O -Q -S -w -E -B -I", skips=1,
                   joins=True, is_remote=True, reads=True),
    "rsh": Wrapper("-l", skips=1, joins=True, is_remote=True, reads=True),
    "mosh": Wrapper("-p", skips=1, joins=True, is_remote=True),
    "sshpass": Wrapper("-p -f -P"),
    "autossh": Wrapper("-M -p -i -l -o -L -R -D", skips=1, joins=True, is_remote=True),
    "concurrently": Wrapper("-n -c --names", each=True),
    "npx": Wrapper("-p --package", scripts="-c --call"),
    "bunx": _PLAIN, "uvx": Wrapper("--from --with"), "pnpx": _PLAIN,
    "dotenv": Wrapper("-e -f"), "nix-shell": Wrapper("-p -A", scripts="--run --command",
                                                    takes_words=False),
    "wsl": Wrapper("-d -u -e --distribution --user --exec"),
    "cmd": Wrapper("/c /C /k /K", scripts="/c /C /k /K", takes_words=False),
    "cmd.exe": Wrapper("/c /C /k /K", scripts="/c /C /k /K", takes_words=False),
    "expect": Wrapper("", scripts="-c", takes_words=False),
    "tmux": Wrapper("-L -S -f -t -s -n -c", each=True),
    "screen": Wrapper("-S -t -X -p -c -s -h", reads=False),
    "xterm": Wrapper("-T -geometry"),
}  # fmt: skip
OWN_SHELL: Final = split_names("eval command builtin time noglob nocorrect exec then do else !")
"""Wrappers that run the command in the current shell."""
SUBCOMMANDS: Final = {
    ("docker", "exec"): Wrapper("-e -u -w --env --user --workdir --env-file", skips=1,
                                is_remote=True),
    ("docker", "run"): Wrapper(
        "-e -u -w -v -p -m -l -h -c --env --user --workdir --volume --publish --name --network "
        "--mount --env-file --platform --memory --cpus --gpus --label --hostname "
        "--add-host --device --restart --pull --shm-size --cap-add --ipc --pid --runtime --ulimit",
        skips=1, scripts="--entrypoint", is_remote=True),
    ("docker-compose", "exec"): Wrapper("-e -u -w --env --user --workdir", skips=1,
                                        is_remote=True),
    ("docker-compose", "run"): Wrapper("-e -u -w -v --env --user --workdir", skips=1,
                                       is_remote=True),
    ("pipx", "run"): _PLAIN,
    ("docker", "compose"): Wrapper("-e -u -w -f -p --env --user --workdir --file --profile "
                                   "--project-name --env-file", skips=2, is_remote=True),
    ("kubectl", "exec"): Wrapper("-n -c --namespace --container", skips=1, is_remote=True),
    ("kubectl", "run"): Wrapper("-n --image --restart", skips=1, is_remote=True),
    ("vagrant", "ssh"): Wrapper("", scripts="-c --command", takes_words=False, is_remote=True),
    ("poetry", "run"): _PLAIN, ("pipenv", "run"): _PLAIN, ("bundle", "exec"): _PLAIN,
    ("uv", "run"): Wrapper("-p --python --with --extra --group --project --directory "
                           "--env-file --package --with-requirements"),
    ("pdm", "run"): _PLAIN, ("hatch", "run"): _PLAIN, ("rye", "run"): _PLAIN,
    ("npm", "exec"): Wrapper("", scripts="-c --call"), ("pnpm", "exec"): _PLAIN,
    ("pnpm", "dlx"): _PLAIN, ("yarn", "exec"): _PLAIN, ("yarn", "dlx"): _PLAIN,
    ("conda", "run"): Wrapper("-n -p --name --prefix"),
    ("mamba", "run"): Wrapper("-n -p --name --prefix"),
    ("direnv", "exec"): _TOOL, ("nix", "develop"): Wrapper("-c --command"),
    ("asdf", "exec"): _PLAIN, ("mise", "exec"): _PLAIN, ("rbenv", "exec"): _PLAIN,
    ("pyenv", "exec"): _PLAIN, ("op", "run"): _PLAIN, ("doppler", "run"): Wrapper("", scripts=(
        "--command")), ("heroku", "run"): Wrapper("-a --app", joins=True, is_remote=True),
    ("ip", "netns"): Wrapper("", skips=2),
    ("adb", "shell"): Wrapper("", joins=True, is_remote=True),
    ("lxc", "exec"): Wrapper("", skips=1, is_remote=True),
    ("multipass", "exec"): Wrapper("", skips=1, is_remote=True),
    ("gcloud", "compute"): Wrapper("", scripts="--command", takes_words=False, is_remote=True),
    ("fly", "ssh"): Wrapper("", scripts="-C --command", takes_words=False, is_remote=True),
}  # fmt: skip


_ASSIGNING: Final = split_names("sudo doas time then do else ! and or not begin noglob nocorrect")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*\+?=")


@dataclass(frozen=True, slots=True)
class InnerCommand:
    """A command that a program runs: words, or a script."""

    words: tuple[Word, ...] = ()
    script: str | None = None
    is_remote: bool = False
    is_own_shell: bool = False
    """Whether it runs in the current shell, as with `eval`."""
    eats_stdin: bool = False


def inner_commands(call: Invocation) -> list[InnerCommand]:
    """Return the commands that a program runs; empty if it is not a wrapper."""
    special = _SPECIAL.get(call.name)
    if special is not None:
        return special(call)
    if call.name == "command" and re.match(r"-p?[vV]", "".join(call.texts[:1])):
        return []
    wrapper = WRAPPERS.get(call.name)
    if wrapper is not None:
        return _unwrap(call, wrapper)
    if call.name.startswith(("ld-linux", "ld-musl", "ld.so")):
        return _unwrap(call, Wrapper())
    if call.name.startswith(("python", "pypy")) and "-m" in call.texts:
        return [InnerCommand(call.words[call.texts.index("-m") + 1 :])]
    for at, text in enumerate(call.texts[:8]):
        found = SUBCOMMANDS.get((_family(call.name), plain(text)))
        if found is not None:
            return _unwrap(call.after(at + 1), found)
    return _guess_inner(call) if call.name not in RULES and call.name not in READERS else []


def _guess_inner(call: Invocation) -> list[InnerCommand]:
    """Return the arguments of an unknown program that look like a command."""
    names = [plain(text).rpartition("/")[2] for text in call.texts]
    at = next((n for n, name in enumerate(names) if name in _COMMANDS), None)
    return [] if at is None else [InnerCommand(call.words[at:])]


_COMMANDS: Final = split_names("rm sh bash zsh dash sudo doas xargs shred dd mkfs eval env")


def _family(name: str) -> str:
    return {"podman": "docker", "nerdctl": "docker", "oc": "kubectl", "k": "kubectl"}.get(
        name, name
    )


def _unwrap(call: Invocation, wrapper: Wrapper) -> list[InnerCommand]:
    valued, scripts = wrapper.valued.split(), wrapper.scripts.split()
    found = [
        InnerCommand(script=plain(value), is_remote=wrapper.is_remote)
        for value in (call.values(*scripts) if scripts else ())
    ]
    at = _start(call, frozenset((*valued, *scripts)), wrapper)
    own = call.name in OWN_SHELL
    rest = call.words[at:]
    if not all(is_known(text) for text in call.texts[:at] if text.startswith("-")):
        found.append(InnerCommand(script=UNKNOWN))
    if wrapper.each:
        return found + [InnerCommand(script=plain(word.text)) for word in rest]
    if not wrapper.takes_words:
        rest = ()
    if rest and wrapper.joins:
        script = join_words(list(rest))
        found.append(InnerCommand(script=script, is_remote=wrapper.is_remote, is_own_shell=own))
    elif rest:
        found.append(InnerCommand(rest, is_remote=wrapper.is_remote, is_own_shell=own))
    elif wrapper.reads and call.stdin is not None and not found:
        found.append(InnerCommand(script=call.stdin, is_remote=wrapper.is_remote))
    return found


def _start(call: Invocation, valued: frozenset[str], wrapper: Wrapper) -> int:
    """Return the position of the inner command."""
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


def _is_option(call: Invocation, text: str) -> bool:
    return text.startswith("-") and (len(text) > 1 or call.name in ("su", "sudo", "env"))


def _is_assignment(call: Invocation, text: str) -> bool:
    if call.name == "env":
        return "=" in text
    return call.name in _ASSIGNING and bool(_ASSIGNMENT.match(text))


def _takes_next(text: str, valued: frozenset[str]) -> bool:
    """Return whether an option takes the next argument: by name, abbreviated, or as in `-iu`."""
    if text.startswith("--"):
        return any(name.startswith(text) for name in valued)
    return text in valued or (len(text) == 3 and text[1:].isalpha() and "-" + text[2] in valued)


_XARGS_VALUED: Final = split_names(
    "-I -n -P -L -d -a -s -E -R -S --max-args --max-procs --delimiter --max-lines --arg-file "
    "--max-chars --eof"
)


def _xargs(call: Invocation) -> list[InnerCommand]:
    at = _start(call, _XARGS_VALUED, Wrapper())
    mark = call.value("-I", "--replace")
    mark = plain(mark) if mark and mark != UNKNOWN else "{}"
    replaced = Invocation("xargs", call.words[:at], call.files).has("-I", "-i", "--replace")
    words = [_substitute(word, mark) if replaced else word for word in call.words[at:]]
    if not words:
        return []
    return [InnerCommand((*words, *([] if replaced else _words_from_pipe(call))), eats_stdin=True)]


def _words_from_pipe(call: Invocation) -> list[Word]:
    """Return the words on standard input."""
    text = call.stdin
    if text is None or not is_known(text) or len(text) > 2_000 or call.has("-a", "--arg-file"):
        return [Word(SPREAD)]
    return [Word(part) for part in text.split()]


def _substitute(word: Word, mark: str) -> Word:
    return Word(word.text.replace(mark, UNKNOWN), word.source, word.empties)


def _find(call: Invocation) -> list[InnerCommand]:
    """Return each `-exec` of a find, up to its `;` or `+`."""
    found: list[InnerCommand] = []
    current: list[Word] | None = None
    for word in call.words:
        text = plain(word.text)
        if text in _EXECS:
            current = []
        elif current is None:
            continue
        elif text in (";", "+") and current:
            found.append(InnerCommand(tuple(current)))
            current = None
        else:
            current.append(_substitute(Word(text, word.source), "{}"))
    return found + ([InnerCommand(tuple(current))] if current else [])


_EXECS: Final = frozenset((
    "-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch",
))  # fmt: skip


def _fd(call: Invocation) -> list[InnerCommand]:
    found = _find(call)
    return [InnerCommand((*inner.words, Word(UNKNOWN))) for inner in found]


_PARALLEL_VALUED: Final = split_names(
    "-j -n -N -I -a -d -P -L -S --jobs --arg-file --max-args --delay --timeout --joblog --results "
    "--colsep --sshlogin --tmpdir --retries -C"
)


def _parallel(call: Invocation) -> list[InnerCommand]:
    at = _start(call, _PARALLEL_VALUED, Wrapper())
    texts = call.texts
    marks = [n for n in range(at, len(texts)) if texts[n].startswith(":::")]
    end = marks[0] if marks else len(texts)
    command = [_substitute(word, "{}") for word in call.words[at:end]]
    if command:
        shape = re.sub(r"\{[\w/.#%]*\}", UNKNOWN, join_words(command))
        return [InnerCommand((*command, Word(SPREAD))), *_as_script(shape, command)]
    given = [plain(text) for text in texts[end:] if not text.startswith(":::")]
    lines = given or ([call.stdin] if call.stdin is not None else [])
    return [InnerCommand(script=line) for line in lines]


def _as_script(shape: str, command: list[Word]) -> list[InnerCommand]:
    """Return the command as a script, if parallel receives it as one text."""
    if len(command) > 1 and not any(" " in word.text for word in command):
        return []
    return [InnerCommand(script=shape.replace(UNKNOWN, "x"))]


def _git(call: Invocation) -> list[InnerCommand]:
    """Return the commands in settings and options of git."""
    found = []
    for setting in call.values("-c", "--config-env"):
        key, _, value = plain(setting).partition("=")
        if value.startswith("!") or _GIT_RUNS.search(key.lower()):
            found.append(InnerCommand(script=value.removeprefix("!")))
    texts = [plain(text) for text in call.texts]
    if "config" in texts:
        set_to = [t for t in texts[texts.index("config") + 1 :] if not t.startswith("-")]
        runs = bool(set_to) and bool(_GIT_RUNS.search(set_to[0].lower()))
        found += [InnerCommand(script=text) for text in set_to[1:2] if runs]
    if "rebase" in texts or "difftool" in texts:
        found += [InnerCommand(script=plain(v)) for v in call.values("-x", "--exec", "--extcmd")]
    if "bisect" in texts and "run" in texts:
        found.append(InnerCommand(call.words[texts.index("run") + 1 :]))
    if "submodule" in texts and "foreach" in texts:
        rest = _after_options(list(call.words[texts.index("foreach") + 1 :]))
        found.append(InnerCommand(script=join_words(rest)))
    return found


_GIT_RUNS: Final = re.compile(
    r"pager|editor|sshcommand|askpass|helper|fsmonitor|external|textconv|\.cmd$|gpg\.program|proxy"
    r"|hookspath|\.clean$|\.smudge$|\.process$|uploadpack|receivepack"
)


def _tar(call: Invocation) -> list[InnerCommand]:
    actions = [v.partition("exec=")[2] for v in call.values("--checkpoint-action") if "exec=" in v]
    programs = call.values("-I", "--use-compress-program", "--to-command", "--rsh-command")
    return [InnerCommand(script=plain(text)) for text in [*actions, *programs]]


def _trap(call: Invocation) -> list[InnerCommand]:
    operands = call.operands()
    if call.has("-l", "-p") or len(operands) < 2 or operands[0] in ("-", ""):
        return []
    return [InnerCommand(script=plain(operands[0]), is_own_shell=True)]


def _rsync(call: Invocation) -> list[InnerCommand]:
    remote = [plain(v) for v in call.values("-e", "--rsh", "--rsync-path")]
    return [InnerCommand(script=text) for text in remote if not text.startswith("ssh")]


def _ssh(call: Invocation) -> list[InnerCommand]:
    commands = [
        plain(value).partition("=")[2]
        for value in call.values("-o")
        if re.match(r"(?i)(proxy|local|remote|knownhosts)command\s*=", plain(value))
    ]
    return [*_unwrap(call, WRAPPERS["ssh"]), *(InnerCommand(script=text) for text in commands)]


def _tmux(call: Invocation) -> list[InnerCommand]:
    """Return the commands that tmux runs or types."""
    texts = [plain(text) for text in call.texts]
    if not any(text.startswith(_TMUX_RUNS) for text in texts):
        return []
    found = [
        InnerCommand(script=text) for text in texts if " " in text and not text.startswith("#")
    ]
    typed = next((n + 1 for n, text in enumerate(texts) if text.startswith(("send", "run"))), None)
    if typed is None:
        return [*found, InnerCommand(call.words[_start(call, _TMUX_VALUED, Wrapper(skips=1)) :])]
    rest = [word for word in call.words[typed:] if word.text not in ("Enter", "C-m")]
    return [*found, InnerCommand(tuple(_after_options(rest)))]


_TMUX_RUNS: Final = ("new", "send", "split", "run", "respawn", "pipe", "if", "popup", "display-p")
_TMUX_VALUED: Final = split_names("-L -S -f -t -s -n -c -p -x -y -F -e")


def _gnu_screen(call: Invocation) -> list[InnerCommand]:
    """Return the commands that screen runs or types."""
    found = [InnerCommand(script=plain(text)) for text in call.texts if " " in text]
    at = _start(call, split_names("-S -t -p -c -s -h -e -T"), Wrapper())
    return [*found, InnerCommand(call.words[at:])]


def _after_options(words: list[Word]) -> list[Word]:
    while words and words[0].text.startswith("-"):
        words = words[2:] if words[0].text in ("-t", "-p") else words[1:]
    return words


_SPECIAL: Final[dict[str, Callable[[Invocation], list[InnerCommand]]]] = {
    "xargs": _xargs, "gxargs": _xargs, "find": _find, "gfind": _find, "fd": _fd, "fdfind": _fd,
    "parallel": _parallel, "git": _git, "tar": _tar, "bsdtar": _tar, "trap": _trap,
    "rsync": _rsync, "ssh": _ssh, "tmux": _tmux, "screen": _gnu_screen,
}  # fmt: skip
