"""One program with its arguments, and the table of what programs do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise

from brim.data import load_table
from brim.shell.risk.places import Places
from brim.shell.risk.syntax import SOLID, UNKNOWN, Word, is_known, is_pattern, plain
from brim.shell.risk.table import language_of, load_names, load_patterns


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """One program with its arguments and its standard input."""

    name: str
    words: tuple[Word, ...]
    places: Places
    stdin: str | None = None
    """The standard input as far as it is known; None for the terminal."""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]

    @property
    def is_wrapper(self) -> bool:
        """Whether it always runs another program."""
        return any(not rule.subcommands for rule in load_rules("wrappers").get(self.name, ()))

    @property
    def is_dynamic(self) -> bool:
        """Whether an argument may become an option, or several arguments, at run time."""
        starts = re.compile(rf"{UNKNOWN}|-[^=]*{UNKNOWN}|({SOLID}{UNKNOWN})+-")
        is_ordered = self.name in load_names()["ordered"]
        texts = self.texts[: next(self.operand_positions(), 99) + 1 if is_ordered else None]
        at = texts.index("--") if self.name in load_names()["terminated"] and "--" in texts else 0
        texts = texts[:at] if at and load_patterns()["bare"].fullmatch(texts[at - 1]) else texts
        if any(starts.match(text) or (text[:1] == "-" and is_pattern(text)) for text in texts):
            return True
        return any(is_pattern(text[:1]) for text in texts) and self.places.has_option_file()

    def options(self) -> Iterator[str]:
        """Yield every argument that begins with a dash, also after `--`, which can be a value."""
        yield from (plain(text) for text in self.texts if re.match(r"-(?!-?$)", text))

    def has(self, *flags: str) -> bool:
        """Return whether an option (also joined, abbreviated) or a word is given; `*`: any end."""
        options, words = list(self.options()), [plain(text) for text in self.texts]
        return any(
            any(_is_flag(option, flag) for option in options)
            if flag.startswith("-") and flag != "--"
            else any(fnmatchcase(word, flag) for word in words)
            for flag in flags
        )

    def is_guarded(self, *flags: str) -> bool:
        """Return whether an option is certainly given: not as the value of another, or in it."""
        letters = {flag[1] for flag in flags if re.fullmatch(r"-[a-zA-Z]", flag)}
        is_ordered = self.name in load_names()["ordered"]
        joined, valued = (load_patterns()[key] for key in ("joined", "valued"))
        for last, option in pairwise(["", *map(plain, self.texts)]):
            if option == "--" or (is_ordered and last and last[0] != "-"):
                return False
            if option.startswith("-") and valued.fullmatch(last):
                continue
            names = (option, option.partition("=")[0])
            others = "".join(letter for letter in option if letter not in letters)
            if others != option and joined.fullmatch(others):
                return True
            if any(fnmatchcase(name, flag) for name in names for flag in flags):
                return True
        return False

    def value(self, *flags: str) -> str | None:
        """Return the value of the last of these options."""
        return next(reversed(self.values(*flags)), None)

    def values(self, *flags: str) -> list[str]:
        """Return the values of these options: `-o x`, `-ox`, `--out x`, `--out=x`."""
        found, texts = [], self.texts
        for at, text in enumerate(texts):
            following = texts[at + 1] if at + 1 < len(texts) else UNKNOWN
            values = (_value(plain(text), flag, following) for flag in flags)
            found += [value for value in values if value is not None]
        return found

    def operands(self, *valued: str) -> list[str]:
        """Return the arguments that are neither options nor values of the `valued` options."""
        return [self.texts[at] for at in self.operand_positions(*valued)]

    def files(self, *valued: str) -> list[str]:
        """Return the operands with the files that patterns stand for."""
        return [name for word in self.operands(*valued) for name in self.places.matches(word)]

    def operand_positions(self, *valued: str) -> Iterator[int]:
        has_options, is_value = True, False
        for at, text in enumerate(map(plain, self.texts)):
            if is_value:
                is_value = False
            elif has_options and text.startswith("-") and text != "-":
                has_options = text != "--"
                is_value = has_options and self._takes_value(text, valued)
            else:
                yield at

    def _takes_value(self, text: str, valued: Sequence[str]) -> bool:
        """Return whether an option takes the next one: by name, abbreviated, or as in `-iu`."""
        if text.startswith("--"):
            return any(name.startswith(text) for name in valued)
        letters = re.match(r"-\w*[iel]", text) if self.name.endswith("xargs") else None
        first = next((letter for letter in text[1:] if f"-{letter}" in valued), None)
        return text in valued or (letters is None and first == text[-1])

    def after(self, count: int) -> ProgramCall:
        """Return the same program without its first arguments."""
        return ProgramCall(self.name, self.words[count:], self.places, self.stdin)

    def subcommand_positions(self) -> Iterator[tuple[int, bool]]:
        """Yield where the subcommand may be, and whether it certainly is, not an option's value."""
        valued, switches = (load_names(kind).get(self.name, ()) for kind in ("valued", "switches"))
        before, is_sure = "", True
        for at, text in enumerate(self.texts):
            if before in valued:
                before = ""
            elif text.startswith("-"):
                before = text
            else:
                is_last = before.partition("=")[0] in ("", *valued, *switches)
                is_sure = is_sure and is_last
                yield at, is_sure
                if is_last:
                    return
                before = ""


