"""The HTTP server: where it listens, its limits, and how it stops."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from brim.errors import InputError
from brim.gateway.server import open_listener

ROOT = Path(__file__).parent.parent.parent
LONG = 60.0
"""A timeout in seconds that no test reaches."""


class Running:
    """The stub server in its own process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        url = urlsplit(self.says())
        assert url.hostname is not None
        assert url.port is not None
        self.address = url.hostname, url.port

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self) -> None:
        """Let all streams finish."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def stop(self, by: signal.Signals) -> None:
        self.process.send_signal(by)

    def end(self) -> tuple[int, str]:
        """Return its exit code and its standard error."""
        _, errors = self.process.communicate(timeout=LONG)
        return self.process.returncode, errors

    @contextmanager
    def send(self, path: str) -> Iterator[HTTPResponse]:
        with closing(HTTPConnection(*self.address, timeout=LONG)) as client:
            client.request("GET", path)
            with client.getresponse() as answer:
                yield answer

    def silent(self) -> socket.socket:
        """Return a connection without a request."""
        return socket.create_connection(self.address, timeout=LONG)


@contextmanager
def run_server(stop_seconds: float = LONG, head_seconds: float = LONG) -> Iterator[Running]:
    command = [sys.executable, "-m", "tests.support.gateway.stub"]
    with subprocess.Popen(
        [*command, str(stop_seconds), str(head_seconds)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


def all_of(connection: socket.socket) -> bytes:
    """Return all data until the server disconnects."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            data += piece
    return data


# Stopping


def test_a_response_has_a_date_and_no_server_header() -> None:
    with run_server() as server, server.send("/") as answer:
        assert answer.read() == b"ended\n"
        assert answer.headers["date"]
        assert "server" not in answer.headers


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_after_the_running_streams(by: signal.Signals) -> None:
    with run_server() as server, server.silent() as idle, server.send("/stream") as answer:
        assert answer.readline() == b"begun\n"
        server.stop(by)
        assert server.says() == "stopping"
        assert idle.recv(1) == b""  # idle connections are closed
        with pytest.raises(ConnectionRefusedError):
            server.silent()
        server.tell()
        assert answer.read() == b"ended\n"
        assert server.end() == (0, "")


def test_a_stream_that_exceeds_the_stop_timeout_is_cancelled() -> None:
    with run_server(stop_seconds=0.5) as server, server.send("/stream") as answer:
        assert answer.readline() == b"begun\n"
        server.stop(signal.SIGTERM)
        with pytest.raises(IncompleteRead):
            answer.read()
        code, errors = server.end()
        assert code == 0
        assert "Traceback" not in errors


def test_a_second_ctrl_c_stops_it_immediately() -> None:
    with run_server() as server, server.send("/stream") as answer:
        assert answer.readline() == b"begun\n"
        server.stop(signal.SIGINT)
        assert server.says() == "stopping"
        server.stop(signal.SIGINT)
        with pytest.raises(IncompleteRead):
            answer.read()
        code, errors = server.end()
        assert code == 130
        assert "Traceback" not in errors


# Limits


def test_headers_that_are_too_large_are_rejected() -> None:
    with run_server() as server:
        with server.silent() as client:
            client.sendall(b"GET / HTTP/1.1\r\n" + b"X-Long: %s\r\n" % (b"x" * 1_000) * 70)
            with suppress(OSError):
                client.sendall(b"\r\n")
            assert all_of(client).startswith(b"HTTP/1.1 400 ")
        with server.send("/") as answer:
            assert answer.status == 200


def test_endless_headers_are_rejected() -> None:
    with run_server() as server, server.silent() as client:
        client.sendall(b"GET / HTTP/1.1\r\nX-Long: ")
        with suppress(OSError):
            while True:  # it is rejected long before memory is full
                client.sendall(b"x" * 10_000)
        with server.send("/") as answer:
            assert answer.status == 200


@pytest.mark.parametrize("sent", [b"", b"GET / HT"])
def test_a_client_that_sends_no_request_is_disconnected(sent: bytes) -> None:
    with run_server(head_seconds=0.2) as server, server.send("/stream") as answer:
        assert answer.readline() == b"begun\n"
        with server.silent() as client:
            client.sendall(sent)
            assert all_of(client) == b""
        server.tell()
        assert answer.read() == b"ended\n"


# Listening


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_it_listens_on_loopback_addresses(host: str) -> None:
    with open_listener(host, 0) as listener:
        assert listener.getsockname()[0].startswith("127.")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "2001:db8::1"])
def test_other_addresses_need_keys(host: str) -> None:
    message = f"{re.escape(host)} is reachable from other machines, .* `brim keys add NAME`"
    with pytest.raises(InputError, match=message):
        open_listener(host, 0)


def test_with_keys_it_listens_on_all_addresses() -> None:
    with open_listener("0.0.0.0", 0, has_keys=True) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_an_unknown_host_is_reported() -> None:
    with pytest.raises(InputError, match=r"^Unknown host: no such host\."):
        open_listener("no such host", 0)


def test_a_port_in_use_is_reported() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(InputError, match=rf"^Cannot listen on port {port} of 127\.0\.0\.1: "):
            open_listener("127.0.0.1", port)
