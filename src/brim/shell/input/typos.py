"""Corrects a mistyped command before a model is asked about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from brim.shell.input.classify import Classification

_MAX_WORDS: Final = 6
_ENDING: Final = re.compile(r".*\w[?!.]")
_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{1,15}")


def suggest_command(
    line: str, names: Iterable[str], classify: Callable[[str], Classification]
) -> str | None:
    """Return the command that a line is one slip away from; None if it is rather a sentence."""
    words = line.split()
    if not words or len(words) > _MAX_WORDS or not _NAME.fullmatch(words[0]):
        return None
    if _ENDING.fullmatch(words[-1]):
        return None
    typed, rest = words[0], line.strip()[len(words[0]) :]
    for name in sorted(names, key=lambda name: (not _is_swapped(typed, name), name)):
        is_near = _is_swapped(typed, name) or (rest and _is_one_letter_off(typed, name))
        if is_near and classify(name + rest).kind == "command":
            return name + rest
    return None


def _is_swapped(typed: str, name: str) -> bool:
    """Whether two neighbouring letters have changed places."""
    differ = [at for at, (a, b) in enumerate(zip(typed, name, strict=False)) if a != b]
    if len(typed) != len(name) or len(differ) != 2 or differ[1] != differ[0] + 1:
        return False
    first, second = differ
    return (typed[first], typed[second]) == (name[second], name[first])


def _is_one_letter_off(typed: str, name: str) -> bool:
    """Whether one letter is missing, added or another one."""
    short, long = sorted((typed, name), key=len)
    if len(short) < 3 or len(long) - len(short) > 1:
        return False
    at = next(
        (at for at, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short)
    )
    skip = len(long) == len(short)
    return typed != name and short[at + skip :] == long[at + 1 :]
