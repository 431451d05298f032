"""Programs whose effect depends on more than options: files, git, databases, and what they run."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from brim.shell.risk.calls import ProgramCall, command_table
from brim.shell.risk.places import git_runs
from brim.shell.risk.words import UNKNOWN, Word, display, is_known, is_pattern, plain

REMOVES: Final = "removes files and folders"
CHANGES: Final = "throws away changes that are not committed"
_SYSTEM: Final = ("/etc", "/usr", "/bin", "/boot", "/lib", "/sbin", "/dev", "/root")
_NO_ACCESS: Final = re.compile(r"0+|[ugoa]*-[rwxX]*[rw][rwx]*|[ugoa]*=")
_SED_WRITES: Final = re.compile(
    r"(?:^|[;{}\n])\s*(?:[\d,$!~+]+|/[^/]*/)?\s*(?:e(?:\s|$)|[wW]\s+(?!/dev/std))"
    r"|s([^\w\s\\])(?:\\.|(?!\1).)*\1(?:\\.|(?!\1).)*\1[gpiIm\d]*(?:e|w\s*(?!/dev/std))"
)
_SED_ADDRESS: Final = r"(?:\d+|\$|/(?:\\.|[^/\\])*/)(?:,[+~]?(?:\d+|\$|/(?:\\.|[^/\\])*/))?!?"
_SED_READS: Final = re.compile(
    rf"\s*(?:(?:{_SED_ADDRESS})?\s*\{{?\s*(?:[pdqDNnGHhxgl=]|s([^\w\s\\])(?:\\.|(?!\1).)*\1"
    rf"(?:\\.|(?!\1).)*\1[gpiIm\d]*|y/[^/]*/[^/]*/|\}})?\s*(?:;|\n|\}}|$)\s*)+"
)
_COPY_VALUED: Final = ("-t", "--target-directory", "-S", "--suffix", "-m", "--mode", "-o", "-g")


def why_destructive(call: ProgramCall) -> str | None:
    """Return why a call is destructive beyond the table; None if it is not."""
    rule = RULES.get(call.name)
    if call.texts in (["--help"], ["--version"]):
        return None
    return (rule(call) if rule else None) or _why_output(call)


def _first(whys: Iterator[str | None]) -> str | None:
    return next((why for why in whys if why), None)


def _why_output(call: ProgramCall) -> str | None:
    """Output files that options name: overwriting one that exists."""
    flags = command_table().outputs.get(call.name, ())
    names = [value for value in call.values(*flags) if value != "-"] if flags else []
    return _first(call.places.why_overwritten(name) for name in names)


def _remove(call: ProgramCall) -> str | None:
    """Say what a removal covers beyond what it seems to."""
    return "; ".join([REMOVES, *dict.fromkeys(_surprises(call))])


def _surprises(call: ProgramCall) -> Iterator[str]:
    for word in call.words:
        text = display(word.text)
        if word.empties and not word.text.startswith("-"):
            yield f"{word.empties[0]} is empty, so this is {text or 'nothing'}"
        elif is_pattern(word.text) and call.places.is_wide(word.text):
            yield f"{text} is everything in {_here(call, text)}"
        elif not word.text.startswith("-") and call.places.is_wide(word.text):
            yield f"{text} is a whole tree"
    if call.places.lost_variable:
        yield f"{call.places.lost_variable} is empty, so cd went to the home folder"


def _here(call: ProgramCall, text: str) -> str:
    folder = text.rpartition("/")[0]
    if text.startswith("/"):
        return folder or "/"
    return os.path.normpath(call.places.folders[0] / folder)


def _dd(call: ProgramCall) -> str | None:
    outputs = [text[3:] for text in call.texts if text.startswith("of=")]
    is_dynamic = any(text.startswith(UNKNOWN) for text in call.texts)
    is_harmless = all(plain(out) in ("/dev/null", "/dev/stdout") for out in outputs)
    return None if is_harmless and not is_dynamic else "overwrites the output file"


def _copy(call: ProgramCall) -> str | None:
    """mv, cp, install and ln: existing files that they overwrite."""
    if call.name == "install" and call.has("-d"):
        return None
    operands = [name for word in call.operands(*_COPY_VALUED) for name in call.places.matches(word)]
    folder = call.value("-t", "--target-directory")
    if folder is None and len(operands) < 2:
        is_dynamic = any(not is_known(name) for name in operands)
        return "overwrites a file that is known only at run time" if is_dynamic else None
    sources, target = (operands, folder + "/") if folder else (operands[:-1], operands[-1])
    if call.name == "mv":
        if plain(target).startswith("/dev/"):
            return f"moves files into {display(target)}, where they cannot be recovered"
        is_many = any(is_pattern(word) and call.places.is_wide(word) for word in call.operands())
        wide = (s for s in sources if not is_pattern(s) and is_known(s) and call.places.is_wide(s))
        whole = next(wide, None) or next((s for s in sources if s in _SYSTEM), None)
        if whole or is_many:
            return f"moves {display(whole or '*')} away"
    if (call.name == "ln" and not call.has("-f", "--force")) or _is_careful(call):
        return None
    places = list(_arrivals(call, sources, target))
    return _first(call.places.why_overwritten(place) for place in places)


def _is_careful(call: ProgramCall) -> bool:
    """Return whether existing files are safe: `-n`, `-i` at a terminal, `-b`."""
    keeps = not any(option in ("--backup=none", "--backup=off") for option in call.options())
    if keeps and call.is_guarded("-b", "--backup"):
        return True
    if call.name in ("ln", "install") or call.has("-f", "--force"):
        return False
    asks = call.is_guarded("-i", "--interactive") and call.stdin is None
    return call.is_guarded("-n", "--no-clobber") or asks


def _arrivals(call: ProgramCall, sources: Sequence[str], target: str) -> Iterator[str]:
    """Yield the paths that would be written."""
    is_into = target.endswith("/") or call.places.is_folder(target)
    if call.has("-T", "--no-target-directory") or not is_into:
        yield target
        return
    folder = target.rstrip("/")
    for source in sources:
        name = plain(source).rstrip("/").rpartition("/")[2]
        if not is_known(name) and not call.places.exists(folder):
            continue
        if name in ("", ".", ".."):
            yield from call.places.matches(f"{folder}/\ue001")[:1]
        elif call.places.is_folder(f"{folder}/{name}") and call.places.is_folder(source):
            yield from call.places.matches(f"{folder}/{name}/\ue001")[:1]
        else:
            yield f"{folder}/{name}"


def _tee(call: ProgramCall) -> str | None:
    appends = call.has("-a", "--append")
    return _first(call.places.why_overwritten(n, appends=appends) for n in call.operands())


def _edit_stream(call: ProgramCall) -> str | None:
    scripts = call.values("-e", "--expression") or call.operands("-l", "-f", "--file")[:1]
    if any(_SED_WRITES.search(plain(script)) for script in scripts):
        return "its script runs commands or writes files"
    kept = [suffix for option in call.options() if (suffix := _sed_suffix(option)) is not None]
    named = call.operands("-e", "-f", "-l")
    if not kept or (kept[0] and not any(call.places.exists(name + kept[0]) for name in named)):
        return None
    edited = [name for word in named for name in call.places.matches(word) if _is_there(call, name)]
    return f"edits {display(edited[-1])} in place" if edited else None


def _is_there(call: ProgramCall, name: str) -> bool:
    return not is_known(name) or call.places.exists(name)


def _sed_suffix(option: str) -> str | None:
    """Return the suffix of the backup that `-i` keeps, '' for none; None for another option."""
    if option.startswith("--"):
        return option.partition("=")[2] if option.startswith("--i") else None
    if "i" not in option.partition("e")[0].partition("f")[0] and "I" not in option[:3]:
        return None
    match = re.fullmatch(r"-[nErsuz]*i([.~_][\w.~]+)", option)
    return match[1] if match else ""


def _chmod(call: ProgramCall) -> str | None:
    operands, is_deep = call.operands("--reference"), call.has("-R", "--recursive")
    targets = operands if call.has("--reference") else operands[1:]
    if call.name == "chmod":
        modes = [text for text in call.texts if re.fullmatch(r"-[rwxXst]+", text)]
        targets = operands if modes else targets
        if _NO_ACCESS.fullmatch(plain((modes or operands or [""])[0])):
            return "takes away the right to read or write"
    wide = [target for target in targets if _is_system(call, target, is_deep=is_deep)]
    return (
        f"changes the rights of {display(wide[0])}" + " and all in it" * is_deep if wide else None
    )


def _is_system(call: ProgramCall, target: str, *, is_deep: bool) -> bool:
    text = os.path.normpath(plain(target) or ".")
    if is_deep:
        is_inside = text.startswith(tuple(name + "/" for name in (*_SYSTEM, UNKNOWN)))
        return is_inside or text in (*_SYSTEM, UNKNOWN) or call.places.is_wide(target)
    return text == "/" or text in _SYSTEM or text.startswith(("/bin/", "/etc/", "/usr/bin/"))


def _tar(call: ProgramCall) -> str | None:
    """tar and unzip: unpacking over the system, or packing into a file that exists."""
    letters = plain("".join(call.texts[:1]))
    into = os.path.normpath(plain(call.value("-C", "--directory", "-d") or "."))
    is_new = call.name != "unzip" and ("c" in letters or call.has("-c", "--create"))
    if not is_new and (into == "/" or into in _SYSTEM or call.has("-P", "--absolute-names")):
        return f"unpacks files into {into}"
    is_old_style = bool(letters) and not letters.startswith("-")
    named = call.texts[1] if is_old_style and call.words[1:] else call.value("-f", "--file")
    return call.places.why_overwritten(named) if is_new and named and named != "-" else None


def _git(call: ProgramCall) -> str | None:
    if any(_sets_hooks(plain(value).split("=")) for value in call.values("-c")):
        return "changes where git takes its hooks from"
    at = next(iter(call.subcommand_positions()), None)
    if at is None:
        return None
    name, rest = call.texts[at], call.after(at + 1)
    if not is_known(name):
        return "what it does is known only at run time"
    if name == "config":
        values = [plain(text) for text in rest.operands("-f", "--file", "--type")]
        if values[1:] and git_runs(values[0]) and not re.fullmatch(r"[\w-]+", values[1]):
            return "sets a command that git runs later"
        return "changes where git takes its hooks from" if _sets_hooks(values) else None
    if name in ("reset", "push") and any(re.match(f"-*{UNKNOWN}", text) for text in rest.texts):
        is_branch = name == "push" and len(rest.operands()) == 2
        return None if is_branch else "what it does is known only at run time"
    return _checkout(rest) if name in ("checkout", "co") else None


def _sets_hooks(values: Sequence[str]) -> bool:
    return len(values) > 1 and values[0].lower() in ("core.hookspath", "init.templatedir")


def _checkout(call: ProgramCall) -> str | None:
    """Switching branches is harmless; paths and force are not."""
    if call.has("-f", "--force", "-p", "--patch", "--ours", "--theirs", "-m", "--merge"):
        return CHANGES
    if "--" in call.texts:
        return CHANGES if call.texts[-1] != "--" else None
    if any(text.startswith("--pathspec-f") for text in call.texts):
        return CHANGES
    if call.has("-B"):
        return "makes commits unreachable"
    if call.has("-b", "--orphan", "-t", "--track"):
        return None
    operands = call.operands()
    is_path = any(
        name.startswith((":", "./", "../")) or name == "." or call.places.exists(name)
        for name in operands
    )
    return CHANGES if is_path or len(operands) > 1 else None


_SQL: Final = re.compile(
    r"\b(drop|delete|truncate|update|alter|replace\s+into|grant|revoke|overwrite)\b"
    r"|\\!|^\s*\.(shell|system|output|once|import|restore|clone)\b|dropdatabase|\.drop\s*\("
    r"|\.(delete|remove|deletemany|deleteone)\s*\(|^(flushall|flushdb|del|unlink|config|debug)\b",
    re.IGNORECASE | re.MULTILINE,
)


def _sql(call: ProgramCall) -> str | None:
    """SQL on the command line, on standard input, or in a readable file."""
    said = [*call.texts, call.stdin or ""]
    said += [call.places.read(name) or UNKNOWN for name in call.values("-f", "--file")]
    if any(_SQL.search(plain(text)) for text in said):
        return "changes or removes data in a database"
    is_clear = all(is_known(text) for text in said)
    return None if is_clear else "runs statements that are known only at run time"


def _awk(call: ProgramCall) -> str | None:
    if "inplace" in call.texts:
        return "edits files in place"
    scripts = [*call.operands("-F", "-v", "-f")[:1], *call.values("-e", "--source")]
    for script in map(plain, scripts):
        if not is_known(script):
            return "runs a script that is known only at run time"
        calm = _AWK_CALM.sub("", script)
        if _AWK_RUNS.search(calm):
            return "its script runs commands"
        if _AWK_WRITES.search(_AWK_STRING.sub('""', calm)):
            return "its script writes files"
    if any(not is_known(text) for text in call.values("-f")):
        return "runs a script that is known only at run time"
    return None


_AWK_STRING: Final = re.compile(r'"(?:\\.|[^"\\])*"')
_AWK_CALM: Final = re.compile(r'>\s*"/dev/std(?:err|out)"|\|\s*"sort(?: -[\w ,.]+)?"')
"""Harmless outputs of an awk script."""
_AWK_RUNS: Final = re.compile(r'system\s*\(|\|\s*&?\s*"|\|\s*&?\s*getline|\|&|@load|-i\s*inplace')
_AWK_WRITES: Final = re.compile(r"\bprintf?\b[^;}\n]*?(?:>>?\s*(\S+)|\|)")


RULES: Final[dict[str, Callable[[ProgramCall], str | None]]] = {
    **dict.fromkeys(("rm", "unlink", "shred"), _remove),
    **dict.fromkeys(("mv", "cp", "install", "ln", "gmv", "gcp"), _copy),
    **dict.fromkeys(("tee", "sponge"), _tee),
    **dict.fromkeys(("sed", "gsed"), _edit_stream),
    **dict.fromkeys(("chmod", "chown", "chgrp"), _chmod),
    **dict.fromkeys(("tar", "bsdtar", "gtar", "unzip"), _tar),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    **dict.fromkeys(command_table().names["databases"], _sql),
    "dd": _dd, "git": _git,
}  # fmt: skip


# Programs that run others


def _xargs(call: ProgramCall) -> Iterator[Sequence[Word] | str]:
    valued = frozenset((
        "-I", "-n", "-P", "-L", "-d", "-a", "-s", "-E", "-R", "-S", "--max-args", "--max-procs",
        "--delimiter", "--max-lines", "--arg-file", "--max-chars", "--eof",
    ))  # fmt: skip
    at = 0
    while at < len(call.texts) and call.texts[at].startswith("-"):
        text = call.texts[at]
        is_cluster = re.fullmatch(r"-\w+", text) and "-" + text[-1] in valued and len(text) > 2
        at += 1 if text == "--" or not (text in valued or is_cluster) else 2
        if text == "--":
            break
    mark = plain(call.value("-I", "--replace") or "{}") or "{}"
    mark = mark if is_known(mark) else "{}"
    words = [Word(word.text.replace(mark, UNKNOWN)) for word in call.words[at:]]
    if words:
        is_replaced = ProgramCall("xargs", call.words[:at], call.places).has(
            "-I", "-i", "--replace"
        )
        yield [*words, *([] if is_replaced else [Word(UNKNOWN)])]


def _find(call: ProgramCall) -> Iterator[Sequence[Word]]:
    """Yield each `-exec` of a find, up to its `;` or `+`."""
    current: list[Word] | None = None
    for word in call.words:
        text = plain(word.text)
        if text in _EXECS:
            current = []
        elif current is not None and text in (";", "+") and current:
            yield current
            current = None
        elif current is not None:
            current.append(Word(text.replace("{}", UNKNOWN)))
    if current:
        yield [*current, *([Word(UNKNOWN)] if call.name.startswith("fd") else [])]


_EXECS: Final = frozenset((
    "-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch",
))  # fmt: skip


def _parallel(call: ProgramCall) -> Iterator[Sequence[Word] | str]:
    valued = ("-j", "-n", "-N", "-I", "-a", "-d", "-P", "-L", "-S", "--jobs", "--arg-file", "-C",
              "--max-args", "--delay", "--timeout", "--joblog", "--results", "--colsep",
              "--sshlogin", "--tmpdir", "--retries")  # fmt: skip
    marks = [n for n, text in enumerate(call.texts) if text.startswith(":::")]
    end = marks[0] if marks else len(call.texts)
    words = ProgramCall("parallel", call.words[:end], call.places).operands(*valued)
    if words:
        yield re.sub(r"\{[\w/.#%]*\}", "x", " ".join(map(plain, words)))
        return
    given = [plain(text) for text in call.texts[end:] if not text.startswith(":::")]
    yield from given or ([call.stdin] if call.stdin is not None else [])


def _git_runs(call: ProgramCall) -> Iterator[Sequence[Word] | str]:
    """Yield the commands in settings and options of git."""
    for setting in call.values("-c", "--config-env"):
        key, _, value = plain(setting).partition("=")
        if value.startswith("!") or git_runs(key):
            yield value.removeprefix("!")
    texts = [plain(text) for text in call.texts]
    if "config" in texts:
        values = [t for t in texts[texts.index("config") + 1 :] if not t.startswith("-")]
        if values[1:] and git_runs(values[0]) and not values[1].startswith("!"):
            yield values[1]
    if "rebase" in texts or "difftool" in texts:
        yield from map(plain, call.values("-x", "--exec", "--extcmd"))
    if "bisect" in texts and "run" in texts:
        yield call.words[texts.index("run") + 1 :]
    if "submodule" in texts and "foreach" in texts:
        yield " ".join(t for t in texts[texts.index("foreach") + 1 :] if not t.startswith("-"))


def _option_scripts(*flags: str) -> Callable[[ProgramCall], Iterator[str]]:
    """Return a function: the values of these options are scripts."""

    def find(call: ProgramCall) -> Iterator[str]:
        for value in map(plain, call.values(*flags)):
            is_option = re.match(r"(?i)\w+\s*=", value)
            if value.startswith("exec="):
                yield value[5:]
            elif is_option and re.match(r"(?i)(proxy|local|remote|knownhosts)command", value):
                yield value.partition("=")[2]
            elif flags[0] != "-o" and not value.startswith("ssh"):
                yield value

    return find


def _aliases(call: ProgramCall) -> Iterator[str]:
    yield from (plain(text).partition("=")[2] for text in call.texts if "=" in text)


def _trap(call: ProgramCall) -> Iterator[str]:
    operands = call.operands()
    if not call.has("-l", "-p") and len(operands) > 1 and operands[0] not in ("-", ""):
        yield plain(operands[0])


INNER: Final[dict[str, Callable[[ProgramCall], Iterator[Sequence[Word] | str]]]] = {
    **dict.fromkeys(("find", "gfind", "fd", "fdfind"), _find),
    **dict.fromkeys(("xargs", "gxargs"), _xargs),
    **dict.fromkeys(("tar", "bsdtar"), _option_scripts(
        "--checkpoint-action", "-I", "--use-compress-program", "--to-command", "--rsh-command")),
    **dict.fromkeys(("ssh", "scp", "sftp"), _option_scripts("-o")),
    "rsync": _option_scripts("-e", "--rsh", "--rsync-path"),
    "parallel": _parallel, "git": _git_runs, "alias": _aliases, "trap": _trap,
}  # fmt: skip


# Read-only forms


def is_quiet_wrapper(call: ProgramCall) -> bool:
    """Return whether a program that runs another one changes nothing by its own options."""
    if call.name in ("find", "gfind"):
        return not call.has("-ok", "-okdir") and _find_reads(call)
    if call.name in ("time", "gtime"):
        return not call.has("-o", "--output")
    if call.name == "env":
        return not any("=" in text for text in call.texts)
    return call.name != "watch" or not call.has("-x", "--exec")


def _find_reads(call: ProgramCall) -> bool:
    is_dynamic = any(text.startswith(UNKNOWN) for text in call.texts)
    bad = ("-delete", "-fprint", "-fprint0", "-fls", "-fprintf", "-ok", "-okdir")
    return not is_dynamic and not any(plain(text) in bad for text in call.texts)


def is_read_only(call: ProgramCall) -> bool:
    """Return whether a program with a script or an expression of its own only reads."""
    if call.name in ("find", "gfind"):
        return _find_reads(call)
    if call.name in ("sed", "gsed"):
        return _sed_reads(call)
    if call.name in ("awk", "gawk", "mawk", "nawk"):
        return _awk_reads(call)
    if call.name == "xargs":
        return not call.operands()
    return False


_SED_OPTIONS: Final = re.compile(
    r"-[nErsuz]+|-n?e.*|--(quiet|silent|regexp-extended|expression=.*)", re.DOTALL
)


def _sed_reads(call: ProgramCall) -> bool:
    scripts = call.values("-e", "--expression") or call.operands()[:1]
    is_plain = all(map(_SED_OPTIONS.fullmatch, call.options()))
    return is_plain and bool(scripts) and all(map(_SED_READS.fullmatch, map(plain, scripts)))


def _awk_reads(call: ProgramCall) -> bool:
    if not all(re.fullmatch(r"-[Fv].*", option) for option in call.options()):
        return False
    scripts = call.operands("-F", "-v")[:1]
    calm = [_AWK_STRING.sub('""', plain(script)).replace("||", "") for script in scripts]
    risky = re.compile(r"system|getline|\||@|close|fflush|\bprintf?\b[^;}\n]*>|[`]")
    return bool(scripts) and all(is_known(s) and not risky.search(s) for s in calm)
