"""Getting a model ready while the user still thinks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brim.shell.context_blocks import fit_blocks
from brim.wire import openai_chat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from brim.fitting.profile import ModelProfile
    from brim.shell.state import Shell
    from brim.tokens import Counter


def preload_model(shell: Shell) -> None:
    """Open the connection to the model, and let the session know what its server says."""
    name = shell.name

    def know(target: ModelProfile) -> None:
        driver = shell.driver
        if driver.profile.name == name and driver.profile.server_window is None:
            driver.profile = replace(target, calibration=driver.profile.calibration)
            fit_blocks(shell)

    shell.background.start(lambda: shell.models.found_out(name), know)


def count_ahead(counter: Counter, system: str, turns: Iterable[Mapping[str, Any]]) -> None:
    """Count what was said, so that nobody has to wait for that later.

    The first count loads the vocabulary, and all of them are remembered.
    """
    counter.text(system)
    for place, turn in enumerate(turns):
        counter.message(openai_chat.read_message(turn, place))
