"""Files and code that a command runs: scripts, makefiles, package scripts, inline code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from brim.shell.risk.calls import ProgramCall, command_table, language_of
from brim.shell.risk.findings import ReviewLog
from brim.shell.risk.places import LARGEST_READ, Places
from brim.shell.risk.words import UnreadableError, Word, is_known, parse_command, plain

_TRUSTED: Final = re.compile(
    r"\s*(?:eval\s|source\s|\.\s).*(?:\$\(|<\(|`)\s*([\w./-]+)([^;&|$`<>)]*)[)`]"
)
_USERS_FILES: Final = re.compile(r"(^|/)(\.\w+rc|\.profile|\.bash_profile|activate|nvm\.sh|\.env)$")
_FORWARDS: Final = re.compile(r"""(?:^|[;&|(]|exec|eval|sudo|env)\s*["']?\$[{]?[@*0-9]""")


class ReviewState(Protocol):
    """The review that the code belongs to, which also reviews the commands inside it."""

    log: ReviewLog
    places: Places
    whole: str

    def inner(self) -> ReviewState: ...

    def script(self, text: str, source: str) -> None: ...

    def run(self, words: Sequence[Word], stdin: str | None, source: str) -> None: ...


def why_inline(call: ProgramCall) -> str | None:
    """Return why code on the command line, or piped into an interpreter, needs a yes."""
    language = language_of(call.name)
    if language is None or call.texts in (["--help"], ["--version"]):
        return None
    name, patterns = language["language"], command_table().patterns
    if name in ("perl", "ruby") and any(map(patterns["in_place"].fullmatch, call.options())):
        return "edits files in place"
    for text in _codes(call, language):
        if not is_known(text):
            return "runs code that is known only at run time"
        general = None if name in ("vim", "emacs") else patterns["code"].search(plain(text))
        found = general or re.search(language["more"], plain(text), re.MULTILINE)
        if found:
            return f"its {name} code can write, remove or run things ({found[0].strip()[:40]})"
    return None


def _codes(call: ProgramCall, language: Mapping[str, str]) -> list[str]:
    """Return the code that an interpreter runs, if it is not in a file."""
    name, flags = language["language"], language["code"].split()
    codes = call.values(*(flag for flag in flags if flag.startswith("-")))
    if name == "deno" and "eval" in call.texts:
        codes += call.texts[call.texts.index("eval") + 1 :]
    if name == "vim":
        codes += [text[1:] for text in call.texts if text.startswith("+")]
    if name == "powershell" and not codes:
        return call.operands()
    files = [text for text in call.operands(*language.get("valued", "").split()) if text != "-"]
    if codes or files or call.stdin is None or name in ("bun", "deno", "emacs", "vim"):
        return codes
    return [] if "-m" in call.texts else [call.stdin]


# Shells


def review_shell(review: ReviewState, call: ProgramCall, source: str) -> None:
    """Review what a shell runs: `-c`, a file, or its input."""
    texts, at = [plain(text) for text in call.texts], 0
    while at < len(texts) and (texts[at][:1] in ("-", "+") or not is_known(texts[at][:1])):
        text = texts[at]
        if not is_known(text):
            review.log.add(source, "its options are known only at run time")
        if re.fullmatch(r"-\w*c\w*", text):
            _review_inline(review, [t for t in texts[at + 1 :] if t != "--"], call, source)
            return
        takes_value = text in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file")
        at = len(texts) if text == "-s" else at + 1 + takes_value
    operands = [word.text for word in call.words[at:] if word.text not in ("-", "--")]
    if operands and plain(operands[0]) != "/dev/stdin":
        review_file(review, operands[0], call, source)
    elif call.stdin is not None:
        review.log.add(source, "runs the output of another command")


def _review_inline(review: ReviewState, rest: list[str], call: ProgramCall, source: str) -> None:
    """Review `sh -c script`; what it is given can become commands in it."""
    if not rest:
        review.log.add(source, "what it runs is known only at run time")
        return
    script, *parameters = rest
    if _FORWARDS.search(script):
        words = parameters if "$0" in script else parameters[1:]
        review.inner().run([Word(word) for word in words], call.stdin, source)
    review.inner().script(script, source)


# Files


def review_file(
    review: ReviewState, word: str, call: ProgramCall, source: str, *, is_program: bool = False
) -> None:
    """Review a file that is run: it is as dangerous as its content."""
    places, name = review.places, plain(word)
    if is_program and (not is_known(word) or re.match(r"/(usr/)?(local/)?s?bin/|/lib|/opt/", name)):
        return
    if not is_known(word):
        review.log.add(source, "runs a file that is known only at run time")
        return
    if places.has_changed(word):
        review.log.runs_changed_file |= places.exists(word)
        review.log.raise_to_other()
    text = places.read(word)
    if text is None:
        _review_missing(review, name, source)
    elif len(text) > LARGEST_READ:
        review.log.raise_to_other()
    elif _is_shell_script(name, text, call):
        _review_script(review, text, name, source)
    elif found := command_table().patterns["removes"].search(text):
        review.log.add(source, f"{name} can remove things ({found[0].strip()[:40]})")


def _review_missing(review: ReviewState, name: str, source: str) -> None:
    """A file that is not there yet, or is no text: the same line may write it."""
    base = re.escape(name.rpartition("/")[2])
    is_mentioned = len(re.findall(rf"(?<![\w.-]){base}(?![\w.-])", review.whole)) > 1
    is_new = is_mentioned and not review.places.exists(name)
    if is_new or name.startswith(("/dev/", "/proc/")):
        review.log.add(source, f"runs {name}, whose content is known only at run time")
    review.log.raise_to_other()


def _is_shell_script(name: str, text: str, call: ProgramCall) -> bool:
    first = text.partition("\n")[0]
    if first.startswith("#!"):
        return language_of(re.split(r"[/\s]", first.strip())[-1]) is None
    is_other = name.lower().endswith((*command_table().names["suffixes"],))
    return not is_other and language_of(call.name) is None


def _review_script(review: ReviewState, text: str, name: str, source: str) -> None:
    try:
        parse_command(text.replace("\\\n", ""))
    except UnreadableError as error:
        review.log.raise_to_other()
        is_known_risk = command_table().patterns["removes"].search(text)
        if review.log.runs_changed_file or is_known_risk:
            review.log.add(source, f"{name} cannot be assessed: {error}")
        return
    review.inner().script(text, f"{source}: {name}")


def review_program(review: ReviewState, call: ProgramCall, source: str) -> None:
    """Review the files that a program runs: `source x`, `python c.py`, `make clean`, `npm test`."""
    if call.name in ("source", "."):
        for name in call.operands()[:1]:
            if not _USERS_FILES.search(name) or review.places.has_changed(name):
                review_file(review, name, call, source)
    elif call.name in ("make", "gmake"):
        _review_make(review, call, source)
    elif call.name in ("npm", "yarn", "pnpm", "bun") and call.operands():
        _review_package(review, call, source)
    elif call.name in ("awk", "gawk", "mawk", "nawk", "sed"):
        for name in call.values("-f", "--file"):
            review_file(review, name, call, source)
    elif (language := language_of(call.name)) is not None:
        operands = call.operands(*language.get("valued", "").split())
        operands = operands[1:] if operands[:1] == ["run"] else operands
        has_code = call.has(*(f for f in language["code"].split() if f.startswith("-")))
        if operands and not has_code and operands[0] != "-":
            review_file(review, operands[0], call, source)
    elif call.name.endswith((".py", ".sh")):
        review_file(review, call.name, call, source)


def is_trusted_output(source: str) -> bool:
    """Return whether a line evaluates the output of a program that is meant for it."""
    match, names = _TRUSTED.match(source), command_table().names
    if match is None:
        return False
    program = match[1].rpartition("/")[2]
    is_completion = program in names["completers"] and "completion" in match[2]
    return program in names["setters"] or is_completion


def _review_make(review: ReviewState, call: ProgramCall, source: str) -> None:
    """Review the recipes that make would run."""
    named = call.value("-f", "--file", "--makefile")
    if named in ("-", "/dev/stdin"):
        review.log.add(source, "runs rules from its input")
        return
    folder = plain(call.value("-C", "--directory") or ".")
    for name in [named] if named else ["GNUmakefile", "makefile", "Makefile"]:
        path = f"{folder}/{plain(name)}"
        text = review.places.read(path)
        if text is not None:
            review.log.runs_changed_file |= review.places.has_changed(path)
            goals = [plain(word) for word in call.operands("-C", "-f", "-j", "-I", "-o", "-W")]
            is_dry = call.has("-n", "--just-print", "--dry-run", "--recon")
            for line in make_recipes(text, [goal for goal in goals if goal[0].isalpha()], is_dry):
                review.inner().script(line, f"{source}: {line}")
            return


_MAKE_RULE: Final = re.compile(r"^([^\s#=:][^=:#]*?)\s*::?(?!=)\s*([^=#;]*)(?:;(.*))?(?:#.*)?$")


def make_recipes(text: str, goals: list[str], is_dry: bool = False) -> Iterator[str]:
    """Yield the recipe lines of these goals and of what they depend on, as the shell sees them.

    A dry run still runs the lines that begin with `+` or that call make again.
    """
    recipes: dict[str, list[str]] = {}
    needs: dict[str, list[str]] = {}
    targets: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("\t"):
            for target in targets:
                recipes[target].append(line.strip())
        elif match := _MAKE_RULE.match(line):
            targets = match[1].split()
            for target in targets:
                recipes.setdefault(target, []).extend(filter(None, [match[3]]))
                needs.setdefault(target, []).extend(match[2].split())
    goals = [goal for goal in goals if "=" not in goal]
    waiting = goals or [target for target in recipes if not target.startswith(".")][:1]
    if "%" in "".join(recipes) or not all(goal in recipes for goal in waiting):
        waiting = list(recipes)
    chosen: dict[str, None] = {}
    while waiting:
        goal = waiting.pop()
        if goal not in chosen:
            chosen[goal] = None
            waiting += needs.get(goal, ())
    for line in (line for goal in chosen for line in recipes.get(goal, ())):
        if is_dry and not re.match(r"[@-]*\+|.*\$[({]MAKE", line):
            continue
        known = line.lstrip("@-+ ").replace("$(RM)", "rm -f").replace("$(MAKE)", "make")
        yield re.sub(r"\$\([^()]*\)|\$\{[^{}]*\}|\$[@<^*?%]", "value", known).replace("$$", "$")
    yield from re.findall(r"\$\(shell\s+([^()]*)\)", text)


def _review_package(review: ReviewState, call: ProgramCall, source: str) -> None:
    """Review the scripts of package.json that a package manager would run."""
    operands = [plain(text) for text in call.operands("-C", "--prefix", "-w", "--workspace")]
    is_run = operands[0] in ("run", "run-script") and bool(operands[1:])
    name = {"t": "test", "i": "install", "ci": "install"}.get(operands[0], operands[is_run])
    text = review.places.read("package.json")
    try:
        scripts = json.loads(text or "{}").get("scripts", {})
        steps = [scripts.get(step) for step in (f"pre{name}", name, f"post{name}")]
    except (ValueError, AttributeError):
        return
    review.log.runs_changed_file |= text is not None and review.places.has_changed("package.json")
    for script in steps:
        if isinstance(script, str) and script:
            review.inner().script(script, f"{source}: {script}")
