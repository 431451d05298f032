"""Work in the background while the user types."""

from __future__ import annotations

import threading

import pytest

from brim.errors import InputError
from brim.shell.background import Background


def test_results_are_applied_in_the_thread_that_polls() -> None:
    background, taken = Background(), list[object]()
    background.start(lambda: 1, lambda one: taken.append((one, threading.current_thread())))
    background.settle()
    assert taken == [(1, threading.current_thread())]
    background.settle()
    assert len(taken) == 1


def test_polling_does_not_wait_for_unfinished_jobs() -> None:
    background, taken, go_on = Background(), list[str](), threading.Event()

    def slow() -> str:
        assert go_on.wait(60)
        return "slow"

    background.start(slow, taken.append)
    background.poll()
    assert taken == []
    go_on.set()
    background.settle()
    assert taken == ["slow"]


def test_settling_waits_only_for_needed_jobs() -> None:
    background, taken, go_on = Background(), list[str](), threading.Event()
    background.start(lambda: str(go_on.wait(60)), taken.append, needed=False)
    background.start(lambda: "needed", taken.append)
    background.settle()
    assert taken == ["needed"]
    go_on.set()


def test_errors_are_passed_to_their_handler() -> None:
    background, errors, done = Background(), list[Exception](), threading.Event()
    background.on_done = done.set

    def wrong() -> None:
        raise InputError("no")

    background.start(wrong, lambda _nothing: pytest.fail("there is no result"), errors.append)
    assert done.wait(60)
    background.settle()
    assert [str(error) for error in errors] == ["no"]
