"""Rules for programs that change files, and for git."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from typing import Final

from brim.shell.risk.file_view import why_overwritten
from brim.shell.risk.invocation import (
    Invocation,
    Rule,
    always,
    flag,
    for_programs,
    subcommands,
    verbs,
)
from brim.shell.risk.syntax import UNKNOWN, display, is_known, is_pattern, plain

REMOVES: Final = "removes files and folders"
_SYSTEM: Final = ("/etc", "/usr", "/bin", "/boot", "/lib", "/sbin", "/dev", "/root")
_NO_ACCESS: Final = re.compile(r"0+|[ugoa]*-[rwxX]*[rw][rwx]*|[ugoa]*=")
_SED_WRITES: Final = re.compile(
    r"(?:^|[;{}\n])\s*(?:[\d,$!~+]+|/[^/]*/)?\s*(?:e(?:\s|$)|[wW]\s+(?!/dev/std))"
    r"|s([^\w\s\\])(?:\\.|(?!\1).)*\1(?:\\.|(?!\1).)*\1[gpiIm\d]*(?:e|w\s*(?!/dev/std))"
)
_COPIES: Final = ("-t", "--target-directory", "-S", "--suffix", "-m", "--mode", "-o", "-g")


def _rm(call: Invocation) -> str | None:
    if call.texts in (["--help"], ["--version"]):
        return None
    return "; ".join([REMOVES, *dict.fromkeys(_surprises(call))])


def _surprises(call: Invocation) -> Iterator[str]:
    """Yield arguments that cover more than they seem to."""
    for word in call.words:
        text = display(word.text)
        if word.empties and not word.text.startswith("-"):
            yield f"{word.empties[0]} is empty, so this is {text or 'nothing'}"
        elif is_pattern(word.text) and call.files.is_wide(word.text):
            yield f"{text} is everything in {_here(call, text)}"
        elif not word.text.startswith("-") and call.files.is_wide(word.text):
            yield f"{text} is a whole tree"
    if call.lost:
        yield f"{call.lost} is empty, so cd went to the home folder"


def _here(call: Invocation, text: str) -> str:
    folder = text.rpartition("/")[0]
    if text.startswith("/"):
        return folder or "/"
    return os.path.normpath(call.files.folders[0] / folder) if call.files.folders else "the folder"


def _dd(call: Invocation) -> str | None:
    outputs = [text[3:] for text in call.texts if text.startswith("of=")]
    unknown = any(text.startswith(("\ue000", "\ue001")) for text in call.texts)
    harmless = all(plain(out) in ("/dev/null", "/dev/stdout") for out in outputs) and not unknown
    return None if harmless else "overwrites the output file"


def _copy(call: Invocation) -> str | None:
    """mv, cp, install and ln: existing files that they overwrite."""
    if call.name == "install" and call.has("-d"):
        return None
    sources, target = _arguments(call)
    if target is None:
        return None
    if call.name == "mv":
        if plain(target).startswith("/dev/"):
            return f"moves files into {display(target)}, where they cannot be recovered"
        whole = [s for s in sources if not is_pattern(s) and is_known(s) and call.files.is_wide(s)]
        if whole:
            return f"moves {display(whole[0])} away"
    if call.name == "ln" and not call.has("-f", "--force"):
        return None
    if _is_careful(call):
        return None
    places = _places(call, sources, target)
    return next((why for place in places if (why := why_overwritten(place, call.files))), None)


def _is_careful(call: Invocation) -> bool:
    """Return whether existing files are safe: `-n`, `-i` at a terminal, `-b`."""
    keeps = not any(option in ("--backup=none", "--backup=off") for option in call.options())
    if keeps and call.is_guarded("b", "--backup", others="rRavfuLPdpsT"):
        return True
    if call.name in ("ln", "install") or call.has("-f", "--force"):
        return False
    if call.is_guarded("n", "--no-clobber", others="rRavuLPdpsT"):
        return True
    asks = call.is_guarded("i", "--interactive", others="rRavuLPdpsT")
    return asks and call.stdin is None


def _arguments(call: Invocation) -> tuple[list[str], str | None]:
    operands = [name for word in call.operands(*_COPIES) for name in _expand_pattern(call, word)]
    folder = call.value("-t", "--target-directory")
    if folder is not None:
        return operands, folder + "/"
    if len(operands) == 1 and not is_known(operands[0]):
        return [UNKNOWN], UNKNOWN
    if len(operands) < 2:
        return operands, "." if call.name == "ln" and operands else None
    return operands[:-1], operands[-1]


def _expand_pattern(call: Invocation, word: str) -> tuple[str, ...]:
    """Return the files that match a pattern, if they are visible."""
    if not is_pattern(word) or call.files.paths(word) is None:
        return (word,)
    return call.files.matches(word) or (word,)


def _places(call: Invocation, sources: list[str], target: str) -> list[str]:
    """Return the paths that would be written."""
    into = not call.has("-T", "--no-target-directory")
    if not (into and (target.endswith("/") or call.files.is_folder(target))):
        return [target]
    places = []
    for source in sources:
        names: tuple[str, ...] = (source,)
        if is_pattern(source):
            seen = call.files.paths(source) is not None
            names = call.files.matches(source) if seen else (UNKNOWN,)
        places += [_inside(call, target, name) for name in names]
    return [place for place in places if place]


def _inside(call: Invocation, folder: str, source: str) -> str:
    name = plain(source).rstrip("/").rpartition("/")[2]
    if not is_known(name):
        return UNKNOWN if call.files.exists(folder) else ""
    if name in ("", ".", ".."):
        taken = call.files.matches(folder.rstrip("/") + "/\ue002")
        return folder.rstrip("/") + "/" + taken[0].rpartition("/")[2] if taken else ""
    return folder.rstrip("/") + "/" + name


def arrivals(call: Invocation) -> list[tuple[str, str]]:
    """Return the new name of each file that is moved, linked or copied, with its old name."""
    sources, target = _arguments(call)
    if target is None:
        return []
    if target.endswith("/") or call.files.is_folder(target):
        return [(_inside(call, target, source), source) for source in sources]
    return [(target, source) for source in sources]


def downloads(call: Invocation) -> list[str]:
    """Return the names of the files that a download writes."""
    flags = ("-o", "--output") if call.name == "curl" else ("-O", "--output-document")
    names = call.values(*flags)
    urls = [plain(text) for text in call.texts if "://" in text]
    return names + [url.rstrip("/").rpartition("/")[2].partition("?")[0] for url in urls]


def _find(call: Invocation) -> str | None:
    if "-delete" in call.texts:
        return "removes the files that it finds"
    places = call.values("-fprint", "-fprint0", "-fls", "-fprintf")
    return next((why for place in places if (why := why_overwritten(place, call.files))), None)


def _tee(call: Invocation) -> str | None:
    appends = call.has("-a", "--append")
    whys = (why_overwritten(name, call.files, appends=appends) for name in call.operands())
    return next((why for why in whys if why), None)


def _sed_rule(call: Invocation) -> str | None:
    scripts = call.values("-e", "--expression") or call.operands("-l", "-f", "--file")[:1]
    if any(_SED_WRITES.search(plain(script)) for script in scripts):
        return "its script runs commands or writes files"
    places = [o for o in call.options() if _edits_in_place(o)]
    named = call.operands("-e", "-f", "-l")
    kept = [suffix for option in places if (suffix := _copy_suffix(option))]
    if not places or (kept and not any(call.files.exists(name + kept[0]) for name in named)):
        return None
    edited = [name for name in named if call.files.exists(name)]
    return f"edits {display(edited[-1])} in place" if edited else None


def _edits_in_place(option: str) -> bool:
    if option.startswith("--"):
        return option.startswith("--i")
    return "i" in option.partition("e")[0].partition("f")[0] or "I" in option[:3]


def _copy_suffix(option: str) -> str:
    """Return the suffix of the backup copy; '' if none is kept."""
    if option.startswith("--"):
        return option.partition("=")[2]
    match = re.fullmatch(r"-[nErsuz]*i([.~_][\w.~]+)", option)
    return match[1] if match else ""


def _chmod(call: Invocation) -> str | None:
    operands = call.operands("--reference")
    deep = call.has("-R", "--recursive")
    if call.name == "chmod":
        mode = next((t for t in call.texts if re.fullmatch(r"-[rwxXst]+", t)), None)
        mode, targets = (
            (mode, operands) if mode else (operands[0] if operands else "", operands[1:])
        )
        if _NO_ACCESS.fullmatch(plain(mode)):
            return "takes away the right to read or write"
    else:
        targets = operands if call.has("--reference") else operands[1:]
    wide = [t for t in targets if _is_system(call, t, deep=deep)]
    return f"changes the rights of {display(wide[0])}" + (" and all in it" * deep) if wide else None


def _is_system(call: Invocation, target: str, *, deep: bool) -> bool:
    text = os.path.normpath(plain(target) or ".")
    if deep:
        inside = text.startswith(tuple(name + "/" for name in _SYSTEM))
        return inside or text in _SYSTEM or call.files.is_wide(target)
    return text == "/" or text in _SYSTEM or text.startswith(("/bin/", "/etc/", "/usr/bin/"))


def _rsync(call: Invocation) -> str | None:
    gone = call.has("--remove-source-files", "--delete", "--del", "--delete-excluded")
    gone = gone or any(option.startswith("--del") for option in call.options())
    return "removes files that the other side does not have" if gone else None


def _output(*flags: str, also: Rule | None = None) -> Rule:
    """Return a rule: overwrites the file that an option names."""

    def rule(call: Invocation) -> str | None:
        names = [value for value in call.values(*flags) if value != "-"]
        why = next((why for name in names if (why := why_overwritten(name, call.files))), None)
        return why or (also(call) if also else None)

    return rule


def request(call: Invocation) -> str | None:
    """An HTTP request that deletes something on a server."""
    methods = [*call.values("-X", "--request", "--method"), *call.operands()[:1]]
    deletes = any(plain(method).upper() == "DELETE" for method in methods)
    return "asks a server to delete something" if deletes else None


def _tar(call: Invocation) -> str | None:
    texts = [plain(text) for text in call.texts]
    letters = texts[0] if texts and not texts[0].startswith("-") else ""
    if call.has(
        "--remove-files", "--overwrite", "--recursive-unlink", "--unlink-first", "--delete"
    ):
        return REMOVES
    creates = "c" in letters or call.has("-c", "--create")
    if not creates or any(t.startswith("--ch") for t in texts):
        return None
    named = next(iter(call.texts[1:2]), None) if letters else call.value("-f", "--file")
    return why_overwritten(named, call.files) if named and named != "-" else None


def _scp(call: Invocation) -> str | None:
    *sources, target = call.operands("-P", "-i", "-o", "-F", "-l", "-c", "-J", "-S") or [""]
    if not sources or ":" in target:
        return None
    names = [plain(source).rpartition(":")[2] for source in sources]
    whys = (why_overwritten(place, call.files) for place in _places(call, names, target))
    return next((why for why in whys if why), None)


def copied_in(call: Invocation) -> str | None:
    """A copy from another machine (`host:path`) to the last argument."""
    target = (call.operands() or [":"])[-1]
    if ":" in target or call.files.is_folder(target):
        return None
    return why_overwritten(target, call.files)


def _compiler(call: Invocation) -> str | None:
    named = call.value("-o")
    is_source = named is not None and plain(named).endswith((".c", ".cc", ".cpp", ".h", ".hpp"))
    return why_overwritten(named, call.files) if named and is_source else None


def _remote_name(call: Invocation) -> str | None:
    """`curl -O`, which takes the file name from the URL."""
    if not call.has("-O", "--remote-name", "--remote-name-all"):
        return request(call)
    names = [name for name in downloads(call) if "://" not in name and name]
    whys = (why_overwritten(name, call.files) for name in names)
    return next((why for why in whys if why), None) or request(call)


def _yq(call: Invocation) -> str | None:
    return "edits files in place" if call.has("-i", "--inplace", "--in-place") else None


def _uniq(call: Invocation) -> str | None:
    outputs = call.operands("-f", "-s", "-w")[1:2]
    return why_overwritten(outputs[0], call.files) if outputs else None


def _ffmpeg(call: Invocation) -> str | None:
    if not call.has("-y") or not call.words:
        return None
    return why_overwritten(call.texts[-1], call.files)


def _rename(call: Invocation) -> str | None:
    return None if call.is_guarded("n", "--no-act", "--nono", others="v") else "renames files"


def _truncate(call: Invocation) -> str | None:
    if call.value("-s", "--size") in (None, "+0"):
        return "cuts files short"
    made = [name for name in call.operands("-s", "--size", "-r") if call.files.exists(name)]
    return f"cuts {display(made[0])} short" if made else None


FILE_RULES: Final[dict[str, Rule]] = {
    "rm": _rm,
    **for_programs(always(REMOVES), "unlink shred"),
    "truncate": _truncate,
    **for_programs(_dd, "dd dcfldd ddrescue"),
    **for_programs(_copy, "mv cp install ln gmv gcp"),
    **for_programs(_find, "find gfind"),
    "tee": _tee,
    "sponge": _tee,
    **for_programs(_sed_rule, "sed gsed"),
    **for_programs(_chmod, "chmod chown chgrp"),
    "chattr": flag("-R", "+i", "-i", why="locks files"),
    "rsync": _rsync,
    "curl": _output("-o", "--output", also=_remote_name),
    "wget": _output("-O", "--output-document", also=request),
    **for_programs(request, "http https xh"),
    "sort": _output("-o", "--output"),
    **for_programs(_tar, "tar bsdtar gtar"),
    "unzip": flag("-o", why="overwrites files"),
    "7z": flag("-y", "-aoa", "-sdel", why="overwrites or removes files"),
    "zip": flag("-m", "-d", "--move", "--delete", why="removes files"),
    "scp": _scp,
    "uniq": _uniq,
    "yq": _yq,
    "pandoc": _output("-o", "--output"),
    "openssl": _output("-out"),
    **for_programs(_compiler, "gcc g++ cc c++ clang clang++"),
    "fallocate": flag("-p", "-z", "-c", "--punch-hole", "--zero-range", why="cuts files short"),
    "gio": flag("--empty", "remove", why="removes files"),
    **for_programs(
        flag("-f", "--force", why="overwrites files"), "gunzip bzip2 bunzip2 xz unxz zstd"
    ),
    "gzip": flag("-f", "--force", why="overwrites files"),
    "ffmpeg": _ffmpeg,
    **for_programs(_rename, "rename prename"),
    **for_programs(always("edits a file"), "ed ex"),
    "patch": flag("-R", "--reverse", why="takes a change back"),
    **for_programs(always("empties the trash"), "trash-rm gio-trash-empty"),
}


CHANGES: Final = "throws away changes that are not committed"
COMMITS: Final = "makes commits unreachable"
REMOTE: Final = "overwrites or removes what was pushed"
HISTORY: Final = "rewrites the whole history"
VALUED: Final = (
    "-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--super-prefix",
    "--config-env",
)  # fmt: skip


def _checkout(call: Invocation) -> str | None:
    """Switching branches is harmless; paths and force are not."""
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


def _is_path(call: Invocation, operands: list[str]) -> bool:
    return any(is_known(o) and not call.files.is_remote and call.files.exists(o) for o in operands)


def _switch(call: Invocation) -> str | None:
    if call.has("-f", "--force", "--discard-changes", "-m", "--merge"):
        return CHANGES
    return COMMITS if call.has("-C", "--force-create") else None


def _restore(call: Invocation) -> str | None:
    staged_only = call.has("--staged", "-S") and not call.has("--worktree", "-W")
    return None if staged_only else CHANGES


def _reset(call: Invocation) -> str | None:
    return CHANGES if call.has("--hard", "--merge", "--keep") else None


def _clean(call: Invocation) -> str | None:
    if call.is_guarded("n", "--dry-run", others="dfxXq"):
        return None
    return "removes files that git does not know"


def _push(call: Invocation) -> str | None:
    forced = call.has(
        "-f", "--force", "--force-with-lease", "--force-if-includes", "--delete", "-d", "--mirror",
        "--prune",
    )  # fmt: skip
    refs = call.operands("-o", "--push-option", "--repo", "--receive-pack")
    return REMOTE if forced or any(ref.startswith(("+", ":")) for ref in refs) else None


def _branch(call: Invocation) -> str | None:
    if call.has("-D", "-M", "-C"):
        return COMMITS
    moved = call.has("-f", "--force") and not call.has("--format")
    return COMMITS if moved or (call.has("-d", "--delete") and call.has("-f")) else None


def _git_rm(call: Invocation) -> str | None:
    kept = call.is_guarded("n", "--cached", "--dry-run", others="rfq")
    return None if kept else "removes files"


def _gc(call: Invocation) -> str | None:
    return COMMITS if call.has("--prune") else None


def _tag(call: Invocation) -> str | None:
    return "removes or moves a tag" if call.has("-d", "--delete", "-f", "--force") else None


def _config(call: Invocation) -> str | None:
    if call.has("--unset", "--unset-all", "--remove-section"):
        return "removes settings"
    runs = any(text.startswith("!") for text in call.texts)
    return "sets up a command that git runs later" if runs else None


_rule: Final[Rule] = subcommands(
    {
        "reset": _reset, "clean": _clean, "checkout": _checkout, "switch": _switch,
        "restore": _restore, "push": _push, "branch": _branch, "rm": _git_rm, "gc": _gc,
        "tag": _tag,
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


def git_rule(call: Invocation) -> str | None:
    return _rule(call)
