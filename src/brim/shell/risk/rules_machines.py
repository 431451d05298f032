"""What can be done to a machine: its disks, processes, services, users and network."""

from __future__ import annotations

from typing import Final

from brim.shell.risk.calls import Call
from brim.shell.risk.rule_kinds import Rule, always, first, flag, sub, verbs, words

DISK: Final = "writes to a disk as a whole"
STOPS: Final = "stops processes"
POWER: Final = "shuts the machine down"
USERS: Final = "changes who may log in"
MOUNTS: Final = "changes what is mounted"
FIREWALL: Final = "changes the firewall"
SERVICES: Final = "stops services"
LATER: Final = "runs something later, unseen"


def _kill(call: Call) -> str | None:
    asks = call.texts[:1] in (["-l"], ["-L"], ["--list"], ["--table"], ["-0"])
    return None if asks or not call.words or call.value("-s", "-n") == "0" else STOPS


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


def _fdisk(call: Call) -> str | None:
    return None if call.has("-l", "--list", "-x", "-s") or "print" in call.texts else DISK


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
    "ssh-copy-id": always("lets a key log in"),
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
    "history": _history,
    "fc": flag("-e", "-s", why="runs an earlier command again"),
    "logrotate": flag("-f", "--force", why="rotates logs away"),
    "journalctl": flag(
        "--vacuum-size", "--vacuum-time", "--vacuum-files", "--rotate", why="removes logs"
    ),
    "setfacl": flag("-R", "-b", why="changes who may read what"),
}  # fmt: skip
