"""Where the facts about a model come from and are kept: its server, and the calibration store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brim.fitting.calibration import UNCALIBRATED, Calibration
from brim.providers.server_info import MIN_REPLY_TOKENS, SELF_HOSTED

if TYPE_CHECKING:
    from brim.fitting.profile import ModelProfile
    from brim.providers.server_info import ServerInfo, Window
    from brim.storage.calibration_store import CalibrationStore


class ProfileSource:
    """Completes the profiles of one server's models, and saves their calibrations."""

    def __init__(self, server: ServerInfo, store: CalibrationStore) -> None:
        self.server = server
        self.store = store
        self._saved: dict[str, Calibration] = {}
        """The calibration of each model, as it was last read or written."""

    def load(self, model: str) -> Calibration:
        """Return the saved calibration of a model."""
        if model not in self._saved:
            self._saved[model] = self._read(model)
        return self._saved[model]

    def save(self, model: str, calibration: Calibration) -> Calibration:
        """Save a calibration that has changed, and return it as saved.

        If another process has recorded a smaller window meanwhile, that one is kept.
        """
        saved = self._saved.get(model, UNCALIBRATED)
        if calibration == saved:
            return calibration
        if (found := self._read(model)) != saved:
            calibration = calibration.with_smaller_window(found)
        self._saved[model] = calibration
        self.store.save(self._url, model, calibration.to_dict())
        return calibration

    def _read(self, model: str) -> Calibration:
        return Calibration.from_dict(self.store.load(self._url, model))

    @property
    def _url(self) -> str:
        return self.server.transport.endpoint.url


def apply_server_info(profile: ModelProfile, window: Window) -> ModelProfile:
    """Return the profile with what its server says: its window, and whether it is self-hosted."""
    return profile.with_server(
        window.tokens,
        least_reply=MIN_REPLY_TOKENS.get(window.kind, 0),
        is_local=window.kind in SELF_HOSTED,
    )
