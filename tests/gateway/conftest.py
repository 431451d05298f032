from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.testing import ScriptedServer
from tests.support.gateway.process import SECRET, Running, config_of, run_gateway


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private state folder for the gateways of this test."""
    folder = tmp_path / "state"
    monkeypatch.setenv("BRIM_STATE", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="module")
def shared_state(
    tmp_path_factory: pytest.TempPathFactory,
    one_authority: None,  # noqa: ARG001
) -> Iterator[None]:
    """A state folder for the gateways that a module shares."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIM_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedServer]:
    with ScriptedServer("Hello.", window=4_000) as provider:
        yield provider


@pytest.fixture(scope="module")
def served(upstream: ScriptedServer) -> Iterator[Running]:
    """A gateway in front of that upstream, shared by a module."""
    with run_gateway(config_of(upstream.url, key_env="KEY"), {"KEY": SECRET}) as served:
        yield served
