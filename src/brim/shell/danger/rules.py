"""Which programs destroy something, and when: a table, read by `why_destructive`.

A rule is a function from a call to the reason why it is destructive, or None. Most are made by the
few functions at the top; the table itself reads as a list.
"""

from __future__ import annotations

import re
from typing import Final

from brim.shell.danger import rules_files as files
from brim.shell.danger import rules_git as git
from brim.shell.danger.calls import Call
from brim.shell.danger.inline import why_code
from brim.shell.danger.marks import is_known, plain, shown
from brim.shell.danger.rule_kinds import (
    Rule,
    always,
    any_of,
    first,
    flag,
    listed,
    sub,
    verbs,
    words,
)

REMOVES: Final = "removes files and folders"
DISK: Final = "writes to a disk as a whole"
STOPS: Final = "stops processes"
POWER: Final = "shuts the machine down"
USERS: Final = "changes who may log in"
MOUNTS: Final = "changes what is mounted"
PACKAGES: Final = "removes packages"
FIREWALL: Final = "changes the firewall"
SERVICES: Final = "stops services"
CLOUD: Final = "removes something in the cloud"
LATER: Final = "runs something later, unseen"
PUBLISHES: Final = "publishes for everybody"

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


def _kill(call: Call) -> str | None:
    asks = call.texts[:1] in (["-l"], ["-L"], ["--list"], ["--table"], ["-0"])
    return None if asks or not call.words or call.value("-s", "-n") == "0" else STOPS


def _sql(call: Call) -> str | None:
    """Statements on the command line, piped in, or in a file that can be read."""
    said = [*call.texts, call.stdin or ""]
    said += [call.ground.text(name) or "\ue000" for name in call.values("-f", "--file")]
    if any(_SQL.search(plain(text)) for text in said):
        return "changes or removes data in a database"
    if not all(is_known(text) for text in said):
        return "runs statements that are only known at run time"
    return None


def _redis(call: Call) -> str | None:
    operands = call.operands("-h", "-p", "-a", "-n", "-u", "--user", "--pass", "-s", "-c")
    name = operands[0].lower() if operands else (call.stdin or "").lower().strip()
    found = any(word in name.split() for word in _REDIS) or not is_known(name)
    found = found or call.has("--eval", "--pipe")
    return "removes data in a database" if found else None


def _aws(call: Call) -> str | None:
    operands = [text for text in call.texts if not text.startswith("-")]
    if operands[:2] == ["s3", "cp"] and (why := files.copied_in(call)):
        return why
    if operands[:1] == ["s3"] and (
        operands[1:2] in (["rm"], ["rb"], ["mv"]) or call.has("--delete")
    ):
        return CLOUD
    return CLOUD if any(_TERMINATE.fullmatch(plain(text)) for text in operands[:4]) else None


def _cloud(call: Call) -> str | None:
    operands = [plain(text) for text in call.texts if not text.startswith("-")]
    gone = ("rm", "rb", "del")
    return CLOUD if any(_TERMINATE.fullmatch(t) or t in gone for t in operands[:6]) else None


def _heroku(call: Call) -> str | None:
    name = plain(call.texts[0]) if call.texts else ""
    gone = name.endswith((":destroy", ":delete", ":reset", ":remove", ":unset", ":rollback"))
    return CLOUD if gone or name in ("destroy", "restart", "ps:stop") else None


def _crontab(call: Call) -> str | None:
    if call.has("-r"):
        return "removes the table of timed jobs"
    reads = call.has("-l", "-e", "-V") or (not call.operands("-u") and call.stdin is None)
    return None if reads else "replaces the table of timed jobs"


def _init(call: Call) -> str | None:
    return POWER if call.texts[:1] in (["0"], ["6"], ["1"], ["s"], ["S"]) else None


def _ifs(call: Call) -> str | None:
    """A network interface taken down, or its addresses."""
    lost = any(text in ("down", "del", "delete", "flush") for text in call.texts)
    return "changes the network" if lost else None


def _service(call: Call) -> str | None:
    return SERVICES if "stop" in call.texts else None


def _history(call: Call) -> str | None:
    return "removes the shell's history" if call.has("-c", "-d", "-w") else None


def _mount(call: Call) -> str | None:
    return MOUNTS if call.operands() or call.has("-a") else None


def _passwd(call: Call) -> str | None:
    return None if call.has("-S", "--status") else USERS


def _sysctl(call: Call) -> str | None:
    sets = call.has("-w", "-p", "--write", "--load") or any("=" in text for text in call.texts)
    return "changes the running system" if sets else None


def _managed(call: Call) -> str | None:
    """`python manage.py flush` and its like."""
    operands = [plain(text) for text in call.operands()]
    scripts = ("manage.py", "artisan", "console", "rails", "rake")
    if operands and operands[0].rpartition("/")[2] in scripts:
        return next((f"asks for {o}" for o in operands[1:2] if _VERB.fullmatch(o)), None)
    return None


