"""The question before something runs.

A destructive action needs the whole word "yes", typed by the user; no rule or option replaces it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from brim.shell.state import Shell

Answer = Literal["run", "edit", "skip", "explain", "always", "stop", "interrupt"]

YES: Final = "yes"
ANSWERS: Final[dict[str, Answer]] = {
    **dict.fromkeys(("y", YES, "r", "run"), "run"),
    **dict.fromkeys(("e", "edit"), "edit"),
    **dict.fromkeys(("", "n", "no", "s", "skip"), "skip"),
    **dict.fromkeys(("x", "explain"), "explain"),
    **dict.fromkeys(("a", "always"), "always"),
    **dict.fromkeys(("q", "quit", "stop"), "stop"),
}
"""What the user can type, and what it means."""


def confirm(
    shell: Shell, question: str, *, offered: Collection[Answer], is_destructive: bool
) -> Answer:
    """Return the user's answer, one of those `offered`; repeat the question until it is valid."""
    if shell.options.is_script:
        shell.screen.notice("skipped: a script cannot confirm it")
        return "skip"
    while True:
        try:
            typed = shell.screen.ask(question).lower()
        except KeyboardInterrupt:
            return "interrupt"
        answer = ANSWERS.get(typed)
        if answer is None or answer not in offered:
            shell.screen.notice("type one of the letters in brackets; Enter skips")
        elif is_destructive and answer == "run" and typed != YES:
            shell.screen.notice('this is destructive: type the whole word "yes" to run it')
        else:
            return answer
