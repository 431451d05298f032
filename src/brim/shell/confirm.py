"""The one question before something is done: whoever is asked, and what counts as a yes.

What destroys something needs the whole word, typed; nobody else's word and no rule stands for it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from brim.shell.state import Shell

Answer = Literal["run", "edit", "skip", "explain", "always", "stop", "interrupt"]

YES: Final = "yes"
WORDS: Final[dict[str, Answer]] = {
    **dict.fromkeys(("y", YES, "r", "run"), "run"),
    **dict.fromkeys(("e", "edit"), "edit"),
    **dict.fromkeys(("", "n", "no", "s", "skip"), "skip"),
    **dict.fromkeys(("x", "explain"), "explain"),
    **dict.fromkeys(("a", "always"), "always"),
    **dict.fromkeys(("q", "quit", "stop"), "stop"),
}
"""What can be typed, and what it means."""


def confirm(
    shell: Shell, question: str, *, offered: Collection[Answer], is_destructive: bool
) -> Answer:
    """What the user wants done, out of what is `offered`; what is no answer is asked again."""
    if shell.is_script:
        shell.screen.notice("nobody is there to say yes, so it was skipped")
        return "skip"
    while True:
        try:
            said = shell.screen.ask(question).lower()
        except KeyboardInterrupt:
            return "interrupt"
        answer = WORDS.get(said)
        if answer is None or answer not in offered:
            shell.screen.notice("one of the letters in brackets, please; Enter skips it")
        elif is_destructive and answer == "run" and said != YES:
            shell.screen.notice("it is destructive: only the whole word yes runs it")
        else:
            return answer
