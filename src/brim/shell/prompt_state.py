"""What the prompt shows while the user types: the kind of the line, and the status line.

Both are computed without waiting for anything; slow work runs in the background.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prompt_toolkit.formatted_text import StyleAndTextTuples

from brim.config import home_as_tilde
from brim.shell.input.classification import BLANK, Classification
from brim.shell.input.program_names import ProgramNames
from brim.shell.render.status import TEMPLATE, Status, parse_template, render_status
from brim.shell.state import Shell
from brim.shell.terminal.dialects import SH_NAMES

if TYPE_CHECKING:
    from brim.shell.input.simple_commands import KnownNames
    from brim.tokens import Counter

BUILTINS: Final = SH_NAMES | {"dirs", "history", "popd", "pushd", "source", "time"}
"""Builtins to assume until the user's shell has listed its own."""


class PromptState:
    """Classifies typed lines, and fills in the status line."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._programs = ProgramNames(lambda: shell.environment.get("PATH", ""))
        self._names = BUILTINS
        self._last: tuple[str, Classification] | None = "", BLANK
        self._size: tuple[object, tuple[int, int, bool]] | None = None
        self._has_counted = False
        self._template = shell.config.shell.status or TEMPLATE
        parse_template(self._template)  # report a wrong template at the start

    @cached_property
    def _known(self) -> KnownNames:
        from brim.shell import commands
        from brim.shell.input.simple_commands import KnownNames

        return KnownNames(
            lambda name: name in self._names or self._programs.is_command(name),
            self._exists,
            frozenset(commands.names()),
        )

    def refresh_names(self) -> None:
        """Start asking the user's shell what it can run; a command may have changed that."""

        def apply(names: frozenset[str]) -> None:
            self._names = names or BUILTINS
            self._last = None

        self._shell.background.start(self._shell.terminal.names, apply, needed=False)
        self._programs.refresh()

    def count_ahead(self) -> None:
        """Start counting the conversation; the status line shows no sizes until then."""

        def apply(_outcome: object) -> None:
            self._has_counted = True

        driver = self._shell.driver
        counted = driver.profile.counter(), driver.system_text, driver.copy_turns()
        self._shell.background.start(partial(count_conversation, *counted), apply, apply)

    def classify(self, line: str) -> Classification:
        """Classify a line; the last result is cached, because each key press asks several times."""
        from brim.shell.input.classify import classify

        if self._last is None or self._last[0] != line:
            self._last = line, classify(line, self._known)
        return self._last[1]

    def names(self) -> frozenset[str]:
        """Return the names of everything that can be run."""
        return self._programs() | self._names

    def suggest(self, line: str) -> str | None:
        """Return the command that the user probably meant; None for a sentence."""
        from brim.shell.input.classify import suggest_command
        from brim.shell.risk.calls import load_rules

        kinds = ("read_only", "destructive", "wrappers")
        common = {*self._names, *(name for kind in kinds for name in load_rules(kind))}
        return suggest_command(line, common & self.names(), self.classify)

    def _exists(self, path: str) -> bool:
        try:
            return (self._shell.folder / Path(path).expanduser()).exists()
        except (OSError, RuntimeError, ValueError):
            return False

    def status(self, width: int) -> StyleAndTextTuples:
        """Return the status line, at most `width` columns wide."""
        self._shell.background.poll()
        return render_status(self._template, self._values(), width)

    def _values(self) -> Status:
        shell = self._shell
        total = shell.session.ledger.total
        budget = shell.budget if self._has_counted else None
        used, limit, is_exact = self._measure() if budget else (0, 0, False)
        return Status(
            model=shell.models.current,
            used=used,
            limit=limit if budget else None,
            window=budget.window if budget else None,
            is_exact=is_exact,
            cost=total.cost if total.calls else None,
            at_least=total.unknown,
            route=shell.route.class_ or shell.route.model or "",
            cwd=str(home_as_tilde(shell.folder)),
            session=shell.conversation.name,
            goal=shell.goal or "",
        )

    def _measure(self) -> tuple[int, int, bool]:
        """Return the size of the next request, its limit, and whether the size is exact."""
        driver = self._shell.driver
        state = driver, driver.revision
        if self._size is None or self._size[0] != state:
            plan, waiting = driver.preview(), driver.joined_outputs
            exact = (plan.exact or plan.is_server_counted) and not waiting
            used = plan.size + (driver.count_text(waiting) if waiting else 0)
            self._size = state, (used, plan.limit, exact)
        return self._size[1]


def count_conversation(counter: Counter, system: str, turns: Iterable[Mapping[str, Any]]) -> None:
    """Count the conversation, so that later counts are fast.

    The first count loads the vocabulary; the counter caches all results.
    """
    from brim.wire import openai_chat

    counter.text(system)
    for place, turn in enumerate(turns):
        counter.message(openai_chat.read_message(turn, place))
