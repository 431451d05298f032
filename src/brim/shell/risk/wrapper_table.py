"""The programs that run other programs, and how their words are to be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brim.shell.risk.rule_kinds import listed


@dataclass(frozen=True, slots=True)
class Wrapper:
    """How to find the command in the words of a program that runs one."""

    valued: str = ""
    """The options that take the next word."""
    skips: int = 0
    """Words before the command that are no options."""
    scripts: str = ""
    """The options whose value is a text for a shell."""
    joins: bool = False
    """Whether the words are put together and read by a shell again."""
    is_remote: bool = False
    reads: bool = False
    """Whether it runs what is piped in if it is given no command."""
    each: bool = False
    """Whether each word is a command of its own."""
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
        listed(
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
OWN_SHELL: Final = listed("eval command builtin time noglob nocorrect exec then do else !")
"""Those that run the command in the very shell that reads it."""
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
