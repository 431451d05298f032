from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.office import Office


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)
