"""Answers questions of the shell, and reads its recorded events."""

from __future__ import annotations

from typing import Any, Final

from brim.storage import ConversationStore, Database
from tests.support.shell.driver import Home, Typist

COMMAND: Final = "[q]uit:"
"""The end of the question about a command."""
DESTRUCTIVE: Final = "destructive. type yes to run it, or [e]dit, [s]kip, e[x]plain, [q]uit:"


def asks(shell: Typist, question: str) -> None:
    """Wait for this question."""
    shell.wait(lambda: shell.terminal.before_cursor.rstrip().endswith(question), question)


def answer(shell: Typist, question: str, words: str) -> None:
    asks(shell, question)
    shell.terminal.line(words)


def events(home: Home, kind: str) -> list[dict[str, Any]]:
    """Return the recorded events of one kind, newest conversation first."""
    database = Database(home.state)
    try:
        log = ConversationStore(database)
        return [
            dict(event.data)
            for saved in log.list()
            for event in log.events(saved.id)
            if event.kind == kind
        ]
    finally:
        database.close()


def read_screen(shell: Typist) -> str:
    """Return the text on the screen."""
    return "\n".join(shell.terminal.screen)
