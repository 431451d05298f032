"""Programs whose effect depends on more than options: files, git, databases, inline code."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from brim.shell.risk.calls import ProgramCall, find_code, load_rules
from brim.shell.risk.syntax import SOLID, UNKNOWN, display, is_known, is_pattern, plain
from brim.shell.risk.table import language_of, load_names, load_patterns

_COPY_VALUED: Final = ("-t", "--target-directory", "-S", "--suffix", "-m", "--mode", "-o", "-g")


def why_destructive(call: ProgramCall) -> str | None:
    """Return why a call is destructive beyond the table; None if it is not."""
    rule = RULES.get(call.name)
    if call.texts in (["--help"], ["--version"]):
        return None
    return (rule(call) if rule else None) or _why_output(call) or _code(call)


def _why_output(call: ProgramCall) -> str | None:
    """Output files that arguments name: overwriting one that exists."""
    names: list[str] = []
    for rule in load_rules("outputs").get(call.name, ()):
        if rule.most_operands is not None:
            names += call.operands(*rule.exceptions)[rule.most_operands :]
        elif call.is_guarded(*rule.exceptions):
            continue
        names += call.values(*rule.options) if rule.find(call, is_certain=False) else ()
    appends = call.name == "tee" and call.has("-a", "--append")
    whys = (call.places.why_overwritten(name, appends=appends) for name in names if name != "-")
    return next(filter(None, whys), None)


def _surprises(call: ProgramCall) -> Iterator[str]:
    """Yield what a removal covers beyond what it seems to."""
    yield "removes files and folders"
    for word in call.words:
        text = display(word.text)
        if word.empties and not word.text.startswith("-"):
            yield f"{word.empties[0]} is empty, so this is {text or 'nothing'}"
        elif not word.text.startswith("-") and call.places.is_wide(word.text):
            is_all = is_pattern(word.text)
            yield f"{text} is {'everything in the folder' if is_all else 'a whole tree'}"
    if call.places.lost_variable:
        yield f"{call.places.lost_variable} is empty, so cd went to the home folder"


def _copy(call: ProgramCall) -> str | None:
    """mv, cp, install and ln: existing files that they overwrite."""
    operands = call.files(*_COPY_VALUED)
    folder = call.value("-t", "--target-directory")
    if folder is None and len(operands) < 2:
        is_clear = all(map(is_known, operands))
        return None if is_clear else "overwrites a file that is known only at run time"
    sources, target = (operands, folder + "/") if folder else (operands[:-1], operands[-1])
    is_system = load_patterns()["system"].fullmatch
    if call.name == "mv":
        patterns = filter(is_pattern, call.operands(*_COPY_VALUED))
        for source in (*patterns, *sources):
            if is_system(source) or (is_known(source) and call.places.is_wide(source)):
                return f"moves {display(source)} away"
    asks = call.is_guarded("-n", "--no-clobber", "-i", "--interactive") and call.stdin is None
    if (call.name == "ln" or asks) and not call.has("-f", "--force"):
        return None
    whys = map(call.places.why_overwritten, _arrivals(call, sources, target))
    return next(filter(None, whys), None)


def _arrivals(call: ProgramCall, sources: Sequence[str], target: str) -> Iterator[str]:
    """Yield the paths that would be written."""
    is_into = target.endswith("/") or call.places.is_folder(target)
    if call.has("-T", "--no-target-directory") or not is_into:
        yield target
        return
    for source in sources:
        name = plain(source).rstrip("/").rpartition("/")[2] or "."
        if is_known(name) or call.places.exists(target):
            yield f"{target.rstrip('/')}/{name}"


def _tar(call: ProgramCall) -> str | None:
    """tar and unzip: unpacking over the system, or packing into a file that exists."""
    letters = plain("".join(call.texts[:1]))
    into = os.path.normpath(plain(call.value("-C", "--directory", "-d") or "."))
    is_new = call.name != "unzip" and ("c" in letters or call.has("-c", "--create"))
    if not is_new and load_patterns()["system"].fullmatch(into):
        return f"unpacks files into {into}"
    is_old_style = bool(letters) and not letters.startswith("-")
    named = call.texts[1] if is_old_style and call.words[1:] else call.value("-f", "--file")
    return call.places.why_overwritten(named) if is_new and named and named != "-" else None


def _git(call: ProgramCall) -> str | None:
    git_runs = load_patterns()["git_runs"].search
    settings = map(plain, call.values("-c"))
    if any(git_runs(setting.partition("=")[0]) or "=!" in setting for setting in settings):
        return "sets a command that git runs"
    *_, at = (None, *(at for at, _ in call.subcommand_positions()))
    if at is None:
        return None
    name, rest = call.texts[at], call.after(at + 1)
    if not is_known(name):
        return "what it does is known only at run time"
    if name == "config":
        values = [plain(text) for text in rest.operands("-f", "--file", "--type")]
        is_set = bool(values[1:]) and git_runs(values[0])
        return "sets a command that git runs later" if is_set else None
    if name in ("reset", "push") and any(re.match(f"-*{SOLID}?{UNKNOWN}", t) for t in rest.texts):
        is_branch = name == "push" and len(rest.operands()) == 2
        return None if is_branch else "what it does is known only at run time"
    return _checkout(rest) if name in ("checkout", "co") else None


def _checkout(call: ProgramCall) -> str | None:
    """Switching branches is harmless; paths and force are not."""
    if call.has("-b", "--orphan", "-t", "--track"):
        return None
    operands = call.operands()
    is_path = any(name.startswith((":", ".")) or call.places.exists(name) for name in operands)
    return "throws away changes that are not committed" if is_path or operands[1:] else None


def _sql(call: ProgramCall) -> str | None:
    """SQL on the command line, on standard input, or in a readable file."""
    said = [*call.texts, call.stdin or ""]
    said += [call.places.read(name) or UNKNOWN for name in call.values("-f", "--file")]
    if any(load_patterns()["sql"].search(plain(text)) for text in said):
        return "changes or removes data in a database"
    return None if all(map(is_known, said)) else "runs statements that are known only at run time"


def _code(call: ProgramCall) -> str | None:
    """Code on the command line, or piped into an interpreter."""
    language = language_of(call.name)
    if language is None:
        return None
    if any(re.fullmatch(language.get("edits", "$"), option) for option in call.options()):
        return "edits files in place"
    traits, general = language.get("traits", ""), load_patterns()["code"]
    for text in find_code(call, language):
        if not is_known(text):
            return "runs code that is known only at run time"
        code = re.sub(language.get("calm", "$^"), "", plain(text))
        found = None if "own" in traits else general.search(code)
        found = found or re.search(language["more"], code, re.MULTILINE)
        if found:
            name = language["language"]
            return f"its {name} code can write, remove or run things ({found[0].strip()[:40]})"
    return None


RULES: Final[dict[str, Callable[[ProgramCall], str | None]]] = {
    **dict.fromkeys(
        ("rm", "unlink", "shred"), lambda call: "; ".join(dict.fromkeys(_surprises(call)))
    ),
    **dict.fromkeys(("mv", "cp", "install", "ln", "gmv", "gcp"), _copy),
    **dict.fromkeys(("tar", "bsdtar", "gtar", "unzip"), _tar),
    **dict.fromkeys(load_names()["databases"], _sql),
    "git": _git,
}  # fmt: skip
