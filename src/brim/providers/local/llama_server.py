"""LocalServer: starts, queries and ends the child process that runs llama.cpp."""

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
from typing import IO, Any, Final, Self

from brim.errors import InputError, LocalModelError
from brim.providers.local.weights import default_model

CHILD: Final = Path(__file__).with_name("child.py")
MAGIC: Final = b"GGUF"
INSTALL: Final = "pip install 'brim[local]'"
CACHE_MIB: Final = 512
"""Memory for the prompts of earlier conversations; llama.cpp's default is 8 GiB."""
GRACE: Final = 1.0
"""Seconds for the child to exit by itself."""
ERRORS_ONLY, VERBOSE = 1, 3


class LocalServer:
    """A llama.cpp server on a free loopback port, which ends with this process.

    Every method blocks (`start` for about a second): in async code, use `asyncio.to_thread`.
    Ctrl-C in the terminal does not reach the child; it ends on `close`, or when this process ends
    for any reason.
    """

    url: str
    """The base URL for OpenAI clients: `http://127.0.0.1:PORT/v1`."""
    key: str
    """The API key, required for all paths but `/health`; empty if none is required."""
    model: str
    window: int
    """Tokens of one slot; more than requested if llama.cpp rounded up, fewer if the model does not
    support as many."""
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

        `window` is for each of the `slots`, the concurrent requests. `template` is
        the text of a Jinja chat template in place of the model's own. Without a `key` a random one
        is made, so that other users of the machine are kept out; an empty one accepts every client.
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
            "verbosity": ERRORS_ONLY if log is None else VERBOSE,
        }
        with tempfile.TemporaryFile() if log is None else Path(log).open("w+b") as log_file:
            process = _spawn(log_file)
            try:
                return cls(process, _address(process, settings, log_file, timeout), key)
            except BaseException:
                _end(process, os.getpid())
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the child is running; it may have crashed."""
        return self._process.poll() is None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the child to end, and return whether it has."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return not self.alive

    def close(self) -> None:
        """End the child immediately, even during a response; repeated calls do nothing."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self.alive else ", ended"
        return f"<LocalServer {self.model} at {self.url}, {self.window:,} tokens{state}>"


def require_llama() -> None:
    """Raise LocalModelError if llama.cpp is not installed."""
    if find_spec("xllamacpp") is None:
        raise LocalModelError(f"The embedded model needs llama.cpp. Run: {INSTALL}")


def _choose_model(model: str | os.PathLike[str] | None) -> Path:
    path = default_model() if model is None else Path(model)
    if path is None:
        raise LocalModelError(
            "No local model is installed. Download one with `brim local`, or name a GGUF file."
        )
    return path


def _gguf(path: Path) -> Path:
    """Return the absolute path of a GGUF file; llama.cpp would not say what is wrong with it."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if magic != MAGIC:
        raise InputError(f"Not a GGUF file: {path}.")
    return path.absolute()


def _threads() -> int:
    """Return half of the logical cores, usually the number of physical ones.

    With a thread per core, the threads wait for each other whenever another process runs, and
    generation can become a hundred times slower.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // 2)


def _spawn(log_file: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the child in a session of its own, which the terminal's Ctrl-C does not reach."""
    return subprocess.Popen(
        [sys.executable, "-P", str(CHILD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log_file,
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


def _address(
    process: subprocess.Popen[bytes],
    settings: dict[str, Any],
    log_file: IO[bytes],
    timeout: float,
) -> str:
    """Send the settings to the child and return the address that it listens on."""
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
    reply = json.loads(line) if line else {}
    if "address" in reply:
        return str(reply["address"])
    if not reply and monotonic() - start >= timeout:
        raise LocalModelError(f"Loading {settings['path']} took longer than {timeout:g} s.")
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)  # until then, its log may be incomplete
    reason = _reason(log_file) or reply.get("error") or "the process ended"
    raise LocalModelError(f"llama.cpp failed to start with {settings['path']}: {reason}")


def _reason(log_file: IO[bytes]) -> str:
    """Return the first errors in llama.cpp's log; later ones are consequences."""
    log_file.seek(0)
    lines = log_file.read().decode(errors="replace").splitlines()
    errors = [" ".join(error.split()) for line in lines if (error := line.partition(" E ")[2])]
    return "; ".join(dict.fromkeys((errors or lines[-1:])[:2]))


def _props(address: str, key: str) -> Any:
    """Return the server's properties, without a proxy."""
    connection = HTTPConnection(address.removeprefix("http://"), timeout=30)
    try:
        connection.request("GET", "/props", headers={"Authorization": f"Bearer {key}"})
        with connection.getresponse() as response:
            return json.load(response)
    except (OSError, HTTPException, ValueError) as error:
        raise LocalModelError(f"llama.cpp started but does not respond: {error}") from error
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked process exits; the server belongs to its parent
        return
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
