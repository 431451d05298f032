"""Rules for all programs: when a call is destructive, and why.

A rule is a function from an invocation to the reason why it is destructive, or None. Most are
built by the functions of `invocation`, so that the tables read as lists. `why_destructive` is the
entry point.
"""

from __future__ import annotations

import re
from typing import Final

from brim.shell.risk import rules_files as files
from brim.shell.risk.inline_code import why_code
from brim.shell.risk.invocation import (
    Invocation,
    Rule,
    always,
    any_of,
    first_word,
    flag,
    for_programs,
    split_names,
    subcommands,
    verbs,
)
from brim.shell.risk.rules_files import FILE_RULES, REMOVES, git_rule
from brim.shell.risk.syntax import UNKNOWN, display, is_known, plain

DISK: Final = "writes to a disk as a whole"
STOPS: Final = "stops processes"
POWER: Final = "shuts the machine down"
USERS: Final = "changes who can log in"
MOUNTS: Final = "changes what is mounted"
FIREWALL: Final = "changes the firewall"
SERVICES: Final = "stops services"
SCHEDULED: Final = "runs something later, unattended"


def _kill(call: Invocation) -> str | None:
    asks = call.texts[:1] in (["-l"], ["-L"], ["--list"], ["--table"], ["-0"])
    return None if asks or not call.words or call.value("-s", "-n") == "0" else STOPS


def _crontab(call: Invocation) -> str | None:
    if call.has("-r"):
        return "removes the table of timed jobs"
    reads = call.has("-l", "-e", "-V") or (not call.operands("-u") and call.stdin is None)
    return None if reads else "replaces the table of timed jobs"


def _init(call: Invocation) -> str | None:
    return POWER if call.texts[:1] in (["0"], ["6"], ["1"], ["s"], ["S"]) else None


def _ifs(call: Invocation) -> str | None:
    """A network interface or its addresses are removed."""
    lost = any(text in ("down", "del", "delete", "flush") for text in call.texts)
    return "changes the network" if lost else None


def _service(call: Invocation) -> str | None:
    return SERVICES if "stop" in call.texts else None


def _history(call: Invocation) -> str | None:
    return "removes the shell's history" if call.has("-c", "-d", "-w") else None


def _mount(call: Invocation) -> str | None:
    return MOUNTS if call.operands() or call.has("-a") else None


def _passwd(call: Invocation) -> str | None:
    return None if call.has("-S", "--status") else USERS


def _sysctl(call: Invocation) -> str | None:
    sets = call.has("-w", "-p", "--write", "--load") or any("=" in text for text in call.texts)
    return "changes the running system" if sets else None


def _fdisk(call: Invocation) -> str | None:
    return None if call.has("-l", "--list", "-x", "-s") or "print" in call.texts else DISK


_SYSTEMCTL: Final = subcommands(
    {
        **dict.fromkeys(
            ("stop", "disable", "mask", "kill", "isolate", "revert", "clean"), SERVICES),
        **dict.fromkeys(
            ("poweroff", "reboot", "halt", "kexec", "suspend", "hibernate", "emergency", "rescue",
             "default", "exit", "soft-reboot"), POWER),
    },
    "-H", "--host", "-M", "--machine", "-t", "--type", "-n", "--lines",
)  # fmt: skip

