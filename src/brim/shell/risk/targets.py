"""What is lost when a file is written, by whatever means."""

from __future__ import annotations

import re
from typing import Final

from brim.shell.risk.ground import Ground, is_kernel, is_sink
from brim.shell.risk.marks import PIPE, is_known, plain, shown

_DOORS: Final = re.compile(
    r"(^|/)(\.ssh/(authorized_keys2?|config|rc)|etc/(passwd|shadow|group|gshadow|sudoers(\.d/.*)?"
    r"|crontab|cron\.[a-z]+/.*|ld\.so\.preload|fstab|hosts|rc\.local|pam\.d/.*|ssh/.*"
    r"|profile(\.d/.*)?|systemd/system/.*)|\.config/(autostart|systemd/user)/.*"
    r"|Library/LaunchAgents/.*)$|^/var/spool/cron|(^|/)\.git/hooks/"
)
"""Files by which others get in, or by which something runs unasked."""
_START: Final = re.compile(
    r"(^|/)\.(bashrc|zshrc|profile|bash_profile|bash_login|bash_logout|zprofile|zshenv|zlogin"
    r"|kshrc|cshrc|tcshrc|inputrc|xinitrc|bash_aliases|gitconfig|netrc|npmrc|pypirc)$"
    r"|(^|/)config\.fish$"
)


def is_start_file(word: str) -> bool:
    """Whether a shell runs this file when it starts."""
    name = plain(word)
    return bool(_START.search(name)) and not name.endswith(("config", "netrc", "npmrc", "pypirc"))


def why_written(word: str, ground: Ground, *, appends: bool = False) -> str | None:
    """Why writing to this file needs a yes; None if nothing is lost."""
    name = plain(word)
    if PIPE in word or is_sink(name):
        return None
    if is_kernel(name):
        return f"writes to the device {shown(word)}"
    if _DOORS.search(name):
        return f"changes {shown(word)}, which decides who gets in or what runs unasked"
    if appends:
        return None
    if _START.search(name):
        return f"replaces {shown(word)}"
    if not is_known(word):
        return "overwrites a file that is only known at run time"
    if not ground.holds(word):
        return None
    if ground.paths(word) is None:
        return f"may overwrite {shown(word)}, which cannot be looked at from here"
    return f"overwrites {shown(word)}"
