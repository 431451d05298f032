"""Starts brim by forking a process that has already imported it.

Each start of an interpreter with the shell takes half a second of processor time for imports alone,
and the tests start hundreds. The fork server imports the modules once for each test process.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

COMMAND: Final = (sys.executable, "-m", "brim.cli")
"""The command line that `ForkedBrim` replaces."""
MODULES: Final = (
    *("brim.cli", "brim.shell.main", "brim.shell.render.reply_view", "brim.providers.client"),
    # Imported when they are first used
    *("encodings.idna", "genai_prices", "mcp", "rich._emoji_codes", "splintr"),
    *("prompt_toolkit.input.vt100", "prompt_toolkit.patch_stdout"),
)
"""What the fork server imports; missing modules are ignored."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([*MODULES])


class ForkedBrim:
    """A running brim, with the part of `subprocess.Popen` that terminals use.

    It has its own session; its standard streams are three files or the same terminal.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        streams: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        is_open, opened = _context.Pipe(duplex=False)
        self._process = _context.Process(
            target=_run, args=([*arguments], [*streams], dict(environment), folder, opened)
        )
        self._process.start()
        opened.close()
        with is_open:
            is_open.recv()  # until then, the caller must not close the terminal
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(COMMAND, timeout or 0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def run_forked(
    arguments: Sequence[str],
    *,
    given: str,
    environment: Mapping[str, str],
    folder: Path,
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    """Run brim without a terminal, with this input."""
    with TemporaryDirectory() as files:
        streams = [Path(files, name) for name in ("stdin", "stdout", "stderr")]
        for stream, text in zip(streams, (given, "", ""), strict=True):
            stream.write_text(text, encoding="utf-8")
        process = ForkedBrim(arguments, [*map(str, streams)], environment, folder)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        output, errors = (stream.read_text(encoding="utf-8") for stream in streams[1:])
    return subprocess.CompletedProcess([*arguments], code, output, errors)


def _run(
    arguments: list[str],
    streams: list[str],
    environment: dict[str, str],
    folder: Path,
    opened: Connection,
) -> None:
    """Become a session of its own with these streams and this environment, and run brim."""
    os.setsid()
    for standard, path in enumerate(streams):
        file = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(file, standard)
        os.close(file)
    with opened:
        opened.send(None)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as brim
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    from brim.cli import main

    main(arguments, prog_name="brim")
