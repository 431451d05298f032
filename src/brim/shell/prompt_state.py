"""Reader: what a typed line is, and what the status line says, both without waiting for anybody."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brim.config import home_as_tilde
from brim.shell import commands
from brim.shell.input.classify import KnownNames, classify
from brim.shell.input.completer import ProgramNames
from brim.shell.preload import count_ahead
from brim.shell.render.status import TEMPLATE, Status, render_status

if TYPE_CHECKING:
    from prompt_toolkit.formatted_text import StyleAndTextTuples

    from brim.shell.input.classify import Classification
    from brim.shell.state import Shell

BUILTINS: Final = frozenset(
    {".", ":", "[", "alias", "bg", "cd", "command", "dirs", "echo", "eval", "exec", "exit"}
    | {"export", "false", "fg", "history", "jobs", "kill", "popd", "printf", "pushd", "pwd"}
    | {"read", "set", "source", "test", "time", "trap", "true", "type", "umask", "unset", "wait"}
)
"""What a shell can run by itself, until the user's own has said."""


class PromptState:
    """Reads lines for a shell, and its state for the status line."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._programs = ProgramNames(lambda: shell.environment.get("PATH", ""))
        self._names = BUILTINS
        self._known = KnownNames(self._is_command, self._exists, frozenset(commands.names()))
        self._last: tuple[str, Classification] | None = None
        self._measured: tuple[object, tuple[int, int, bool]] | None = None
        self._has_counted = False
        self._template = shell.config.shell.status or TEMPLATE
        render_status(self._template, Status(), 80)  # a wrong template is told at the start

    def learn_names(self) -> None:
        """Begin to ask the user's shell what it can run; a command may have changed that."""

        def know(names: frozenset[str]) -> None:
            self._names = names or BUILTINS
            self._last = None

        self._shell.background.start(self._shell.terminal.names, know, needed=False)
        self._programs.refresh()

    def count_ahead(self) -> None:
        """Begin to count what was said; the status line says nothing of sizes until then."""

        def know(_outcome: object) -> None:
            self._has_counted = True

        driver = self._shell.driver
        given = driver.profile.counter(), driver.system_text, driver.copy_turns()
        self._shell.background.start(partial(count_ahead, *given), know, know)

    def decide(self, line: str) -> Classification:
        """What a line is; asked several times for the same one while it is typed."""
        if self._last is None or self._last[0] != line:
            self._last = line, classify(line, self._known)
        return self._last[1]

    def names(self) -> frozenset[str]:
        """Everything that can be run by its name."""
        return self._programs() | self._names

    def _is_command(self, name: str) -> bool:
        return name in self._names or self._programs.is_command(name)

    def _exists(self, path: str) -> bool:
        try:
            return (self._shell.folder / Path(path).expanduser()).exists()
        except (OSError, RuntimeError, ValueError):
            return False

    def status(self, width: int) -> StyleAndTextTuples:
        """The status line; nobody is asked for it."""
        self._shell.background.poll()
        return render_status(self._template, self._values(), width)

    def _values(self) -> Status:
        shell = self._shell
        total = shell.session.ledger.total
        budget = shell.budget if self._has_counted else None
        used, limit, is_exact = self._size() if budget else (0, 0, False)
        return Status(
            model=shell.name,
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

    def _size(self) -> tuple[int, int, bool]:
        """What would be sent and may be; reckoned anew when something has changed."""
        driver = self._shell.driver
        state = driver, driver.revision
        if self._measured is None or self._measured[0] != state:
            plan, waiting = driver.preview(), driver.joined_outputs
            exact = (plan.exact or plan.server_tokens is not None) and not waiting
            used = plan.size + (driver.count_text(waiting) if waiting else 0)
            self._measured = state, (used, plan.limit, exact)
        return self._measured[1]
