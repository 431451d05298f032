from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from brim.providers.sync import Portal


async def add(one: int, two: int) -> int:
    await asyncio.sleep(0)
    return one + two


async def numbers(count: int, log: list[str]) -> AsyncIterator[int]:
    try:
        for number in range(count):
            await asyncio.sleep(0)
            yield number
    finally:
        log.append("closed")


def portals() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "brim-portal"]


def test_run_returns_the_result_or_raises_the_error() -> None:
    async def failing() -> None:
        raise KeyError("x")

    with Portal() as portal:
        assert portal.run(add(1, 2)) == 3
        with pytest.raises(KeyError, match="x"):
            portal.run(failing())
        assert portal.run(add(3, 4)) == 7
        assert len(portals()) == 1
    assert portals() == []


def test_it_works_inside_a_running_loop() -> None:
    async def work(portal: Portal) -> int:
        return portal.run(add(1, 2))

    with Portal() as portal:
        assert asyncio.run(work(portal)) == 3


def test_a_coroutine_cannot_call_its_own_portal() -> None:
    with Portal() as portal:

        async def inside() -> int:
            return portal.run(add(1, 2))

        with pytest.raises(RuntimeError, match="Use await"):
            portal.run(inside())


def test_several_threads_share_a_portal() -> None:
    results: list[int] = []
    with Portal() as portal:
        threads = [
            threading.Thread(target=lambda n=n: results.append(portal.run(add(n, n))))
            for n in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(portals()) == 1
    assert sorted(results) == [2 * n for n in range(20)]


def test_an_async_iterator_is_iterated() -> None:
    log: list[str] = []
    with Portal() as portal:
        assert list(portal.iterate(numbers(5, log))) == [0, 1, 2, 3, 4]
        assert log == ["closed"]


def test_leaving_a_loop_early_closes_the_iterator() -> None:
    log: list[str] = []
    with Portal() as portal:
        for number in portal.iterate(numbers(10**9, log)):
            if number == 3:
                break
        gc.collect()
        assert log == ["closed"]


def test_closing_cancels_tasks_and_a_later_use_starts_a_new_thread() -> None:
    ended = threading.Event()
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.sleep(1_000)
        finally:
            ended.set()

    def wait() -> None:
        with pytest.raises(BaseException):  # noqa: B017, PT011 - cancelled, from another thread
            portal.run(endless())

    portal = Portal()
    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(5)
    portal.close()
    assert ended.is_set()
    thread.join(5)
    portal.close()
    assert portal.run(add(1, 1)) == 2
    portal.close()


def test_a_garbage_collected_portal_ends_its_thread() -> None:
    portal = Portal()
    assert portal.run(add(1, 1)) == 2
    del portal
    gc.collect()
    assert portals() == []


CTRL_C = """
import asyncio, os, signal, threading
from brim.providers.sync import Portal

async def endless():
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        await asyncio.sleep(1000)
    finally:
        print("hung up", flush=True)

portal = Portal()
try:
    portal.run(endless())
except KeyboardInterrupt:
    print("interrupted", flush=True)

async def soon():
    return "still works"

print(portal.run(soon()), flush=True)
"""


def test_ctrl_c_cancels_the_task_and_keeps_the_portal() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.splitlines() == ["hung up", "interrupted", "still works"]
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 20


def _in_child(portal: Portal) -> None:
    os._exit(0 if portal.run(add(1, 2)) == 3 else 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_gets_its_own_thread() -> None:
    with Portal() as portal:
        assert portal.run(add(1, 2)) == 3
        child = multiprocessing.get_context("fork").Process(target=_in_child, args=(portal,))
        child.start()
        child.join(20)
        assert child.exitcode == 0
        child.close()
        assert portal.run(add(1, 2)) == 3


def test_an_interrupt_while_a_task_starts_cancels_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            time.sleep(0.2)  # so that it runs, and does not wait, when the interrupt comes
            await asyncio.sleep(60)
        finally:
            ended.append("ended")

    with Portal() as portal:
        loop = portal._get_loop()
        hand_over = loop.call_soon_threadsafe

        def interrupted(callback: Callable[[], object], *_: object, **__: object) -> None:
            monkeypatch.undo()
            hand_over(callback)
            time.sleep(0.05)
            raise KeyboardInterrupt

        monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            portal.run(work())
        assert ended == ["ended"]
