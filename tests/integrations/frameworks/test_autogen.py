"""AutoGen with the real framework."""

import pytest

from tests.support.frameworks import autogen, check_failure, check_loop, serve
from tests.support.pages import run_page


def test_without_brim_the_loop_fails() -> None:
    check_failure(autogen)


def test_the_loop_is_completed_and_the_history_is_whole() -> None:
    check_loop(autogen)


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        run_page("autogen", server, monkeypatch)
    assert not server.rejected
