"""DSPy with the real framework."""

import pytest

from tests.support.frameworks import CALLS, DONE, FILES, WINDOW, dspy, serve
from tests.support.pages import run_page


def test_the_loop_is_completed_and_the_trajectory_is_whole() -> None:
    with serve(replies=dspy.REPLIES) as server:
        outcome = dspy.run_loop({"window": WINDOW, "reply": 500})
    assert outcome == (DONE, [*FILES[:-1], "Completed."])
    assert not server.rejected
    assert len(server.requests) == CALLS + 1


def test_without_brim_the_server_rejects_requests() -> None:
    with serve(replies=dspy.REPLIES) as server:
        dspy.run_loop()  # DSPy shortens its trajectory after each error
    assert server.rejected


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(replies=dspy.REPLIES) as server:
        run_page("dspy", server, monkeypatch)
    assert len(server.requests) == CALLS + 1
    assert not server.rejected