def _transfer(call: Call) -> str | None:
    said = " ".join([*call.texts, call.stdin or ""])
    found = re.search(r"\b(rm|del|delete|mdelete|rmdir|mirror)\b", plain(said))
    return "removes files on another machine" if found or not is_known(said) else None


def _socat(call: Call) -> str | None:
    runs = any(re.search(r"(?i)(exec|system|shell):", plain(text)) for text in call.texts)
    return "runs a program for others" if runs else None


def _gdb(call: Call) -> str | None:
    said = call.values("-ex", "--eval-command", "-iex")
    runs = any(re.match(r"\s*(shell|!|python|py|make|pipe|call)", plain(text)) for text in said)
    return "runs a command" if runs else None


def _make(call: Call) -> str | None:
    piped = call.value("-f", "--file", "--makefile") in ("-", "/dev/stdin")
    set_up = any(text.startswith(("SHELL=", "--eval", "-E", "MAKEFLAGS=")) for text in call.texts)
    return "runs rules that are only given here" if piped or set_up else _verb(call)


def _less(call: Call) -> str | None:
    runs = any(text.startswith("+") and "!" in text for text in call.texts)
    return "runs a command" if runs else None


def _fdisk(call: Call) -> str | None:
    return None if call.has("-l", "--list", "-x", "-s") or "print" in call.texts else DISK


