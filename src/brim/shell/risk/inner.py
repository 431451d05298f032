"""What programs run in turn: commands, scripts and files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from brim.shell.risk.calls import CommandRule, ProgramCall, is_read_only_by_table, load_rules
from brim.shell.risk.syntax import UNKNOWN, Word, is_known, plain, reads_alike_in_fish
from brim.shell.risk.table import language_of, load_names, load_patterns


@dataclass(frozen=True, slots=True)
class RunFile:
    """A file that a program runs."""

    name: str
    parts: tuple[str, ...] | None = None
    """The commands in it that would run; None for the whole file."""


InnerCommand = tuple["Sequence[Word] | str | RunFile", Sequence[str]]
"""What a program runs, as words, as a script or as a file, and how it is run."""


def find_inner_commands(call: ProgramCall) -> Iterator[InnerCommand]:
    """Yield the commands that a program runs."""
    if call.name in ("find", "gfind", "fd", "fdfind"):
        is_quiet = call.name.startswith("fd") or is_read_only_by_table(call)
        yield from ((found, ("quiet",) * is_quiet) for found in _find(call))
    if call.name == "alias":
        yield from ((plain(text).partition("=")[2], ()) for text in call.texts if "=" in text)
    if call.name.startswith("py") and "-m" in call.texts:
        yield call.words[call.texts.index("-m") + 1 :], ()
    for wrapper in load_rules("wrappers").get(call.name, ()):
        steps, texts = wrapper.subcommands, map(plain, call.texts[:8])
        starts = [at for at, text in enumerate(texts, 1) if text in steps[0]] if steps else [0]
        for at in starts[:1]:
            inner = _unwrap(call.after(at), wrapper)
            yield from ((found, wrapper.exceptions) for found in inner)
    yield from ((found, ()) for found in _guess_inner(call))


def _guess_inner(call: ProgramCall) -> Iterator[Sequence[Word] | str]:
    """Yield the arguments that look like a command, if the program may run one."""
    names = load_names()
    known = (names[key] for key in ("any", "readers", "shells", "databases"))
    is_known_program = any(call.name in group for group in known) or call.is_wrapper
    if is_known_program or is_read_only_by_table(call):
        return
    for at, text in enumerate(map(plain, call.texts)):
        first, space, _ = text.partition(" ")
        if first.rpartition("/")[2] in names["guessed"]:
            yield text if space else call.words[at:]
            return


def _unwrap(call: ProgramCall, wrapper: CommandRule) -> Iterator[Sequence[Word] | str]:
    traits = wrapper.exceptions
    scripts = [option[1:] for option in wrapper.options if option.startswith("=")]
    named = call.values(*scripts) if scripts else []
    yield from map(plain, named)
    at = _start(call, wrapper)
    rest = [] if "alone" in traits else call.words[at:]
    if not all(is_known(text) for text in call.texts[:at] if text.startswith("-")):
        yield UNKNOWN
    if "each" in traits:
        yield from (plain(word.text) for word in rest)
    elif rest and "joins" in traits:
        yield " ".join(plain(word.text) for word in rest)
    elif rest and "appends" in traits:
        mark = plain(call.value("-I", "-i", "--replace") or UNKNOWN).replace(UNKNOWN, "{}")
        yield [*(Word(word.text.replace(mark, UNKNOWN)) for word in rest), Word(UNKNOWN)]
    elif rest:
        yield rest
    elif "reads" in traits and call.stdin is not None and not named:
        yield call.stdin


def _start(call: ProgramCall, wrapper: CommandRule) -> int:
    """Return the position of the inner command."""
    skips = next((int(trait[4:]) for trait in wrapper.exceptions if trait.startswith("skip")), 0)
    positions = call.operand_positions(*(option.lstrip("=") for option in wrapper.options))
    if call.name in ("env", "sudo", "doas", "time", "then", "do", "else", "!"):
        is_assigned = load_patterns()["assignment"].match
        texts = [plain(text) for text in call.texts]
        positions = (at for at in positions if texts[at] != "-" and not is_assigned(texts[at]))
    return next(islice(positions, skips, None), len(call.texts))


def _find(call: ProgramCall) -> Iterator[Sequence[Word]]:
    """Yield each `-exec` of a find, up to its `;` or `+`."""
    current: list[Word] | None = None
    for word in call.words:
        text = plain(word.text)
        if text in load_names()["execs"]:
            current = []
        elif current is not None and text in (";", "+") and current:
            yield current
            current = None
        elif current is not None:
            current.append(Word(text.replace("{}", UNKNOWN)))
    if current:
        yield [*current, *([Word(UNKNOWN)] if call.name.startswith("fd") else [])]


def find_run_code(call: ProgramCall) -> Iterator[InnerCommand]:
    """Yield the code that a program runs: `sh -c x`, `source x`, `python c.py`, `make`, `npm t`."""
    names = load_names()
    if call.name in names["shells"]:
        found = _run_shell(call)
    elif call.name in ("source", "."):
        found = (RunFile(name) for name in call.operands()[:1])
    elif call.name in ("make", "gmake"):
        found = _run_make(call)
    elif call.name in names["package_managers"]:
        found = _run_package(call)
    else:
        found = _run_file(call)
    return ((each, ()) for each in found)


def _run_shell(call: ProgramCall) -> Iterator[Sequence[Word] | str | RunFile]:
    """Yield what a shell runs: `-c`, a file, or its input."""
    texts = [plain(text) for text in call.texts]
    at = next(call.operand_positions("-o", "-O", "--rcfile", "--init-file"), len(texts))
    rest = [text for text in texts[at:] if text not in ("-", "--", "/dev/stdin")]
    is_alike = call.name != "fish" or all(map(reads_alike_in_fish, texts))
    if not is_alike or not all(map(is_known, texts[:at])) or "".join(rest).startswith("+"):
        yield UNKNOWN
    if any(re.fullmatch(r"-\w*c\w*", option) for option in texts[:at]):
        yield from _run_inline(texts[at:])
    elif rest and "-s" not in texts[:at]:
        yield RunFile(rest[0])
    elif call.stdin is not None:
        yield UNKNOWN


def _run_inline(rest: list[str]) -> Iterator[Sequence[Word] | str]:
    """Yield what `sh -c` runs; what the script is given can become commands in it."""
    script, *parameters = rest or [UNKNOWN]
    if load_patterns()["forwards"].search(script):
        yield [Word(text) for text in (parameters if "$0" in script else parameters[1:])]
    yield script


def _run_file(call: ProgramCall) -> Iterator[RunFile]:
    """Yield the files that an interpreter runs."""
    language = language_of(call.name)
    if language is None:
        yield from [RunFile(call.name)] * call.name.endswith((".py", ".sh"))
        return
    yield from map(RunFile, call.values(*language.get("files", "").split()))
    operands = call.operands(*language.get("valued", "").split())
    operands = operands[1:] if operands[:1] == ["run"] else operands
    has_code = call.has(*language["code"].split())
    if operands and not has_code and operands[0] != "-" and "files" not in language:
        yield RunFile(operands[0])


def _run_package(call: ProgramCall) -> Iterator[RunFile]:
    """Yield the scripts of package.json that a package manager would run."""
    operands = [plain(text) for text in call.operands("-C", "--prefix", "-w", "--workspace")]
    if not operands:
        return
    is_run = operands[0] in ("run", "run-script") and bool(operands[1:])
    name = {"t": "test", "i": "install", "ci": "install"}.get(operands[0], operands[is_run])
    try:
        scripts = json.loads(call.places.read("package.json") or "{}").get("scripts", {})
        steps = [scripts.get(step) for step in (f"pre{name}", name, f"post{name}")]
    except (ValueError, AttributeError):
        return
    parts = tuple(step for step in steps if isinstance(step, str) and step)
    yield RunFile("package.json", parts)


def _run_make(call: ProgramCall) -> Iterator[str | RunFile]:
    """Yield the recipes that make would run."""
    named = call.value("-f", "--file", "--makefile")
    if named in ("-", "/dev/stdin"):
        yield UNKNOWN
        return
    folder = plain(call.value("-C", "--directory") or ".")
    for name in [named] if named else ["GNUmakefile", "makefile", "Makefile"]:
        path = f"{folder}/{plain(name)}"
        if (text := call.places.read(path)) is not None:
            words = map(plain, call.operands("-C", "-f", "-j", "-I", "-o", "-W"))
            goals = [word for word in words if re.fullmatch(r"[^\W\d_][^=]*", word)]
            is_dry = call.has("-n", "--just-print", "--dry-run", "--recon")
            yield RunFile(path, tuple(_find_recipes(text, goals, is_dry=is_dry)))
            return


def _find_recipes(text: str, goals: list[str], *, is_dry: bool) -> Iterator[str]:
    """Yield the recipe lines of goals and their needs; of a dry run, those that run anyway."""
    entries: dict[str, list[str]] = {}  # what a target needs, and its recipe
    targets: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        found = [line] * line.startswith("\t")
        if not found and (match := load_patterns()["make_rule"].match(line)):
            targets = match[1].split()
            found = [*match[2].split(), f"\t{match[3] or ''}"]
        for target in targets:
            entries.setdefault(target, []).extend(found)
    waiting = goals or [target for target in entries if not target.startswith(".")][:1]
    if "%" in "".join(entries) or not all(goal in entries for goal in waiting):
        waiting = list(entries)
    chosen: dict[str, None] = {}
    while waiting:
        entry = waiting.pop()
        if entry not in chosen:
            chosen[entry] = None
            waiting += entries.get(entry, ())
    for line in (entry[1:].lstrip() for entry in chosen if entry.startswith("\t")):
        if not is_dry or re.match(r"[@-]*\+|.*\$[({]MAKE", line):
            known = line.lstrip("@-+ ").replace("$(RM)", "rm -f").replace("$(MAKE)", "make")
            yield re.sub(r"\$\([^()]*\)|\$\{[^{}]*\}|\$[@<^*?%]", "value", known).replace("$$", "$")
    yield from re.findall(r"\$\(shell\s+([^()]*)\)", text)