def _is_flag(option: str, flag: str) -> bool:
    if flag.endswith("*"):
        return option.startswith(flag[:-1])
    if option.startswith("--") != flag.startswith("--"):
        return False
    if flag.startswith("--"):
        name = option.partition("=")[0]
        return flag in (option, name) or ("=" not in flag and flag.startswith(name))
    return option == flag or (len(flag) == 2 and flag[1] in option[1:].partition("=")[0])


def _value(text: str, flag: str, following: str) -> str | None:
    if text == flag:
        return following
    if flag.startswith("--"):
        name, equals, value = text.partition("=")
        return value if equals and _is_flag(name, flag) else None
    is_joined = len(flag) == 2 and re.match(rf"-(?!-).*{re.escape(flag[1])}", text, re.DOTALL)
    return (text[1:].partition(flag[1])[2] or following) if is_joined else None


@dataclass(frozen=True, slots=True)
class CommandRule:
    """One rule of the table: `programs subcommands =operands : options ! exceptions`."""

    programs: tuple[str, ...]
    subcommands: tuple[tuple[str, ...], ...] = ()
    most_operands: int | None = None
    options: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    group: str = ""
    """The key under which the table has the rule: why a command is destructive."""

    @classmethod
    def parse(cls, text: str, group: str) -> CommandRule:
        head, _, exceptions = text.partition(" ! ")
        head, _, options = f"{head} ".partition(" : ")
        names, *steps = head.split()
        most = int(steps.pop()[1:]) if steps and re.fullmatch(r"=\d", steps[-1]) else None
        return cls(
            tuple(names.split(",")), tuple(tuple(step.split("|")) for step in steps), most,
            tuple(options.split()), tuple(exceptions.split()), group,
        )  # fmt: skip

    def find(self, call: ProgramCall, *, is_certain: bool) -> ProgramCall | None:
        """Return the call without its subcommands; None if they are, or may be, others."""
        for step in self.subcommands:
            for at, is_sure in call.subcommand_positions():
                text = plain(call.texts[at])
                is_seen = (is_sure and SOLID not in text) or not is_certain
                if is_seen and any(fnmatchcase(text, name) for name in step):
                    call = call.after(at + 1)
                    break
            else:
                return None
        return call

    def applies(self, call: ProgramCall, *, is_certain: bool = False) -> bool:
        """Return whether the rule may apply to a call, or certainly does."""
        rest = self.find(call, is_certain=is_certain)
        if rest is None:
            return False
        given, refused = (rest.is_guarded, call.has) if is_certain else (rest.has, call.is_guarded)
        files = rest.files(*load_names("valued").get(call.name, ()))
        is_open = is_certain and any(t.startswith((SOLID, UNKNOWN)) for t in call.texts)
        has_words = is_open and any(name[0] not in "-@" for name in self.exceptions)
        if self.most_operands is not None and (is_open or len(files) > self.most_operands):
            return False
        is_given = not self.options or given(*self.options)
        return is_given and not has_words and not refused(*self.exceptions)


