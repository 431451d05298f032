"""Starting, finding and ending the child process that runs llama.cpp."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import weakref
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from time import monotonic
from types import TracebackType
from typing import IO, Any, Final, Self

from brim.errors import InputError, LocalModelError
from brim.providers.local.weights import default_model

CHILD: Final = Path(__file__).with_name("child.py")
MAGIC: Final = b"GGUF"
INSTALL: Final = "pip install 'brim[local]'"
CACHE_MIB: Final = 512
"""Memory for the prompts of earlier conversations; llama.cpp would take 8 GiB."""
GRACE: Final = 1.0
"""Seconds that the child gets to leave by itself."""
ERRORS_ONLY, TALKATIVE = 1, 3


class LocalServer:
    """A llama.cpp server of our own on a free loopback port, which ends with this process.

    Everything here blocks (`start` for about a second): from async code call it through
    `asyncio.to_thread`. Ctrl-C in the terminal does not reach the child; it ends on `close`, at
    the latest when this process ends, however that happens.
    """

    url: str
    """Where an OpenAI client goes: `http://127.0.0.1:PORT/v1`."""
    key: str
    """The API key, without which only `/health` answers; empty: none is asked for."""
    model: str
    window: int
    """Tokens that one slot holds; more than was asked for where llama.cpp rounded it up, less
    where the model was not made for so many."""
    slots: int

    def __init__(self, process: subprocess.Popen[bytes], address: str, key: str) -> None:
        self._process = process
        self._end = weakref.finalize(self, _end, process, os.getpid())
        self.url = f"{address}/v1"
        self.key = key
        props = _props(address, key)
        self.model = props["model_alias"]
        self.window = props["default_generation_settings"]["n_ctx"]
        self.slots = props["total_slots"]

    @classmethod
    def start(
        cls,
        model: str | os.PathLike[str] | None = None,
        *,
        window: int = 4096,
        slots: int = 1,
        threads: int | None = None,
        template: str | None = None,
        key: str | None = None,
        port: int = 0,
        log: str | os.PathLike[str] | None = None,
        timeout: float = 120,
    ) -> Self:
        """Load a GGUF file, or the default model, and return when it answers.

        `window` is for each of the `slots`, the requests that are worked on at once. `template` is
        the text of a Jinja chat template in place of the model's own. Without a `key` a random one
        is made, so that other users of the machine are kept out; an empty one lets everybody in.
        `log` is a file to which llama.cpp writes what it does.
        """
        require_llama()
        for name, number in (("window", window), ("slots", slots), ("threads", threads)):
            if number is not None and number < 1:
                raise InputError(f"{name} must be at least 1, not {number}")
        if template is not None and not template.strip():
            raise InputError("the chat template is empty")
        path = _gguf(_choose_model(model))
        key = secrets.token_urlsafe(24) if key is None else key
        settings = {
            "path": str(path),
            "name": path.stem,
            "window": window,
            "slots": slots,
            "threads": threads or _threads(),
            "template": template,
            "key": key,
            "port": port,
            "cache": CACHE_MIB,
            "verbosity": ERRORS_ONLY if log is None else TALKATIVE,
        }
        with tempfile.TemporaryFile() if log is None else Path(log).open("w+b") as complaints:
            process = _spawn(complaints)
            try:
                return cls(process, _address(process, settings, complaints, timeout), key)
            except BaseException:
                _end(process, os.getpid())
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the child still runs; it may have crashed."""
        return self._process.poll() is None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the child to end, for so many seconds; whether it has."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return not self.alive

    def close(self) -> None:
        """End the child at once, also in the middle of an answer; closing again does nothing."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self.alive else ", ended"
        return f"<LocalServer {self.model} at {self.url}, {self.window:,} tokens{state}>"


def require_llama() -> None:
    """Say what to install where llama.cpp is missing."""
    if find_spec("xllamacpp") is None:
        raise LocalModelError(f"the embedded model needs llama.cpp: {INSTALL}")


def _choose_model(model: str | os.PathLike[str] | None) -> Path:
    path = default_model() if model is None else Path(model)
    if path is None:
        raise LocalModelError(
            "no model is here yet: `brim local` gets a small one, or name a GGUF file of yours"
        )
    return path


def _gguf(path: Path) -> Path:
    """The absolute path of a file that is one of llama.cpp's; it would not say what is wrong."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if magic != MAGIC:
        raise InputError(f"{path} is not a GGUF file")
    return path.absolute()


def _threads() -> int:
    """Half of what the system calls cores, mostly the real ones.

    With as many threads as cores they wait for each other whenever anything else runs, and
    generation can become a hundred times slower.
    """
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (known or 1) // 2)


def _spawn(complaints: IO[bytes]) -> subprocess.Popen[bytes]:
    """The child in a session of its own, where the terminal's Ctrl-C does not reach it."""
    return subprocess.Popen(
        [sys.executable, "-P", str(CHILD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=complaints,
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


def _address(
    process: subprocess.Popen[bytes],
    settings: dict[str, Any],
    complaints: IO[bytes],
    timeout: float,
) -> str:
    """Tell the child what to do, and wait for the address that it listens at."""
    assert process.stdin is not None
    assert process.stdout is not None
    start = monotonic()
    alarm = Timer(timeout, process.kill)
    alarm.daemon = True
    alarm.start()
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
    finally:
        alarm.cancel()
        process.stdout.close()
    said = json.loads(line) if line else {}
    if "address" in said:
        return str(said["address"])
    if not said and monotonic() - start >= timeout:
        raise LocalModelError(f"{settings['path']} was not loaded within {timeout:g} seconds")
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)  # until then it may not have written why
    reason = _reason(complaints) or said.get("error") or "the process ended"
    raise LocalModelError(f"llama.cpp could not start with {settings['path']}: {reason}")


def _reason(complaints: IO[bytes]) -> str:
    """The first errors that llama.cpp wrote; those after them follow from these."""
    complaints.seek(0)
    lines = complaints.read().decode(errors="replace").splitlines()
    errors = [" ".join(error.split()) for line in lines if (error := line.partition(" E ")[2])]
    return "; ".join(dict.fromkeys((errors or lines[-1:])[:2]))


def _props(address: str, key: str) -> Any:
    """What the server says of itself. No proxy is asked the way to our own loopback port."""
    connection = HTTPConnection(address.removeprefix("http://"), timeout=30)
    try:
        connection.request("GET", "/props", headers={"Authorization": f"Bearer {key}"})
        with connection.getresponse() as response:
            return json.load(response)
    except (OSError, HTTPException, ValueError) as error:
        raise LocalModelError(f"llama.cpp started and does not answer: {error}") from error
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a fork of ours leaves; the server is not its to end
        return
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