MACHINE_RULES: Final[dict[str, Rule]] = {
    "ssh-copy-id": always("lets a key log in"),
    **for_programs(always(DISK),
                   "mkswap wipefs badblocks hdparm blkdiscard sgdisk sfdisk cryptsetup"),
    **for_programs(_fdisk, "fdisk cfdisk parted gparted gdisk"),
    **for_programs(always("removes volumes"), "lvremove vgremove pvremove lvreduce"),
    **for_programs(verbs("destroy", "rollback", "labelclear", why="removes volumes"), "zfs zpool"),
    "btrfs": verbs("delete", why="removes volumes", depth=2),
    "mdadm": flag("--zero-superblock", "--stop", "-S", "--remove", "--fail", why=DISK),
    "diskutil": first_word("erase", "partition", "reformat", "delete", "zero", "secure", why=DISK),
    "kill": _kill,
    **for_programs(always(STOPS), "killall pkill skill xkill killall5 taskkill"),
    "fuser": flag("-k", "--kill", why=STOPS),
    "tmux": first_word("kill-", why=STOPS),
    "screen": flag("quit", "kill", why=STOPS),
    "loginctl": first_word("kill-", "terminate-", why=STOPS, otherwise=_SYSTEMCTL),
    **for_programs(always(POWER), "shutdown reboot halt poweroff"),
    **for_programs(_init, "init telinit"),
    "systemctl": _SYSTEMCTL,
    "launchctl": verbs("unload", "remove", "bootout", "disable", "stop", "kill", why=SERVICES),
    **for_programs(_service, "service rc-service invoke-rc.d initctl"),
    "supervisorctl": verbs("stop", "remove", "shutdown", why=SERVICES),
    "pm2": verbs("delete", "del", "kill", "stop", "flush", why=SERVICES),
    "crontab": _crontab,
    **for_programs(always(SCHEDULED), "at batch"),
    "atrm": always("removes timed jobs"),
    **for_programs(
        always(USERS),
        "userdel groupdel deluser delgroup usermod chpasswd vipw visudo gpasswd chage groupmod",
    ),
    "passwd": _passwd,
    **for_programs(
        flag("-F", "--flush", "-X", "--delete-chain", "-D", "--delete", "-P", "--policy",
             why=FIREWALL),
        "iptables ip6tables ebtables arptables",
    ),
    "ufw": verbs("reset", "disable", "delete", why=FIREWALL),
    "nft": verbs("flush", "delete", "destroy", why=FIREWALL),
    "pfctl": flag("-F", "-d", why=FIREWALL),
    "firewall-cmd": flag("--remove-service", "--remove-port", "--panic-on", why=FIREWALL),
    **for_programs(_ifs, "ip ifconfig nmcli route"),
    **for_programs(always("changes the network"), "ifdown"),
    **for_programs(_mount, "mount umount swapoff swapon losetup"),
    "sysctl": _sysctl,
    **for_programs(always("changes the running system"), "modprobe rmmod insmod kexec setenforce"),
    **for_programs(always("changes how the machine boots"),
                   "efibootmgr grub-install nvram bless"),
    "history": _history,
    "fc": flag("-e", "-s", why="runs an earlier command again"),
    "logrotate": flag("-f", "--force", why="rotates logs away"),
    "journalctl": flag(
        "--vacuum-size", "--vacuum-time", "--vacuum-files", "--rotate", why="removes logs"
    ),
    "setfacl": flag("-R", "-b", why="changes who may read what"),
}  # fmt: skip


PACKAGES: Final = "removes packages"
CLOUD: Final = "removes something in the cloud"
PUBLISHES: Final = "publishes something"
_SQL: Final = re.compile(
    r"\b(drop|delete|truncate|update|alter|replace\s+into|grant|revoke|overwrite)\b"
    r"|\\!|^\s*\.(shell|system|output|once|import|restore|clone)\b|dropdatabase|\.drop\s*\("
    r"|\.(delete|remove|deletemany|deleteone)\s*\(",
    re.IGNORECASE | re.MULTILINE,
)
_REDIS: Final = ("flushall", "flushdb", "del", "unlink", "shutdown", "config", "eval", "debug")
_TERMINATE: Final = re.compile(
    r"(delete|terminate|remove|destroy|purge|deregister|stop|reset|revoke|detach|disable)(-.*)?"
)


def _sql(call: Invocation) -> str | None:
    """SQL on the command line, on standard input, or in a readable file."""
    said = [*call.texts, call.stdin or ""]
    said += [call.files.text(name) or UNKNOWN for name in call.values("-f", "--file")]
    if any(_SQL.search(plain(text)) for text in said):
        return "changes or removes data in a database"
    if not all(is_known(text) for text in said):
        return "runs statements that are known only at run time"
    return None


def _redis(call: Invocation) -> str | None:
    operands = call.operands("-h", "-p", "-a", "-n", "-u", "--user", "--pass", "-s", "-c")
    name = operands[0].lower() if operands else (call.stdin or "").lower().strip()
    found = any(word in name.split() for word in _REDIS) or not is_known(name)
    found = found or call.has("--eval", "--pipe")
    return "removes data in a database" if found else None


def _aws(call: Invocation) -> str | None:
    operands = [text for text in call.texts if not text.startswith("-")]
    if operands[:2] == ["s3", "cp"] and (why := files.copied_in(call)):
        return why
    if operands[:1] == ["s3"] and (
        operands[1:2] in (["rm"], ["rb"], ["mv"]) or call.has("--delete")
    ):
        return CLOUD
    return CLOUD if any(_TERMINATE.fullmatch(plain(text)) for text in operands[:4]) else None


