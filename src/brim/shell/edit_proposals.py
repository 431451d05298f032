"""Changes of files that a model proposes: shown as a diff, applied if the user agrees, undone."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

from rich.text import Text

from brim.errors import InputError
from brim.shell.edits import AppliedEdit, apply_replacements, find_replacements, write_files
from brim.shell.render.sanitize import sanitize
from brim.shell.state import Shell

SKIPPED: Final = "[brim] The user skipped the change of {files}."
APPLIED: Final = "[brim] Changed {files}."
UNDONE: Final = "[brim] The user undid the change of {files}."
FAILED: Final = "[brim] Nothing was changed: {why}"
_GUARDED: Final = frozenset((".git", ".envrc"))
"""What runs programs later, outside of a sandbox."""
_COLORS: Final = {"+": "green", "-": "red", "@": "cyan"}


def offer_edits(shell: Shell, reply: str, *, autonomous: bool = False) -> bool:
    """Offer the changes of files in a reply; return whether it has any."""
    changes = find_replacements(reply)
    if not changes:
        return False
    names = list(dict.fromkeys(change.file for change in changes))
    paths = {name: (shell.folder / Path(name).expanduser()).resolve() for name in names}
    try:
        before = {path: path.read_bytes() if path.exists() else None for path in paths.values()}
        after: dict[Path, bytes] = {}
        for name, path in paths.items():
            data = after.get(path, before[path]) or b""
            content = data.decode("utf-8", "surrogateescape")
            mine = [change for change in changes if change.file == name]
            after[path] = apply_replacements(content, mine).encode("utf-8", "surrogateescape")
            _show(shell, name, content, after[path].decode("utf-8", "replace"))
        answer = _confirm(shell, names, [*after], autonomous=autonomous)
        if answer:
            write_files(after)
    except (InputError, OSError) as error:
        shell.show_error(error)
        shell.conversation.add_output(FAILED.format(why=error))
        return True
    files = ", ".join(names)
    shell.record("edited", files=[str(path) for path in after], applied=answer)
    shell.conversation.add_output((APPLIED if answer else SKIPPED).format(files=files))
    if answer:
        shell.edits.append(AppliedEdit(len(shell.session), before, after))
        shell.screen.notice(f"changed {files}; :undo reverts it")
    return True


def _confirm(shell: Shell, names: list[str], paths: list[Path], *, autonomous: bool) -> bool:
    """Return whether to apply a change; a file outside of the project needs a typed yes."""
    root = (shell.project.root or shell.folder).resolve()
    is_guarded = any(
        not path.is_relative_to(root) or not _GUARDED.isdisjoint(path.relative_to(root).parts)
        for path in paths
    )
    is_allowed = shell.options.yes or (autonomous and shell.sandbox is not None)
    if is_allowed and not is_guarded and shell.project.root is not None:
        return True
    what = ", ".join(map(sanitize, names))
    question = f"change {what}? [y]es, [s]kip: "
    if is_guarded:
        question = f"outside of the project, or run by git. type yes to change {what}, or [s]kip: "
    answer = shell.screen.confirm(question, offered=("run", "skip"), is_destructive=is_guarded)
    if answer == "interrupt":
        raise KeyboardInterrupt
    return answer == "run"


def _show(shell: Shell, name: str, old: str, new: str) -> None:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, name, lineterm="")
    shell.screen.gap()
    for line in lines:
        shell.screen.show(Text(sanitize(line), _COLORS.get(line[:1], "dim")))


def undo_edit(shell: Shell) -> str | None:
    """Undo the last change of files if no exchange came after it; return what was done."""
    if not shell.edits or shell.edits[-1].turns != len(shell.session):
        return None
    edit = shell.edits[-1]
    changed = [p for p, data in edit.after.items() if not p.exists() or p.read_bytes() != data]
    if changed:
        raise InputError(f"{changed[0]} has changed since. Undo the change by hand.")
    write_files(edit.before)
    shell.edits.pop()
    files = ", ".join(path.name for path in edit.after)
    shell.conversation.add_output(UNDONE.format(files=files))
    return f"change undone: {files}"