_DOCKER: Final = sub(
    {
        "cp": files.copied_in, "rm": "removes containers", "rmi": "removes images", "kill": STOPS,
        "container": {"rm": "removes containers", "prune": "removes containers", "kill": STOPS},
        "image": {"rm": "removes images", "prune": "removes images", "remove": "removes images"},
        "volume": {"rm": "removes volumes", "prune": "removes volumes",
                   "remove": "removes volumes"},
        "network": {"rm": "removes networks", "prune": "removes networks",
                    "remove": "removes networks"},
        "system": {"prune": "removes whatever is not in use"},
        "builder": {"prune": "removes the build cache"},
        "buildx": {"prune": "removes the build cache", "rm": "removes a builder"},
        "context": {"rm": "removes a context"}, "secret": {"rm": "removes a secret"},
        "config": {"rm": "removes a config"}, "stack": {"rm": "removes a stack"},
        "service": {"rm": "removes a service"}, "node": {"rm": "removes a node"},
        "swarm": {"leave": "leaves the swarm"}, "plugin": {"rm": "removes a plugin"},
        "manifest": {"rm": "removes a manifest"}, "pod": {"rm": "removes a pod"},
        "machine": {"rm": "removes a machine", "reset": "removes all of it"},
        "compose": sub(
            {
                "down": flag("-v", "--volumes", "--rmi", why="removes volumes or images"),
                "rm": "removes containers", "kill": STOPS,
            },
            "-f", "--file", "-p", "--project-name", "--env-file", "--profile",
        ),
    },
    "-H", "--host", "-c", "--context", "--config", "-l", "--log-level",
)  # fmt: skip
_COMPOSE: Final = sub(
    {"down": flag("-v", "--volumes", "--rmi", why="removes volumes or images"),
     "rm": "removes containers", "kill": STOPS},
    "-f", "--file", "-p", "--project-name", "--env-file", "--profile",
)  # fmt: skip
_KUBECTL: Final = sub(
    {
        "delete": "removes things from the cluster", "drain": "empties a node",
        "replace": flag("--force", why="removes things and creates them anew"),
        "apply": flag("--prune", "--force", why="removes things from the cluster"),
        "scale": lambda call: STOPS if call.value("--replicas") == "0" else None,
        "rollout": {"undo": "takes a rollout back"},
        "cordon": "takes a node out of service",
    },
    "-n", "--namespace", "--context", "--kubeconfig", "-s", "--server", "--cluster", "--user",
)  # fmt: skip
_TERRAFORM: Final = any_of(
    sub(
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
_SYSTEMCTL: Final = sub(
    {
        **dict.fromkeys(
            ("stop", "disable", "mask", "kill", "isolate", "revert", "clean"), SERVICES),
        **dict.fromkeys(
            ("poweroff", "reboot", "halt", "kexec", "suspend", "hibernate", "emergency", "rescue",
             "default", "exit", "soft-reboot"), POWER),
    },
    "-H", "--host", "-M", "--machine", "-t", "--type", "-n", "--lines",
)  # fmt: skip

RULES: Final[dict[str, Rule]] = {
    **files.RULES,
    "git": git.rule,
    **words(always(DISK), "mkswap wipefs badblocks hdparm blkdiscard sgdisk sfdisk cryptsetup"),
    **words(_fdisk, "fdisk cfdisk parted gparted gdisk"),
    **words(always("removes volumes"), "lvremove vgremove pvremove lvreduce"),
    **words(verbs("destroy", "rollback", "labelclear", why="removes volumes"), "zfs zpool"),
    "btrfs": verbs("delete", why="removes volumes", depth=2),
    "mdadm": flag("--zero-superblock", "--stop", "-S", "--remove", "--fail", why=DISK),
    "diskutil": first("erase", "partition", "reformat", "delete", "zero", "secure", why=DISK),
    "kill": _kill,
    **words(always(STOPS), "killall pkill skill xkill killall5 taskkill"),
    "fuser": flag("-k", "--kill", why=STOPS),
    "tmux": first("kill-", why=STOPS),
    "screen": flag("quit", "kill", why=STOPS),
    "loginctl": first("kill-", "terminate-", why=STOPS, otherwise=_SYSTEMCTL),
    **words(always(POWER), "shutdown reboot halt poweroff"),
    **words(_init, "init telinit"),
    "systemctl": _SYSTEMCTL,
    "launchctl": verbs("unload", "remove", "bootout", "disable", "stop", "kill", why=SERVICES),
    **words(_service, "service rc-service invoke-rc.d initctl"),
    "supervisorctl": verbs("stop", "remove", "shutdown", why=SERVICES),
    "pm2": verbs("delete", "del", "kill", "stop", "flush", why=SERVICES),
    "crontab": _crontab,
    **words(always(LATER), "at batch"),
    "atrm": always("removes timed jobs"),
    **words(
        always(USERS),
        "userdel groupdel deluser delgroup usermod chpasswd vipw visudo gpasswd chage groupmod",
    ),
    "passwd": _passwd,
    **words(
        flag("-F", "--flush", "-X", "--delete-chain", "-D", "--delete", "-P", "--policy",
             why=FIREWALL),
        "iptables ip6tables ebtables arptables",
    ),
    "ufw": verbs("reset", "disable", "delete", why=FIREWALL),
    "nft": verbs("flush", "delete", "destroy", why=FIREWALL),
    "pfctl": flag("-F", "-d", why=FIREWALL),
    "firewall-cmd": flag("--remove-service", "--remove-port", "--panic-on", why=FIREWALL),
    **words(_ifs, "ip ifconfig nmcli route"),
    **words(always("changes the network"), "ifdown"),
    **words(_mount, "mount umount swapoff swapon losetup"),
    "sysctl": _sysctl,
    **words(always("changes the running system"), "modprobe rmmod insmod kexec setenforce"),
    **words(always("changes the boot of the machine"), "efibootmgr grub-install nvram bless"),
    **words(_DOCKER, "docker podman nerdctl"),
    **words(_COMPOSE, "docker-compose podman-compose"),
    **words(_KUBECTL, "kubectl oc k3s k"),
    "helm": verbs("uninstall", "delete", "del", "un", "rollback", why="removes a release"),
    **words(_TERRAFORM, "terraform tofu terragrunt"),
    "pulumi": verbs("destroy", "cancel", "rm", why="removes the infrastructure", depth=2),
    "cdk": verbs("destroy", why="removes the infrastructure"),
    "vagrant": verbs("destroy", "halt", why="removes machines"),
    "virsh": verbs("destroy", "undefine", "shutdown", "vol-delete", why="removes machines"),
    "aws": _aws,
    **words(_cloud, "gcloud az doctl ibmcloud oci linode-cli hcloud scw gsutil bq eksctl"),
    "heroku": _heroku,
    **words(verbs("rm", "rb", "mv", "del", "delete", "remove", why=CLOUD, depth=3),
            "gsutil s3cmd mc"),
    "rclone": verbs(
        "delete", "purge", "sync", "move", "deletefile", "rmdirs", "moveto", "cleanup", "bisync",
        why="removes or replaces files",
    ),
    "gh": any_of(verbs("delete", "archive", why="removes something on GitHub", depth=2),
                 files.request),
    "ssh-copy-id": always("lets a key log in"),
    "make": _make,
    "timeit": lambda call: next(filter(None, (why_code("python", t) for t in call.texts)), None),
    **words(_transfer, "sftp ftp lftp smbclient"),
    **words(flag("-e", "-c", "--exec", "--sh-exec", why="runs a program for others"), "nc ncat"),
    "socat": _socat,
    "gdb": _gdb,
    "bind": flag("-x", why="binds a command to a key"),
    **words(always(REMOVES), "zf_rm zf_unlink"),
    **words(_managed, "python python3 php ruby"),
    **words(_less, "less more"),
    **words(_NODE, "npm yarn pnpm bun"),
    "cargo": verbs("publish", "yank", why=PUBLISHES),
    "gem": verbs("push", "yank", why=PUBLISHES, otherwise=verbs("uninstall", why=PACKAGES)),
    "twine": verbs("upload", why=PUBLISHES),
    "poetry": verbs("publish", why=PUBLISHES, otherwise=verbs("remove", why=PACKAGES)),
    "uv": verbs("publish", why=PUBLISHES, otherwise=verbs("remove", "uninstall", why=PACKAGES,
                                                         depth=2)),
    **words(_PIP, "pip pip3 pipx pipenv easy_install"),
    **words(verbs("uninstall", "remove", "clean", why=PACKAGES), "conda mamba micromamba"),
    **words(_APT, "apt apt-get aptitude"),
    "dpkg": flag("-r", "-P", "--remove", "--purge", why=PACKAGES),
    "rpm": flag("-e", "--erase", why=PACKAGES),
    **words(_DNF, "yum dnf microdnf zypper"),
    "pacman": first("-R", "--remove", why=PACKAGES),
    "apk": verbs("del", why=PACKAGES),
    **words(_BREW, "brew port"),
    **words(verbs("remove", "purge", "uninstall", why=PACKAGES), "snap flatpak"),
    **words(always("removes a database"), "dropdb dropuser pg_dropcluster"),
    **words(_sql, "psql mysql mariadb sqlite3 sqlite duckdb clickhouse-client cqlsh sqlcmd mongo"
                  " mongosh isql sqlplus cockroach"),
    "mysqladmin": verbs("drop", "shutdown", "kill", why="removes a database", depth=4),
    **words(_redis, "redis-cli valkey-cli keydb-cli"),
    "pg_restore": flag("-c", "--clean", why="removes data in a database"),
    "mongorestore": flag("--drop", why="removes data in a database"),
    "history": _history,
    "fc": flag("-e", "-s", why="runs an earlier command again"),
    "logrotate": flag("-f", "--force", why="rotates logs away"),
    "journalctl": flag(
        "--vacuum-size", "--vacuum-time", "--vacuum-files", "--rotate", why="removes logs"
    ),
    "wsl": flag("--unregister", why="removes a system"),
    "tmutil": first("delete", "disable", why="removes backups"),
    "restic": verbs("forget", "prune", why="removes backups", depth=4),
    "borg": verbs("delete", "prune", "compact", why="removes backups", depth=2),
    "ansible": flag("-m", "-a", why="runs a command on other machines"),
    "security": first("delete", why="removes keys"),
    "gpg": flag(
        "--delete-keys", "--delete-secret-keys", "--delete-secret-and-public-key",
        why="removes keys",
    ),
    "setfacl": flag("-R", "-b", why="changes who may read what"),
    "del": always(REMOVES), "rd": always(REMOVES), "erase": always(REMOVES),
    "remove-item": always(REMOVES), "format": always(DISK), "clear-content": always(REMOVES),
    "diskpart": always(DISK), "srm": always(REMOVES), "wipe": always(REMOVES),
    "trash-empty": always(REMOVES), "rimraf": always(REMOVES), "del-cli": always(REMOVES),
    "zap": always(REMOVES), "bleachbit": always(REMOVES), "tmpreaper": always(REMOVES),
    "tmpwatch": always(REMOVES),
}  # fmt: skip
_VERB: Final = re.compile(
    r"(?:[\w-]*[:_-])?(?:delete|destroy|drop|purge|terminate|rm|remove|uninstall|wipe|erase|nuke"
    r"|del|rmdir|unlink|flush|flushall|truncate|reset|fresh|rollback|downgrade)(?:[:_-][\w-]*)?"
)
_FLAGS: Final = listed(
    "--delete --destroy --purge --wipe --erase --drop --force-reset --unregister --delete-all"
)
READERS: Final = listed(
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
"""Programs to which a word such as `delete` is only a word."""


def why_destructive(call: Call, *, is_known_runner: bool = False) -> str | None:
    """The reason why this call needs a yes; None if it does not.

    What a program is that nobody here knows is guessed from its first words, unless it is known to
    run others, which are judged by themselves.
    """
    rule = RULES.get(call.name)
    if rule is not None:
        return rule(call)
    if call.name.startswith(("mkfs", "newfs", "mke2fs")):
        return "makes a new file system, which removes all on it"
    if call.name in READERS or is_known_runner:
        return None
    return _verb(call)


def _verb(call: Call) -> str | None:
    """A word of destruction among the first that a program is given."""
    asked = [plain(text).lower() for text in call.operands()[:2]]
    verb = next((text for text in asked if _VERB.fullmatch(text)), None)
    verb = verb or next((option for option in call.options() if option in _FLAGS), None)
    return f"asks {shown(call.name)} for {verb}" if verb else None
