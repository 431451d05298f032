"""CrewAI with the real framework."""

from typing import Any

import pytest

from tests.support.frameworks import check_failure, check_loop, crewai, serve
from tests.support.pages import run_page


def test_without_brim_the_loop_fails() -> None:
    check_failure(crewai)


def test_the_loop_is_completed_and_the_history_is_whole() -> None:
    check_loop(crewai)


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        names: Any = run_page("crewai", server, monkeypatch)
        names["hook"].unregister()
    assert not server.rejected