def _cloud(call: Invocation) -> str | None:
    operands = [plain(text) for text in call.texts if not text.startswith("-")]
    gone = ("rm", "rb", "del")
    return CLOUD if any(_TERMINATE.fullmatch(t) or t in gone for t in operands[:6]) else None


def _heroku(call: Invocation) -> str | None:
    name = plain(call.texts[0]) if call.texts else ""
    gone = name.endswith((":destroy", ":delete", ":reset", ":remove", ":unset", ":rollback"))
    return CLOUD if gone or name in ("destroy", "restart", "ps:stop") else None


_DOCKER: Final = subcommands(
    {
        "cp": files.copied_in, "rm": "removes containers", "rmi": "removes images", "kill": STOPS,
        "container": {"rm": "removes containers", "prune": "removes containers", "kill": STOPS},
        "image": {"rm": "removes images", "prune": "removes images", "remove": "removes images"},
        "volume": {"rm": "removes volumes", "prune": "removes volumes",
                   "remove": "removes volumes"},
        "network": {"rm": "removes networks", "prune": "removes networks",
                    "remove": "removes networks"},
        "system": {"prune": "removes all unused data"},
        "builder": {"prune": "removes the build cache"},
        "buildx": {"prune": "removes the build cache", "rm": "removes a builder"},
        "context": {"rm": "removes a context"}, "secret": {"rm": "removes a secret"},
        "config": {"rm": "removes a config"}, "stack": {"rm": "removes a stack"},
        "service": {"rm": "removes a service"}, "node": {"rm": "removes a node"},
        "swarm": {"leave": "leaves the swarm"}, "plugin": {"rm": "removes a plugin"},
        "manifest": {"rm": "removes a manifest"}, "pod": {"rm": "removes a pod"},
        "machine": {"rm": "removes a machine", "reset": "removes all of it"},
        "compose": subcommands(
            {
                "down": flag("-v", "--volumes", "--rmi", why="removes volumes or images"),
                "rm": "removes containers", "kill": STOPS,
            },
            "-f", "--file", "-p", "--project-name", "--env-file", "--profile",
        ),
    },
    "-H", "--host", "-c", "--context", "--config", "-l", "--log-level",
)  # fmt: skip
_COMPOSE: Final = subcommands(
    {"down": flag("-v", "--volumes", "--rmi", why="removes volumes or images"),
     "rm": "removes containers", "kill": STOPS},
    "-f", "--file", "-p", "--project-name", "--env-file", "--profile",
)  # fmt: skip
_KUBECTL: Final = subcommands(
    {
        "delete": "removes things from the cluster", "drain": "empties a node",
        "replace": flag("--force", why="deletes and recreates resources"),
        "apply": flag("--prune", "--force", why="removes things from the cluster"),
        "scale": lambda call: STOPS if call.value("--replicas") == "0" else None,
        "rollout": {"undo": "takes a rollout back"},
        "cordon": "takes a node out of service",
    },
    "-n", "--namespace", "--context", "--kubeconfig", "-s", "--server", "--cluster", "--user",
)  # fmt: skip
_TERRAFORM: Final = any_of(
    subcommands(
        {
            "destroy": "removes the infrastructure",
            "apply": flag(
                "-auto-approve", "--auto-approve", "-destroy", "--destroy",
                why="changes the infrastructure unasked",
            ),
            "state": {"rm": "forgets infrastructure", "push": "replaces the state"},
            "workspace": {"delete": "removes a workspace"},
            "taint": "marks something to be replaced", "force-unlock": "takes a lock away",
        }
    ),
)  # fmt: skip
_APT: Final = verbs(
    "remove", "purge", "autoremove", "autopurge", "dist-upgrade", "full-upgrade", why=PACKAGES
)
_DNF: Final = verbs("rm", "remove", "erase", "autoremove", "swap", why=PACKAGES)
_BREW: Final = verbs("uninstall", "remove", "rm", "autoremove", "untap", "zap", why=PACKAGES)
_NODE: Final = verbs(
    "publish", "unpublish", "deprecate", why=PUBLISHES, otherwise=verbs(
        "uninstall", "remove", "rm", "un", "unlink", "r", "prune", why=PACKAGES
    ),
)  # fmt: skip
_PIP: Final = verbs("uninstall", why=PACKAGES)

