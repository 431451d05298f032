"""Getting a model ready while the user still thinks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brim.shell.attaching import fit_blocks
from brim.wire import openai_chat

if TYPE_CHECKING:
    from brim.session import Session
    from brim.shell.state import Shell
    from brim.target import Target


def warm(shell: Shell) -> None:
    """Open the connection to the model, and let the session know what its server says."""
    name = shell.name

    def know(target: Target) -> None:
        session = shell.session
        if session.target.name == name and session.target.server_window is None:
            session.target = replace(target, calibration=session.target.calibration)
            fit_blocks(shell)

    shell.background.start(lambda: shell.models.found_out(name), know)


def counted(session: Session) -> None:
    """Count all that was said, so that nobody has to wait for that later; from any thread.

    The first count loads the vocabulary, and all of them are remembered.
    """
    counter = session.target.counter()
    counter.text(session.system_text())
    for place, turn in enumerate(session.since(0)):
        counter.message(openai_chat.read(turn, place))
