"""Files and code that a command runs: scripts, makefiles, package scripts, inline code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from brim.shell.risk.calls import ProgramCall, command_table, language_of
from brim.shell.risk.places import LARGEST_READ
from brim.shell.risk.words import UnreadableError, Word, is_known, parse_command, plain

if TYPE_CHECKING:
    from brim.shell.risk.review import Review

_SUSPICIOUS: Final = re.compile(
    r"\b(?:rmtree|rmdir\w*|removedirs|remove|removeSync|unlink\w*|rm(?:Sync|_rf?|_f|dirSync)"
    r"|FileUtils|shutil|f?truncate\w*|system|popen\w*|Popen|subprocess|spawn\w*|posix|pty"
    r"|exec\w*|execute|eval|Eval|__import__|importlib|import_module|getattr|ctypes|cffi|__dict__"
    r"|vars|globals|attrgetter|methodcaller|builtins|__builtins__|runpy|pickle|marshal"
    r"|child_process|Kernel|Open3|chmod|chown|kill\w*|write_text|write_bytes|writeFile\w*"
    r"|file_put_contents|appendFile\w*|copyfile\w*|copytree|copyFile\w*|rename\w*|renames"
    r"|move|fork\w*|instance_eval|send|public_send|delete\w*|DELETE|constructor|Function"
    r"|to_csv|to_excel|to_parquet|savefig|extractall|urlretrieve|putenv|sendmail|reboot)\b"
    r"|os\.(?:replace|open|link|symlink|write|abort)|\.save\w*\("
    r"|open\s*\(?[^)\n]*,\s*(?:mode\s*=\s*)?['\"][^'\")]*[wax+]|\.open\(\s*['\"][wax]"
    r"|(?<!stdout)(?<!stderr)\.write\(|json\.dump\((?!.*sys\.std)"
    r"|(?i:\bdrop\s+(?:table|database|schema)\b)"
)
"""Code on a command line that can write, remove or run things."""
_REMOVES: Final = re.compile(
    r"\b(?:rmtree|rmdir\w*|removedirs|remove_tree|os\.remove|unlink\w*|removeSync|rmSync|rmdirSync"
    r"|rm_rf?|rm_f|Deno\.remove\w*|fs\.rm|file\.remove|os\.truncate|truncateSync"
    r"|delete-(?:file|directory))\b"
    r"|\.rm\(|\brm\s+-\w*[rf]|[\"']rm[\"']\s*,|\bmkfs|\bdd\s+if=|\bgit\s+(?:reset\s+--hard|clean)"
    r"|(?i:\bdrop\s+(?:table|database|schema)\b)|\bshutdown\b|\breboot\b|/dev/(?:sd|nvme|disk)"
)
"""Code in a file that removes things; less strict, because most programs write files."""
_TRUSTED: Final = re.compile(
    r"\s*(?:eval\s|source\s|\.\s).*(?:\$\(|<\(|`)\s*([\w./-]+)([^)`]*)[)`]"
)


def why_inline(call: ProgramCall) -> str | None:
    """Return why code on the command line, or piped into an interpreter, needs a yes."""
    language = language_of(call.name)
    if language is None or call.texts in (["--help"], ["--version"]):
        return None
    if language["language"] in ("perl", "ruby") and any(map(_edits_in_place, call.options())):
        return "edits files in place"
    return next(
        (why for text in _codes(call, language) if (why := _why_code(language, text))), None
    )


def _why_code(language: Mapping[str, str], text: str) -> str | None:
    if not is_known(text):
        return "runs code that is known only at run time"
    more = language.get("more", "")
    is_editor = language["language"] in ("vim", "emacs")
    found = None if is_editor else _SUSPICIOUS.search(plain(text))
    found = found or (re.search(more, plain(text), re.MULTILINE) if more else None)
    if found is None:
        return None
    name = language["language"]
    return f"its {name} code can write, remove or run things ({found[0].strip()[:40]})"


def _codes(call: ProgramCall, language: Mapping[str, str]) -> list[str]:
    flags = language.get("code", "").split()
    codes = call.values(*(flag for flag in flags if flag.startswith("-")))
    for word in flags:
        if not word.startswith("-") and word in call.texts:
            codes += call.texts[call.texts.index(word) + 1 :]
    name = language["language"]
    if name == "vim":
        return codes + [text[1:] for text in call.texts if text.startswith("+")]
    if name == "powershell" and not codes:
        return call.operands()
    reads = call.stdin is not None and name not in ("bun", "deno", "emacs")
    if codes or not reads or "-m" in call.texts:
        return codes
    files = [text for text in call.operands(*language.get("valued", "").split()) if text != "-"]
    return [] if files else [call.stdin or ""]


def _edits_in_place(option: str) -> bool:
    match = re.fullmatch(r"-[a-zA-Z0]*i([.~]\w+)?.*", option)
    is_other = option.startswith(("-e", "-E", "-I", "-M", "--"))
    return match is not None and not is_other and not match[1]


# Shells


def review_shell(review: Review, call: ProgramCall, source: str) -> None:
    """Review what a shell runs: `-c`, a file, or its input."""
    texts, at = [plain(text) for text in call.texts], 0
    while at < len(texts) and (texts[at][:1] in ("-", "+") or not is_known(texts[at][:1])):
        text = texts[at]
        if not is_known(text):
            review.log.add(source, "its options are known only at run time")
        if text.startswith("-") and not text.startswith("--") and "c" in text:
            rest = [t for t in texts[at + 1 :] if t != "--"]
            _review_inline(review, rest, call, source)
            return
        at += 2 if text in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file") else 1
        if text in ("-s", "--") and text == "-s":
            at = len(texts)
    operands = [word for word in call.words[at:] if word.text not in ("-", "--")]
    if operands and plain(operands[0].text) != "/dev/stdin":
        review_file(review, operands[0].text, call, source)
    elif call.stdin is not None:
        review.log.add(source, "runs the output of another command")


def _review_inline(review: Review, rest: list[str], call: ProgramCall, source: str) -> None:
    """Review `sh -c script`; what it is given can become commands in it."""
    if not rest:
        review.log.add(source, "what it runs is known only at run time")
        return
    script, *parameters = rest
    is_forwarded = re.search(r"""(?:^|[;&|(]|exec|eval|sudo|env)\s*["']?\$[{]?[@*0-9]""", script)
    if is_forwarded:
        words = parameters[1:] if re.search(r"\$[{]?[@*1-9]", script) else parameters
        words = parameters if "$0" in script else words
        review.inner().run([Word(word) for word in words], call.stdin, source)
    if script:
        review.inner().script(script, source)


# Files


def review_file(
    review: Review, word: str, call: ProgramCall, source: str, *, is_program: bool = False
) -> None:
    """Review a file that is run: it is as dangerous as its content."""
    places, name = review.places, plain(word)
    if not is_known(word):
        if not is_program:
            review.log.add(source, "runs a file that is known only at run time")
        return
    if is_program and re.match(r"/(usr/)?(local/)?s?bin/|/lib|/opt/", name):
        return
    text = places.read(word)
    if text is None:
        _review_missing(review, word, source, is_program=is_program)
        return
    if places.has_changed(word):
        review.log.runs_changed_file = True
        review.log.raise_to_other()
    language = _script_language(name, text, call)
    if len(text) > LARGEST_READ:
        review.log.raise_to_other()
    elif language is None:
        _review_script(review, text, name, source)
    elif found := _REMOVES.search(text):
        review.log.add(source, f"{name} can remove things ({found[0].strip()[:40]})")


def _review_missing(review: Review, word: str, source: str, *, is_program: bool) -> None:
    """A file that is not there yet: the same line may write it."""
    name = plain(word).rpartition("/")[2]
    is_mentioned = len(re.findall(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", review.whole)) > 1
    exists = review.places.exists(word)
    if plain(word).startswith(("/dev/", "/proc/")) or (is_mentioned and not exists):
        review.log.add(source, f"runs {name}, whose content is known only at run time")
    elif exists and not is_program:
        review.log.raise_to_other()
    if review.places.since is not None and review.places.has_changed(word):
        review.log.runs_changed_file = True


def _script_language(name: str, text: str, call: ProgramCall) -> str | None:
    """Return the language of a script; None for a shell's."""
    first = text.partition("\n")[0]
    if first.startswith("#!"):
        program = re.split(r"[/\s]", first.removeprefix("#!").strip())[-1]
        found = language_of(program)
        return found["language"] if found else None
    suffixes = {".py": "python", ".js": "node", ".mjs": "node", ".ts": "node", ".pl": "perl",
                ".rb": "ruby", ".php": "php", ".lua": "lua", ".r": "rscript"}  # fmt: skip
    own = language_of(call.name)
    named = next((lang for end, lang in suffixes.items() if name.lower().endswith(end)), None)
    return named or (own["language"] if own else None)


def _review_script(review: Review, text: str, name: str, source: str) -> None:
    try:
        parse_command(text.replace("\\\n", ""))
    except UnreadableError as error:
        review.log.raise_to_other()
        if review.places.since is None or review.log.runs_changed_file or _REMOVES.search(text):
            review.log.add(source, f"{name} cannot be assessed: {error}")
        return
    before = len(review.log.findings)
    review.inner().script(text, f"{source}: {name}")
    if len(review.log.findings) == before and review.places.has_changed(name):
        review.log.raise_to_other()


def review_program(review: Review, call: ProgramCall, source: str) -> None:
    """Review the files that a program runs: `source x`, `python c.py`, `make clean`, `npm test`."""
    if call.name in ("source", "."):
        _review_source(review, call, source)
    elif call.name in ("make", "gmake"):
        _review_make(review, call, source)
    elif call.name in ("npm", "yarn", "pnpm", "bun") and call.words:
        _review_package(review, call, source)
    elif call.name in ("awk", "gawk", "mawk", "nawk", "sed"):
        for name in call.values("-f", "--file"):
            review_file(review, name, ProgramCall("awk", (), review.places), source)
    elif (language := language_of(call.name)) is not None:
        operands = call.operands(*language.get("valued", "").split())
        has_code = call.has(*(f for f in language.get("code", "").split() if f.startswith("-")))
        if call.name in ("deno", "bun") and operands[:1] == ["run"]:
            operands = operands[1:]
        if operands and not has_code and operands[0] != "-":
            review_file(review, operands[0], call, source)
    elif call.name.endswith((".py", ".sh")) and not review.places.is_remote:
        review_file(review, call.name, call, source)


def _review_source(review: Review, call: ProgramCall, source: str) -> None:
    """Review a sourced file; its functions and variables stay in the shell."""
    if is_trusted_output(source):
        return
    for name in call.operands()[:1]:
        is_users = re.search(
            r"(^|/)(\.\w+rc|\.profile|\.bash_profile|activate|nvm\.sh|\.env)$", name
        )
        if not (is_users and not review.places.has_changed(name)):
            review_file(review, name, call, source)


def is_trusted_output(source: str) -> bool:
    """Return whether a line evaluates the output of a program that is meant for it."""
    match = _TRUSTED.match(source)
    if match is None:
        return False
    names = command_table().names
    program = match[1].rpartition("/")[2]
    is_completion = program in names["completers"] and "completion" in match[2]
    return (program in names["setters"] or is_completion) and not re.search(r"[;&|$`<>]", match[2])


def _review_make(review: Review, call: ProgramCall, source: str) -> None:
    """Review the recipes that make would run."""
    folder = plain(call.value("-C", "--directory") or ".")
    named = call.value("-f", "--file", "--makefile")
    if named in ("-", "/dev/stdin"):
        review.log.add(source, "runs rules from its input")
        return
    names = [named] if named else ["GNUmakefile", "makefile", "Makefile"]
    for name in names:
        path = f"{folder}/{plain(name)}"
        text = review.places.read(path)
        if text is None:
            continue
        if review.places.has_changed(path):
            review.log.runs_changed_file = True
        goals = [g for g in call.operands("-C", "-f", "-j", "-I", "-o", "-W") if "=" not in g]
        for line in make_recipes(text, [plain(goal) for goal in goals if not goal.isdigit()]):
            review.inner().script(line, f"{source}: {line}")
        return


_MAKE_RULE: Final = re.compile(r"^([^\s#=:][^=:#]*?)\s*::?(?!=)\s*([^=#;]*)(?:;(.*))?(?:#.*)?$")


def make_recipes(text: str, goals: list[str]) -> Iterator[str]:
    """Yield the recipe lines of these goals and of what they depend on."""
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
    first = next((target for target in recipes if not target.startswith(".")), None)
    waiting = goals or ([first] if first else [])
    is_clear = all(goal in recipes for goal in waiting) and "%" not in "".join(recipes)
    chosen = dict.fromkeys(waiting if is_clear else recipes)
    for goal in iter(list(chosen)):
        chosen.update(dict.fromkeys(_all_needs(goal, needs)))
    for goal in chosen:
        for line in recipes.get(goal, ()):
            yield _expand_make(line)
    yield from re.findall(r"\$\(shell\s+([^()]*)\)", text)


def _all_needs(goal: str, needs: Mapping[str, list[str]]) -> Iterator[str]:
    seen, waiting = {goal}, [goal]
    while waiting:
        for need in needs.get(waiting.pop(), ()):
            if need not in seen:
                seen.add(need)
                waiting.append(need)
                yield need


def _expand_make(line: str) -> str:
    """Return a recipe line as the shell sees it; make's variables become unknown words."""
    line = line.lstrip("@-+ ").replace("$(RM)", "rm -f").replace("$(MAKE)", "make")
    line = re.sub(r"\$\([^()]*\)|\$\{[^{}]*\}|\$[@<^*?%]", "make_value", line)
    return line.replace("$$", "$")


def _review_package(review: Review, call: ProgramCall, source: str) -> None:
    """Review the scripts of package.json that a package manager would run."""
    operands = [plain(text) for text in call.operands("-C", "--prefix", "-w", "--workspace")]
    if not operands or review.depth > 6:
        return
    aliases = {"t": "test", "tst": "test"}
    name = (
        operands[1] if operands[0] in ("run", "run-script", "rum") and operands[1:] else operands[0]
    )
    name = aliases.get(name, name)
    text = review.places.read("package.json")
    if text is None:
        return
    if review.places.has_changed("package.json"):
        review.log.runs_changed_file = True
    try:
        scripts = json.loads(text).get("scripts", {})
    except (ValueError, AttributeError):
        return
    if name in ("install", "i", "ci", "add"):
        steps = ["preinstall", "install", "postinstall", "prepare"]
    else:
        steps = [f"pre{name}", name, f"post{name}"]
    for step in steps:
        script = scripts.get(step) if isinstance(scripts, dict) else None
        if isinstance(script, str) and script:
            review.inner().script(script, f"{source}: {script}")