SERVICE_RULES: Final[dict[str, Rule]] = {
    **for_programs(_DOCKER, "docker podman nerdctl"),
    **for_programs(_COMPOSE, "docker-compose podman-compose"),
    **for_programs(_KUBECTL, "kubectl oc k3s k"),
    "helm": verbs("uninstall", "delete", "del", "un", "rollback", why="removes a release"),
    **for_programs(_TERRAFORM, "terraform tofu terragrunt"),
    "pulumi": verbs("destroy", "cancel", "rm", why="removes the infrastructure", depth=2),
    "cdk": verbs("destroy", why="removes the infrastructure"),
    "vagrant": verbs("destroy", "halt", why="removes machines"),
    "virsh": verbs("destroy", "undefine", "shutdown", "vol-delete", why="removes machines"),
    "aws": _aws,
    **for_programs(_cloud, "gcloud az doctl ibmcloud oci linode-cli hcloud scw gsutil bq eksctl"),
    "heroku": _heroku,
    **for_programs(verbs("rm", "rb", "mv", "del", "delete", "remove", why=CLOUD, depth=3),
            "gsutil s3cmd mc"),
    "rclone": verbs(
        "delete", "purge", "sync", "move", "deletefile", "rmdirs", "moveto", "cleanup", "bisync",
        why="removes or replaces files",
    ),
    "gh": any_of(verbs("delete", "archive", why="removes something on GitHub", depth=2),
                 files.request),
    **for_programs(_NODE, "npm yarn pnpm bun"),
    "cargo": verbs("publish", "yank", why=PUBLISHES),
    "gem": verbs("push", "yank", why=PUBLISHES, otherwise=verbs("uninstall", why=PACKAGES)),
    "twine": verbs("upload", why=PUBLISHES),
    "poetry": verbs("publish", why=PUBLISHES, otherwise=verbs("remove", why=PACKAGES)),
    "uv": verbs("publish", why=PUBLISHES, otherwise=verbs("remove", "uninstall", why=PACKAGES,
                                                         depth=2)),
    **for_programs(_PIP, "pip pip3 pipx pipenv easy_install"),
    **for_programs(verbs("uninstall", "remove", "clean", why=PACKAGES), "conda mamba micromamba"),
    **for_programs(_APT, "apt apt-get aptitude"),
    "dpkg": flag("-r", "-P", "--remove", "--purge", why=PACKAGES),
    "rpm": flag("-e", "--erase", why=PACKAGES),
    **for_programs(_DNF, "yum dnf microdnf zypper"),
    "pacman": first_word("-R", "--remove", why=PACKAGES),
    "apk": verbs("del", why=PACKAGES),
    **for_programs(_BREW, "brew port"),
    **for_programs(verbs("remove", "purge", "uninstall", why=PACKAGES), "snap flatpak"),
    **for_programs(always("removes a database"), "dropdb dropuser pg_dropcluster"),
    **for_programs(_sql, "psql mysql mariadb sqlite3 sqlite duckdb clickhouse-client cqlsh sqlcmd"
                  " mongo mongosh isql sqlplus cockroach"),
    "mysqladmin": verbs("drop", "shutdown", "kill", why="removes a database", depth=4),
    **for_programs(_redis, "redis-cli valkey-cli keydb-cli"),
    "pg_restore": flag("-c", "--clean", why="removes data in a database"),
    "mongorestore": flag("--drop", why="removes data in a database"),
    "wsl": flag("--unregister", why="removes a system"),
    "tmutil": first_word("delete", "disable", why="removes backups"),
    "restic": verbs("forget", "prune", why="removes backups", depth=4),
    "borg": verbs("delete", "prune", "compact", why="removes backups", depth=2),
    "ansible": flag("-m", "-a", why="runs a command on other machines"),
    "security": first_word("delete", why="removes keys"),
    "gpg": flag(
        "--delete-keys", "--delete-secret-keys", "--delete-secret-and-public-key",
        why="removes keys",
    ),
}  # fmt: skip


def _management_script(call: Invocation) -> str | None:
    """`python manage.py flush` and similar."""
    operands = [plain(text) for text in call.operands()]
    scripts = ("manage.py", "artisan", "console", "rails", "rake")
    if operands and operands[0].rpartition("/")[2] in scripts:
        return next((f"runs {o}" for o in operands[1:2] if _VERB.fullmatch(o)), None)
    return None


def _transfer(call: Invocation) -> str | None:
    said = " ".join([*call.texts, call.stdin or ""])
    found = re.search(r"\b(rm|del|delete|mdelete|rmdir|mirror)\b", plain(said))
    return "removes files on another machine" if found or not is_known(said) else None


def _socat(call: Invocation) -> str | None:
    runs = any(re.search(r"(?i)(exec|system|shell):", plain(text)) for text in call.texts)
    return "runs a program for others" if runs else None


