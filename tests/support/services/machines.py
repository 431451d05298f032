"""Gateways, load balancers and a model server as processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from tests.support.services.upstream import GATEWAY

DEPLOY: Final = Path(__file__).parents[3] / "deploy"
PATIENCE: Final = 30.0
NAMES: Final = ("one", "two")
"""Names of the gateways in deploy/haproxy.cfg."""


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port: int = taken.getsockname()[1]
        return port


class Replica:
    """A `brim serve` process; a restart keeps its port."""

    def __init__(self, name: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.name = name
        self.port = free_port()
        self._log = folder / f"{name}.log"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("BRIM_")},
            "BRIM_STATE": str(folder / name),
            "XDG_CONFIG_HOME": str(folder),
            "BRIM_UPSTREAMS__MODELS__HEADERS": f'{{ {GATEWAY} = "{name}" }}',
            **settings,
        }
        self._process: subprocess.Popen[str] | None = None

    def answered(self, head: str | None) -> bool:
        """Return whether a load balancer names it: HAProxy by name, nginx by its address, after
        the ones that it tried before."""
        return head is not None and head.split(", ")[-1] in (self.name, f"127.0.0.1:{self.port}")

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def start(self) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "brim.cli", "serve", "--port", str(self.port), "--json"],
                env=self._environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._log.read_text(encoding="utf-8")
        assert json.loads(line)["address"].endswith(f":{self.port}")

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self._gone()

    def stop(self) -> int:
        """Stop it with SIGTERM, like systemd and Docker; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._gone()

    def _gone(self) -> int:
        with self.process as process:
            return process.wait(PATIENCE)


@contextmanager
def replicas(folder: Path, settings: Mapping[str, str]) -> Iterator[list[Replica]]:
    """Two gateways with the same settings, started concurrently."""
    made = [Replica(name, folder, settings) for name in NAMES]
    with ExitStack() as stack:
        for each in made:
            each.start()
            stack.callback(each.kill)
        for each in made:
            each.wait_until_ready()
        yield made


@contextmanager
def model_server() -> Iterator[str]:
    """The address of `tests.support.services.upstream`."""
    command = [sys.executable, "-m", "tests.support.services.upstream"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def balancer(program: str, folder: Path, gateways: Sequence[Replica]) -> Iterator[str]:
    """The address of HAProxy or nginx with the files of deploy/ except for the ports."""
    port = free_port()
    filled_in = {"haproxy": _haproxy, "nginx": _nginx}[Path(program).name]
    arguments = filled_in(folder, port, gateways)
    log = folder / "balancer.log"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen([program, *arguments], stdout=output, stderr=output)
    with process:
        try:
            assert _is_up(port, process), log.read_text(encoding="utf-8")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _haproxy(folder: Path, port: int, gateways: Sequence[Replica]) -> list[str]:
    file = folder / "haproxy.cfg"
    here = {"bind :8080": f"bind 127.0.0.1:{port}"}
    file.write_text(_write_deploy_file("haproxy.cfg", here, gateways), encoding="utf-8")
    return ["-db", "-f", str(file)]


def _nginx(folder: Path, port: int, gateways: Sequence[Replica]) -> list[str]:
    """The file is for conf.d; add the minimal surrounding configuration."""
    here = {"listen 8080;": f"listen 127.0.0.1:{port};"}
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind}; "
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    around = folder / "nginx.conf"
    around.write_text(
        f"daemon off; pid {folder}/nginx.pid; events {{}}\n"
        f"http {{ access_log off; {temporary}\n"
        f"{_write_deploy_file('nginx.conf', here, gateways)}}}\n",
        encoding="utf-8",
    )
    return ["-p", str(folder), "-c", str(around), "-e", "stderr"]


def _write_deploy_file(name: str, here: Mapping[str, str], gateways: Sequence[Replica]) -> str:
    """A file of deploy/ with replaced values."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    places = {f"brim-{n}:8484": f"127.0.0.1:{each.port}" for n, each in enumerate(gateways, 1)}
    for there, meant in {**here, **places}.items():
        assert there in text, f"deploy/{name} has no {there}"
        text = text.replace(there, meant)
    return text


def _is_up(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the port accepts connections: neither program announces it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return True
    return False
