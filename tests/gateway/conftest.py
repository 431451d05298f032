from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what this test's gateways learn, and for nobody else's."""
    folder = tmp_path / "state"
    monkeypatch.setenv("BRIM_STATE", str(folder))
    return folder