def _gdb(call: Invocation) -> str | None:
    said = call.values("-ex", "--eval-command", "-iex")
    runs = any(re.match(r"\s*(shell|!|python|py|make|pipe|call)", plain(text)) for text in said)
    return "runs a command" if runs else None


def _make(call: Invocation) -> str | None:
    piped = call.value("-f", "--file", "--makefile") in ("-", "/dev/stdin")
    set_up = any(text.startswith(("SHELL=", "--eval", "-E", "MAKEFLAGS=")) for text in call.texts)
    return "runs rules from the command line" if piped or set_up else _verb(call)


def _less(call: Invocation) -> str | None:
    runs = any(text.startswith("+") and "!" in text for text in call.texts)
    return "runs a command" if runs else None


RULES: Final[dict[str, Rule]] = {
    **FILE_RULES,
    **MACHINE_RULES,
    **SERVICE_RULES,
    "git": git_rule,
    "make": _make,
    "timeit": lambda call: next(filter(None, (why_code("python", t) for t in call.texts)), None),
    **for_programs(_transfer, "sftp ftp lftp smbclient"),
    **for_programs(flag("-e", "-c", "--exec", "--sh-exec", why="runs a program for others"),
                   "nc ncat"),
    "socat": _socat,
    "gdb": _gdb,
    "bind": flag("-x", why="binds a command to a key"),
    **for_programs(always(REMOVES), "zf_rm zf_unlink"),
    **for_programs(_management_script, "python python3 php ruby"),
    **for_programs(_less, "less more"),
    "del": always(REMOVES), "rd": always(REMOVES), "erase": always(REMOVES),
    "remove-item": always(REMOVES), "format": always(DISK), "clear-content": always(REMOVES),
    "diskpart": always(DISK), "srm": always(REMOVES), "wipe": always(REMOVES),
    "trash-empty": always(REMOVES), "rimraf": always(REMOVES), "del-cli": always(REMOVES),
    "bleachbit": always(REMOVES), "tmpreaper": always(REMOVES),
    "tmpwatch": always(REMOVES),
}  # fmt: skip
_VERB: Final = re.compile(
    r"(?:[\w-]*[:_-])?(?:delete|destroy|drop|purge|terminate|rm|remove|uninstall|wipe|erase|nuke"
    r"|del|rmdir|unlink|flush|flushall|truncate|reset|fresh|rollback|downgrade)(?:[:_-][\w-]*)?"
)
_FLAGS: Final = split_names(
    "--delete --destroy --purge --wipe --erase --drop --force-reset --unregister --delete-all"
)
READERS: Final = split_names(
    "echo printf cat ls grep egrep fgrep rg ag ack fd find man info whatis apropos which type "
    "whereis file stat wc head tail less more sort uniq cut tr awk sed diff cmp jq yq tree du df "
    "test [ [[ read cd pushd mkdir touch true false : set export declare local alias pytest "
    "tldr help whatis code vim vi nano emacs open xdg-open say espeak cowsay figlet notify-send "
    "go cargo rustc gcc python ruby node perl java javac mvn gradle curl wget ssh scp tar zip "
    "unzip base64 md5sum sha256sum basename dirname realpath seq expr let return exit break wait "
    "tee column paste join comm nl fold fmt tput clear reset logger wall mail bat eza fzf locate "
    "dict look strings xxd od hexdump ping dig host nslookup ps top pgrep id who date cal sleep "
    "shellcheck shfmt compgen complete hash bind ulimit umask getopts trap rmdir"
)
"""Programs for which an argument such as `delete` is only text."""


def why_destructive(call: Invocation, *, is_known_runner: bool = False) -> str | None:
    """Return why this call needs a yes; None if it does not.

    An unknown program is judged by its first arguments, unless it is known to run other programs,
    which are assessed separately.
    """
    rule = RULES.get(call.name)
    if rule is not None:
        return rule(call)
    if call.name.startswith(("mkfs", "newfs", "mke2fs")):
        return "creates a file system, which erases the device"
    if call.name in READERS or is_known_runner:
        return None
    return _verb(call)


def _verb(call: Invocation) -> str | None:
    """Return a reason if a destructive verb is among the first arguments."""
    asked = [plain(text).lower() for text in call.operands()[:2]]
    verb = next((text for text in asked if _VERB.fullmatch(text)), None)
    verb = verb or next((option for option in call.options() if option in _FLAGS), None)
    return f"runs {display(call.name)} {verb}" if verb else None
