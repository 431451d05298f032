"""What git can destroy: work that is not committed, branches, and what others have pushed."""

from __future__ import annotations

from typing import Final

from brim.shell.risk.calls import Call
from brim.shell.risk.marks import is_known
from brim.shell.risk.rule_kinds import Rule, always, flag, sub, verbs

CHANGES: Final = "throws away changes that are not committed"
COMMITS: Final = "makes commits unreachable"
REMOTE: Final = "overwrites or removes what was pushed"
HISTORY: Final = "rewrites the whole history"
VALUED: Final = (
    "-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--super-prefix",
    "--config-env",
)  # fmt: skip


def _checkout(call: Call) -> str | None:
    """Switching is harmless; paths and force are not."""
    if call.has("-f", "--force", "-p", "--patch", "--ours", "--theirs", "-m", "--merge"):
        return CHANGES
    if "--" in call.texts:
        return CHANGES if call.texts[-1] != "--" else None
    if any(text.startswith("--pathspec-f") for text in call.texts):
        return CHANGES
    if call.has("-B"):
        return COMMITS
    if call.has("-b", "--orphan", "-t", "--track"):
        return None
    operands = call.operands()
    here = [o for o in operands if o in (".", ":/", ":") or o.startswith((":", "./", "../"))]
    return CHANGES if here or _is_path(call, operands) or len(operands) > 1 else None


def _is_path(call: Call, operands: list[str]) -> bool:
    return any(
        is_known(o) and not call.ground.is_remote and call.ground.exists(o) for o in operands
    )


def _switch(call: Call) -> str | None:
    if call.has("-f", "--force", "--discard-changes", "-m", "--merge"):
        return CHANGES
    return COMMITS if call.has("-C", "--force-create") else None


def _restore(call: Call) -> str | None:
    staged_only = call.has("--staged", "-S") and not call.has("--worktree", "-W")
    return None if staged_only else CHANGES


def _reset(call: Call) -> str | None:
    return CHANGES if call.has("--hard", "--merge", "--keep") else None


def _clean(call: Call) -> str | None:
    if call.is_guarded("n", "--dry-run", others="dfxXq"):
        return None
    return "removes files that git does not know"


def _push(call: Call) -> str | None:
    forced = call.has(
        "-f", "--force", "--force-with-lease", "--force-if-includes", "--delete", "-d", "--mirror",
        "--prune",
    )  # fmt: skip
    refs = call.operands("-o", "--push-option", "--repo", "--receive-pack")
    return REMOTE if forced or any(ref.startswith(("+", ":")) for ref in refs) else None


def _branch(call: Call) -> str | None:
    if call.has("-D", "-M", "-C"):
        return COMMITS
    moved = call.has("-f", "--force") and not call.has("--format")
    return COMMITS if moved or (call.has("-d", "--delete") and call.has("-f")) else None


def _rm(call: Call) -> str | None:
    kept = call.is_guarded("n", "--cached", "--dry-run", others="rfq")
    return None if kept else "removes files"


def _gc(call: Call) -> str | None:
    return COMMITS if call.has("--prune") else None


def _tag(call: Call) -> str | None:
    return "removes or moves a tag" if call.has("-d", "--delete", "-f", "--force") else None


def _config(call: Call) -> str | None:
    if call.has("--unset", "--unset-all", "--remove-section"):
        return "removes settings"
    runs = any(text.startswith("!") for text in call.texts)
    return "sets up a command that git runs later" if runs else None


_rule: Final[Rule] = sub(
    {
        "reset": _reset, "clean": _clean, "checkout": _checkout, "switch": _switch,
        "restore": _restore, "push": _push, "branch": _branch, "rm": _rm, "gc": _gc, "tag": _tag,
        "config": _config,
        "co": _checkout,
        "stash": {"drop": "removes stashed changes", "clear": "removes stashed changes"},
        "reflog": {"expire": COMMITS, "delete": COMMITS},
        "filter-branch": always(HISTORY), "filter-repo": always(HISTORY),
        "worktree": {"remove": "removes a working tree", "prune": "removes working trees"},
        "update-ref": flag("-d", "--stdin", why=COMMITS),
        "prune": always(COMMITS),
        "submodule": verbs("deinit", why=CHANGES),
        "remote": verbs("remove", "rm", "prune", why="removes a remote"),
        "read-tree": flag("--reset", "-u", why=CHANGES),
        "checkout-index": flag("-f", "--force", "-a", why=CHANGES),
        "replace": always(HISTORY),
        "notes": verbs("remove", "prune", why="removes notes"),
        "lfs": verbs("prune", why="removes files"),
        "send-email": always("sends mail"),
        "mv": flag("-f", "--force", why="overwrites files"),
    },
    *VALUED,
)  # fmt: skip


def rule(call: Call) -> str | None:
    return _rule(call)
