"""Getting a model ready while the user still thinks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brim.shell.attaching import fit_blocks

if TYPE_CHECKING:
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
