from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from brim.api import memory

# The same examples every time, so that a red build is the change's own fault;
# HYPOTHESIS_PROFILE=thorough looks for new ones.
settings.register_profile(
    "brim",
    deadline=None,
    max_examples=120,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", parent=settings.get_profile("brim"), max_examples=3_000, derandomize=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "brim"))


@pytest.fixture(autouse=True)
def _forget() -> None:
    """No test leans on what another one made brim remember."""
    memory.clear()
