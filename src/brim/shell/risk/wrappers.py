"""Programs that run other programs, and how to find what they run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from brim.shell.risk import effects
from brim.shell.risk.calls import CommandRule, ProgramCall, command_table
from brim.shell.risk.words import UNKNOWN, Word, is_known, plain

InnerCommand = tuple["Sequence[Word] | str", Sequence[str]]
"""A command that a program runs, as words or as a script, and how it is run."""
ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)


def find_inner_commands(call: ProgramCall) -> Iterator[InnerCommand]:
    """Yield the commands that a program runs."""
    special = _SPECIAL.get(call.name)
    if special is not None:
        is_quiet = call.name.startswith("fd") or effects.is_read_only(call)
        yield from ((found, ("quiet",) * is_quiet) for found in special(call))
    if call.name == "command" and re.match(r"-p?[vV]", "".join(call.texts[:1])):
        return
    if call.name.startswith("py") and "-m" in call.texts:
        yield call.words[call.texts.index("-m") + 1 :], ()
    for wrapper in command_table().wrappers.get(call.name, ()):
        rest = _after_subcommand(call, wrapper)
        if rest is not None:
            yield from ((found, wrapper.exceptions) for found in _unwrap(rest, wrapper))
    yield from ((found, ()) for found in _guess_inner(call))


def _guess_inner(call: ProgramCall) -> Iterator[Sequence[Word] | str]:
    """Yield the arguments of an unknown program that look like a command."""
    table = command_table()
    known = (table.read_only, table.names["any"], table.names["readers"], effects.RULES)
    wrappers = table.wrappers.get(call.name, ())
    if any(call.name in names for names in known) or any(not w.subcommands for w in wrappers):
        return
    for at, text in enumerate(map(plain, call.texts)):
        first, space, _ = text.partition(" ")
        if first.rpartition("/")[2] in table.names["guessed"]:
            yield text if space else call.words[at:]
            return


def _after_subcommand(call: ProgramCall, wrapper: CommandRule) -> ProgramCall | None:
    """Return the call after the subcommand of a wrapper; None if it has another one."""
    if not wrapper.subcommands:
        return call
    texts = map(plain, call.texts[:8])
    at = next((n for n, text in enumerate(texts) if text in wrapper.subcommands[0]), None)
    return None if at is None else call.after(at + 1)


def _unwrap(call: ProgramCall, wrapper: CommandRule) -> Iterator[Sequence[Word] | str]:
    traits = wrapper.exceptions
    scripts = [option[1:] for option in wrapper.options if option.startswith("=")]
    named = call.values(*scripts) if scripts else []
    yield from map(plain, named)
    at = _start(call, frozenset(option.lstrip("=") for option in wrapper.options), traits)
    rest = [] if "alone" in traits else call.words[at:]
    if not all(is_known(text) for text in call.texts[:at] if text.startswith("-")):
        yield UNKNOWN
    if "each" in traits:
        yield from (plain(word.text) for word in rest)
    elif rest and "joins" in traits:
        yield " ".join(plain(word.text) for word in rest)
    elif rest and "appends" in traits:
        mark = plain(call.value("-I", "-i", "--replace") or "") or "{}"
        mark = mark if is_known(mark) else "{}"
        yield [*(Word(word.text.replace(mark, UNKNOWN)) for word in rest), Word(UNKNOWN)]
    elif rest:
        yield rest
    elif "reads" in traits and call.stdin is not None and not named:
        yield call.stdin


def _start(call: ProgramCall, valued: frozenset[str], traits: Sequence[str]) -> int:
    """Return the position of the inner command."""
    skips = next((int(trait[4:]) for trait in traits if trait.startswith("skip")), 0)
    texts, at, has_options = call.texts, 0, True
    assigns = call.name in ("env", "sudo", "doas", "time", "then", "do", "else", "!")
    while at < len(texts):
        text = plain(texts[at])
        if text == "--" and has_options:
            at, has_options = at + 1, False
        elif has_options and text.startswith("-") and (text != "-" or call.name in ("su", "env")):
            has_optional = "appends" in traits and re.match(r"-\w*[iel]", text)  # -i, -e and -l
            at += 2 if _takes_value(text, valued) and not has_optional else 1
        elif assigns and ASSIGNMENT.match(text):
            at += 1
        elif skips:
            at, skips = at + 1, skips - 1
        else:
            break
    return at


def _takes_value(text: str, valued: frozenset[str]) -> bool:
    """Return whether an option takes the next argument: by name, abbreviated, or as in `-iu`."""
    if text.startswith("--"):
        return any(name.startswith(text) for name in valued)
    letters = text[1:]
    at = next((n for n, letter in enumerate(letters) if f"-{letter}" in valued), len(letters))
    return at == len(letters) - 1 or text in valued


def _find(call: ProgramCall) -> Iterator[Sequence[Word]]:
    """Yield each `-exec` of a find, up to its `;` or `+`."""
    current: list[Word] | None = None
    for word in call.words:
        text = plain(word.text)
        if text in command_table().names["execs"]:
            current = []
        elif current is not None and text in (";", "+") and current:
            yield current
            current = None
        elif current is not None:
            current.append(Word(text.replace("{}", UNKNOWN)))
    if current:
        yield [*current, *([Word(UNKNOWN)] if call.name.startswith("fd") else [])]


_SPECIAL: Final[dict[str, Callable[[ProgramCall], Iterator[Sequence[Word] | str]]]] = {
    **dict.fromkeys(("find", "gfind", "fd", "fdfind"), _find),
    "alias": lambda call: (plain(text).partition("=")[2] for text in call.texts if "=" in text),
}