@cache
def load_rules(kind: str) -> Mapping[str, Sequence[CommandRule]]:
    """Return the rules of one kind by program: read_only, destructive, outputs or wrappers."""
    found: dict[str, list[CommandRule]] = {}
    for group, texts in load_table("commands")[kind].items():
        for rule in (CommandRule.parse(text, group) for text in texts):
            for name in rule.programs:
                found.setdefault(name, []).append(rule)
    return found


def find_code(call: ProgramCall, language: Mapping[str, str]) -> list[str]:
    """Return the code that an interpreter runs, if it is not in a file."""
    traits, flags = language.get("traits", ""), language["code"].split()
    codes = call.values(*flags)
    operands = call.operands(*language.get("valued", "").split())
    if not codes and "first" in traits and not call.has(*language.get("files", "").split()):
        return operands[: None if "all" in traits else 1]
    has_file = any(text != "-" for text in operands)
    if codes or has_file or call.stdin is None or "no_input" in traits or "-m" in call.texts:
        return codes
    return [call.stdin]


def why_by_table(call: ProgramCall) -> str | None:
    """Return why the table calls this destructive; None if it does not."""
    table = load_rules("destructive")
    if is_help(call):
        return None
    pattern = re.split(r"[^a-z]", call.name)[0] + "*"  # mkfs* for mkfs.ext4
    rules = (*table.get(call.name, ()), *table.get(pattern, ()))
    whys = (rule.group for rule in rules if rule.applies(call))
    return next(whys, None) or _why_verb(call)


def _why_verb(call: ProgramCall) -> str | None:
    """Return a reason if a destructive verb is among the first arguments of an unknown program."""
    names, patterns = load_names(), load_patterns()
    is_cloud = call.name in names["clouds"]
    if not is_cloud and (call.name in names["readers"] or call.is_wrapper):
        return None
    pattern, count = (patterns["cloud_verb"], 6) if is_cloud else (patterns["verb"], 2)
    operands = [plain(text).lower() for text in call.operands()[:count]]
    verbs = filter(pattern.fullmatch, (*operands, *call.options()))
    return next((f"runs {call.name} {verb}" for verb in verbs), None)


def is_help(call: ProgramCall) -> bool:
    """Return whether the call only prints help or a version."""
    *words, last = call.texts or [""]
    are_names = all(re.fullmatch(r"\w[\w-]*", word) for word in words)
    names = load_names()
    runs = call.name in names["runners"] or language_of(call.name) is not None
    is_plain = call.name not in names["loads"] and not (words and runs)
    return is_plain and last in ("--help", "--version") and len(words) <= 2 and are_names


def is_read_only_by_table(call: ProgramCall) -> bool:
    """Return whether the table calls this read-only."""
    names, rules = load_names(), load_rules("read_only").get(call.name, ())
    if call.places.has_setting(load_names("settings").get(call.name, ())):
        return False
    is_listed = any(call.name in names[key] for key in ("any", "tools", "readers"))
    if call.name in ("test", "[") and call.has("-v", "-R"):
        return all(re.fullmatch(r"\w+|-\w|\]", text) for text in call.texts)
    if call.name in names["any"] or (is_help(call) and (is_listed or rules)):
        return True
    if call.is_dynamic:
        return False
    language = language_of(call.name)
    if language is not None and "reads" in language:
        are_plain = all(re.fullmatch(language["options"], option) for option in call.options())
        codes = [plain(code) for code in find_code(call, language)]
        return are_plain and bool(codes) and all(re.fullmatch(language["reads"], c) for c in codes)
    query = load_patterns("queries").get(call.name)
    inputs = [call.stdin] if query and is_known(call.stdin or UNKNOWN) else []
    texts = "\0".join(plain(t) for t in [*call.texts, *inputs] if t and not t.startswith("-"))
    is_asked = query is None or bool(query.fullmatch(texts))
    return is_asked and any(rule.applies(call, is_certain=True) for rule in rules)
