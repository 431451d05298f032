"""The programs that remove, overwrite or lock away files."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from typing import Final

from brim.shell.risk.calls import Call
from brim.shell.risk.marks import UNKNOWN, is_known, is_pattern, plain, shown
from brim.shell.risk.rule_kinds import Rule, always, flag, words
from brim.shell.risk.targets import why_written

REMOVES: Final = "removes files and folders"
_SYSTEM: Final = ("/etc", "/usr", "/bin", "/boot", "/lib", "/sbin", "/dev", "/root")
_NO_ACCESS: Final = re.compile(r"0+|[ugoa]*-[rwxX]*[rw][rwx]*|[ugoa]*=")
_SED_WRITES: Final = re.compile(
    r"(?:^|[;{}\n])\s*(?:[\d,$!~+]+|/[^/]*/)?\s*(?:e(?:\s|$)|[wW]\s+(?!/dev/std))"
    r"|s([^\w\s\\])(?:\\.|(?!\1).)*\1(?:\\.|(?!\1).)*\1[gpiIm\d]*(?:e|w\s*(?!/dev/std))"
)
_COPIES: Final = ("-t", "--target-directory", "-S", "--suffix", "-m", "--mode", "-o", "-g")


def _rm(call: Call) -> str | None:
    if call.texts in (["--help"], ["--version"]):
        return None
    return "; ".join([REMOVES, *dict.fromkeys(_widened(call))])


def _widened(call: Call) -> Iterator[str]:
    """Where a word means more than it says."""
    for word in call.words:
        text = shown(word.text)
        if word.empties and not word.text.startswith("-"):
            yield f"{word.empties[0]} is empty, so this is {text or 'nothing'}"
        elif is_pattern(word.text) and call.ground.is_wide(word.text):
            yield f"{text} is everything in {_here(call, text)}"
        elif not word.text.startswith("-") and call.ground.is_wide(word.text):
            yield f"{text} is a whole tree"
    if call.lost:
        yield f"{call.lost} is empty, so cd went to the home folder"


def _here(call: Call, text: str) -> str:
    folder = text.rpartition("/")[0]
    if text.startswith("/"):
        return folder or "/"
    return (
        os.path.normpath(call.ground.folders[0] / folder) if call.ground.folders else "the folder"
    )


def _dd(call: Call) -> str | None:
    outputs = [text[3:] for text in call.texts if text.startswith("of=")]
    unknown = any(text.startswith(("\ue000", "\ue001")) for text in call.texts)
    harmless = all(plain(out) in ("/dev/null", "/dev/stdout") for out in outputs) and not unknown
    return None if harmless else "writes over whatever of= names"


def _copy(call: Call) -> str | None:
    """mv, cp, install and ln: what they put over something that is there."""
    if call.name == "install" and call.has("-d"):
        return None
    sources, target = _arguments(call)
    if target is None:
        return None
    if call.name == "mv":
        if plain(target).startswith("/dev/"):
            return f"moves files into {shown(target)}, where they are lost"
        whole = [s for s in sources if not is_pattern(s) and is_known(s) and call.ground.is_wide(s)]
        if whole:
            return f"moves {shown(whole[0])} away"
    if call.name == "ln" and not call.has("-f", "--force"):
        return None
    if _is_careful(call):
        return None
    places = _places(call, sources, target)
    return next((why for place in places if (why := why_written(place, call.ground))), None)


def _is_careful(call: Call) -> bool:
    """Whether nothing is overwritten unasked: `-n`, `-i` at a terminal, `-b`."""
    keeps = not any(option in ("--backup=none", "--backup=off") for option in call.options())
    if keeps and call.is_guarded("b", "--backup", others="rRavfuLPdpsT"):
        return True
    if call.name in ("ln", "install") or call.has("-f", "--force"):
        return False
    if call.is_guarded("n", "--no-clobber", others="rRavuLPdpsT"):
        return True
    asks = call.is_guarded("i", "--interactive", others="rRavuLPdpsT")
    return asks and call.stdin is None


def _arguments(call: Call) -> tuple[list[str], str | None]:
    operands = [name for word in call.operands(*_COPIES) for name in _matched(call, word)]
    folder = call.value("-t", "--target-directory")
    if folder is not None:
        return operands, folder + "/"
    if len(operands) == 1 and not is_known(operands[0]):
        return [UNKNOWN], UNKNOWN
    if len(operands) < 2:
        return operands, "." if call.name == "ln" and operands else None
    return operands[:-1], operands[-1]


def _matched(call: Call, word: str) -> tuple[str, ...]:
    """The files that a pattern stands for, if they can be looked at."""
    if not is_pattern(word) or call.ground.paths(word) is None:
        return (word,)
    return call.ground.matches(word) or (word,)


def _places(call: Call, sources: list[str], target: str) -> list[str]:
    """The names that would be written."""
    into = not call.has("-T", "--no-target-directory")
    if not (into and (target.endswith("/") or call.ground.is_folder(target))):
        return [target]
    places = []
    for source in sources:
        names: tuple[str, ...] = (source,)
        if is_pattern(source):
            seen = call.ground.paths(source) is not None
            names = call.ground.matches(source) if seen else (UNKNOWN,)
        places += [_inside(call, target, name) for name in names]
    return [place for place in places if place]


def _inside(call: Call, folder: str, source: str) -> str:
    name = plain(source).rstrip("/").rpartition("/")[2]
    if not is_known(name):
        return UNKNOWN if call.ground.exists(folder) else ""
    if name in ("", ".", ".."):
        taken = call.ground.matches(folder.rstrip("/") + "/\ue002")
        return folder.rstrip("/") + "/" + taken[0].rpartition("/")[2] if taken else ""
    return folder.rstrip("/") + "/" + name


def arrivals(call: Call) -> list[tuple[str, str]]:
    """The new names of things that are moved, linked or copied, each with the old name."""
    sources, target = _arguments(call)
    if target is None:
        return []
    if target.endswith("/") or call.ground.is_folder(target):
        return [(_inside(call, target, source), source) for source in sources]
    return [(target, source) for source in sources]


def downloads(call: Call) -> list[str]:
    """The names under which something from the network is stored."""
    flags = ("-o", "--output") if call.name == "curl" else ("-O", "--output-document")
    names = call.values(*flags)
    urls = [plain(text) for text in call.texts if "://" in text]
    return names + [url.rstrip("/").rpartition("/")[2].partition("?")[0] for url in urls]


def _find(call: Call) -> str | None:
    if "-delete" in call.texts:
        return "removes the files that it finds"
    places = call.values("-fprint", "-fprint0", "-fls", "-fprintf")
    return next((why for place in places if (why := why_written(place, call.ground))), None)


def _tee(call: Call) -> str | None:
    appends = call.has("-a", "--append")
    whys = (why_written(name, call.ground, appends=appends) for name in call.operands())
    return next((why for why in whys if why), None)


def _sed(call: Call) -> str | None:
    scripts = call.values("-e", "--expression") or call.operands("-l", "-f", "--file")[:1]
    if any(_SED_WRITES.search(plain(script)) for script in scripts):
        return "its script runs commands or writes files"
    places = [o for o in call.options() if _edits_in_place(o)]
    named = call.operands("-e", "-f", "-l")
    kept = [suffix for option in places if (suffix := _copy_suffix(option))]
    if not places or (kept and not any(call.ground.exists(name + kept[0]) for name in named)):
        return None
    edited = [name for name in named if call.ground.exists(name)]
    return f"edits {shown(edited[-1])} in place" if edited else None


def _edits_in_place(option: str) -> bool:
    if option.startswith("--"):
        return option.startswith("--i")
    return "i" in option.partition("e")[0].partition("f")[0] or "I" in option[:3]


def _copy_suffix(option: str) -> str:
    """What is put behind the name of the copy that is kept; nothing if none is."""
    if option.startswith("--"):
        return option.partition("=")[2]
    match = re.fullmatch(r"-[nErsuz]*i([.~_][\w.~]+)", option)
    return match[1] if match else ""


def _chmod(call: Call) -> str | None:
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
    return f"changes the rights of {shown(wide[0])}" + (" and all in it" * deep) if wide else None


def _is_system(call: Call, target: str, *, deep: bool) -> bool:
    text = os.path.normpath(plain(target) or ".")
    if deep:
        inside = text.startswith(tuple(name + "/" for name in _SYSTEM))
        return inside or text in _SYSTEM or call.ground.is_wide(target)
    return text == "/" or text in _SYSTEM or text.startswith(("/bin/", "/etc/", "/usr/bin/"))


def _rsync(call: Call) -> str | None:
    gone = call.has("--remove-source-files", "--delete", "--del", "--delete-excluded")
    gone = gone or any(option.startswith("--del") for option in call.options())
    return "removes files that the other side does not have" if gone else None


def _output(*flags: str, also: Rule | None = None) -> Rule:
    """A program that overwrites the file that an option names."""

    def rule(call: Call) -> str | None:
        names = [value for value in call.values(*flags) if value != "-"]
        why = next((why for name in names if (why := why_written(name, call.ground))), None)
        return why or (also(call) if also else None)

    return rule


def request(call: Call) -> str | None:
    """A request by which a server deletes something."""
    methods = [*call.values("-X", "--request", "--method"), *call.operands()[:1]]
    deletes = any(plain(method).upper() == "DELETE" for method in methods)
    return "asks a server to delete something" if deletes else None


def _tar(call: Call) -> str | None:
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
    return why_written(named, call.ground) if named and named != "-" else None


def _scp(call: Call) -> str | None:
    *sources, target = call.operands("-P", "-i", "-o", "-F", "-l", "-c", "-J", "-S") or [""]
    if not sources or ":" in target:
        return None
    names = [plain(source).rpartition(":")[2] for source in sources]
    whys = (why_written(place, call.ground) for place in _places(call, names, target))
    return next((why for why in whys if why), None)


def copied_in(call: Call) -> str | None:
    """The last word is where something from elsewhere is copied to; elsewhere has a colon."""
    target = (call.operands() or [":"])[-1]
    if ":" in target or call.ground.is_folder(target):
        return None
    return why_written(target, call.ground)


def _compiler(call: Call) -> str | None:
    named = call.value("-o")
    is_source = named is not None and plain(named).endswith((".c", ".cc", ".cpp", ".h", ".hpp"))
    return why_written(named, call.ground) if named and is_source else None


def _remote_name(call: Call) -> str | None:
    """`curl -O`, which takes the name from the address."""
    if not call.has("-O", "--remote-name", "--remote-name-all"):
        return request(call)
    names = [name for name in downloads(call) if "://" not in name and name]
    whys = (why_written(name, call.ground) for name in names)
    return next((why for why in whys if why), None) or request(call)


def _yq(call: Call) -> str | None:
    return "edits files in place" if call.has("-i", "--inplace", "--in-place") else None


def _uniq(call: Call) -> str | None:
    outputs = call.operands("-f", "-s", "-w")[1:2]
    return why_written(outputs[0], call.ground) if outputs else None


def _ffmpeg(call: Call) -> str | None:
    if not call.has("-y") or not call.words:
        return None
    return why_written(call.texts[-1], call.ground)


def _rename(call: Call) -> str | None:
    return None if call.is_guarded("n", "--no-act", "--nono", others="v") else "renames files"


def _truncate(call: Call) -> str | None:
    if call.value("-s", "--size") in (None, "+0"):
        return "cuts files short"
    made = [name for name in call.operands("-s", "--size", "-r") if call.ground.exists(name)]
    return f"cuts {shown(made[0])} short" if made else None


RULES: Final[dict[str, Rule]] = {
    "rm": _rm,
    **words(always(REMOVES), "unlink shred"),
    "truncate": _truncate,
    **words(_dd, "dd dcfldd ddrescue"),
    **words(_copy, "mv cp install ln gmv gcp"),
    **words(_find, "find gfind"),
    "tee": _tee,
    "sponge": _tee,
    **words(_sed, "sed gsed"),
    **words(_chmod, "chmod chown chgrp"),
    "chattr": flag("-R", "+i", "-i", why="locks files"),
    "rsync": _rsync,
    "curl": _output("-o", "--output", also=_remote_name),
    "wget": _output("-O", "--output-document", also=request),
    **words(request, "http https xh"),
    "sort": _output("-o", "--output"),
    **words(_tar, "tar bsdtar gtar"),
    "unzip": flag("-o", why="overwrites files"),
    "7z": flag("-y", "-aoa", "-sdel", why="overwrites or removes files"),
    "zip": flag("-m", "-d", "--move", "--delete", why="removes files"),
    "scp": _scp,
    "uniq": _uniq,
    "yq": _yq,
    "pandoc": _output("-o", "--output"),
    "openssl": _output("-out"),
    **words(_compiler, "gcc g++ cc c++ clang clang++"),
    "fallocate": flag("-p", "-z", "-c", "--punch-hole", "--zero-range", why="cuts files short"),
    "gio": flag("--empty", "remove", why="removes files"),
    **words(flag("-f", "--force", why="overwrites files"), "gunzip bzip2 bunzip2 xz unxz zstd"),
    "gzip": flag("-f", "--force", why="overwrites files"),
    "ffmpeg": _ffmpeg,
    **words(_rename, "rename prename"),
    **words(always("edits a file"), "ed ex"),
    "patch": flag("-R", "--reverse", why="takes a change back"),
    **words(always("empties the trash"), "trash-rm gio-trash-empty"),
}
