"""Frameworks run in environments of their own, with few plugins."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
