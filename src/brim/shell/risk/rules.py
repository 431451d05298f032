"""Which programs destroy something, and when: a table, read by `why_destructive`.

A rule is a function from a call to the reason why it is destructive, or None. Most are made by the
functions of `rule_kinds`; the tables read as lists.
"""

from __future__ import annotations

import re
from typing import Final

from brim.shell.risk import rules_files, rules_git, rules_machines, rules_services
from brim.shell.risk.calls import Call
from brim.shell.risk.inline import why_code
from brim.shell.risk.marks import is_known, plain, shown
from brim.shell.risk.rule_kinds import Rule, always, flag, listed, words
from brim.shell.risk.rules_files import REMOVES
from brim.shell.risk.rules_machines import DISK


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


RULES: Final[dict[str, Rule]] = {
    **rules_files.RULES,
    **rules_machines.RULES,
    **rules_services.RULES,
    "git": rules_git.rule,
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
