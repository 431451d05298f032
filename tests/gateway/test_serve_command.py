"""`brim serve` as real processes with a real server behind them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from brim.cli import main
from brim.config import Config, UpstreamConfig
from brim.gateway import preflight
from brim.gateway.preflight import StartupMessage
from brim.gateway.server import open_listener
from brim.providers.local import LocalServer
from brim.testing import ScriptedServer, TextReply
from tests.support.gateway.accounts import create_secret, only_row, read_cap_usage, store_file
from tests.support.gateway.requests import wait_until

BRIM = [sys.executable, "-m", "brim.cli"]
UPSTREAM = ["--upstream", "http://127.0.0.1:9"]
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder without configuration."""
    for name in [name for name in os.environ if name.startswith(("BRIM_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("BRIM_STATE", str(tmp_path / "state"))
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def brim_serve(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["serve", *arguments])


@contextmanager
def start_process(command: Sequence[str], **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A process with combined output."""
    with subprocess.Popen(
        command,
        env={**os.environ, **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_with(process: subprocess.Popen[str], word: str) -> str:
    """Return the first line with this text."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return line
    raise AssertionError("".join(lines))


def wait_for(port: int, process: subprocess.Popen[str]) -> None:
    """Wait until the port accepts connections; granian announces it too early."""
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            return
    assert process.stdout is not None
    raise AssertionError(process.stdout.read())


def refuses(port: int | None) -> bool:
    """Return whether the port is closed."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) != 0


@contextmanager
def client_of(address: str) -> Iterator[HTTPConnection]:
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE)) as client:
        yield client


def send_request(client: HTTPConnection, llama: LocalServer, **options: object) -> None:
    """Send a request with the client's own key."""
    body = {"model": llama.model, "messages": [{"role": "user", "content": "Count to ten!"}]}
    heads = {"Authorization": f"Bearer {llama.key}", "Content-Type": "application/json"}
    client.request("POST", "/v1/chat/completions", json.dumps({**body, **options}), heads)


# Errors at startup


def test_without_an_upstream_all_options_are_listed() -> None:
    ended = brim_serve()
    assert ended.exit_code == 2
    assert all(way in ended.stderr for way in ("--upstream", "[upstreams.NAME]", "--local"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--upstream", "nonsense"], "--upstream: upstreams.default.endpoint must be a URL"),
        ([*UPSTREAM, "--format", "opnai"], "--format: upstreams.default.format must be one of"),
        ([*UPSTREAM, "--key-env", "UNSET"], "UNSET, the key of upstreams.default, is not set"),
        ([*UPSTREAM, "--host", "0.0.0.0"], "0.0.0.0 is reachable from other machines"),
        ([*UPSTREAM, "--policy", "stedy"], "--policy: gateway.policy must be one of steady, "),
        ([*UPSTREAM, "--port", "65536"], "--port: gateway.port must be a port from 0 to 65535"),
        (["--window", "100"], "--window, --reply and --price need --upstream"),
        ([*UPSTREAM, "--price", "3"], "'3' is not two numbers such as 0.25/2"),
        ([*UPSTREAM, "--price", "-1/2"], "'-1/2' is not two numbers such as 0.25/2"),
        (["--local", *UPSTREAM], "--local can only be combined with --window, --reply and --price"),
    ],
)
def test_invalid_flags_are_reported(arguments: list[str], message: str) -> None:
    ended = brim_serve(*arguments)
    assert ended.exit_code == 2
    assert message in ended.stderr


@pytest.mark.parametrize(
    ("write", "message"),
    [
        ("PRAGMA user_version = 99", "Upgrade brim."),
        ("PRAGMA user_version = 0", "restore a backup"),
    ],
)
def test_an_unusable_store_is_reported_in_one_line(write: str, message: str) -> None:
    create_secret("anna")
    with closing(sqlite3.connect(store_file())) as base:
        base.execute(write)
    ended = brim_serve(*UPSTREAM, "--port", "0")
    assert ended.exit_code == 4
    assert ended.stderr.startswith(f"brim: Cannot use {store_file()}: ")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_an_invalid_setting_is_reported_with_its_line(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = place / "my.toml"
    file.write_text("[upstreams.openai]\nendpont = 'http://h'\n", encoding="utf-8")
    monkeypatch.setenv("BRIM_CONFIG", str(file))
    message = "upstreams.openai.endpont is not a known key. Did you mean upstreams.openai.endpoint?"
    assert brim_serve().stderr == f"brim: {file}:2: {message}\n"


def test_a_port_in_use_is_reported() -> None:
    with open_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        ended = brim_serve(*UPSTREAM, "--port", str(port))
    assert ended.exit_code == 2
    assert f"brim: Cannot listen on port {port} of 127.0.0.1: " in ended.stderr


def test_a_missing_package_is_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "orjson", None)
    ended = brim_serve(*UPSTREAM)
    assert ended.exit_code == 2
    assert (
        ended.stderr
        == "brim: The gateway needs missing packages: orjson. Run: pip install 'brim[gateway]'\n"
    )


# The startup message


def describe_startup(upstreams: Mapping[str, UpstreamConfig]) -> str:
    return "\n".join(StartupMessage("http://127.0.0.1:8484", upstreams).lines(None))


def test_the_startup_message_lists_environment_variables() -> None:
    openai = UpstreamConfig("https://api.openai.com/v1", models=("gpt-*",), key_env="OPENAI_KEY")
    both = describe_startup(
        {"openai": openai, "claude": UpstreamConfig("https://api.anthropic.com")}
    )
    assert "  OPENAI_BASE_URL=http://127.0.0.1:8484/v1 " in both
    assert "  ANTHROPIC_BASE_URL=http://127.0.0.1:8484 " in both
    assert re.search(r"\nopenai +https://\S+ +openai, responses +OPENAI_KEY +gpt-\*\n", both)
    assert re.search(r"\nclaude +https://\S+ +anthropic +the client's +all others", both)
    assert "ANTHROPIC" not in describe_startup({"openai": openai})


# Processes


def test_a_running_stream_ends_before_the_gateway(llama: LocalServer) -> None:
    command = [*BRIM, "serve", "--upstream", llama.url, "--port", "0", "--json"]
    with start_process(command) as process:
        greeting = json.loads(line_with(process, "address"))
        assert greeting["upstreams"] == [
            {
                "name": "default",
                "endpoint": llama.url,
                "formats": ["openai"],
                "models": [],
                "key_env": None,
            }
        ]
        with client_of(greeting["address"]) as client:
            send_request(client, llama, stream=True, max_tokens=60, ignore_eos=True)
            answer = client.getresponse()
            assert answer.status == 200
            assert answer.headers["brim-request-id"]
            assert answer.readline().startswith(b"data: ")
            process.send_signal(signal.SIGTERM)
            assert answer.read().endswith(b"data: [DONE]\n\n")
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(("price", "status"), [([], 403), (["--price", "0/0"], 200)])
def test_a_key_with_a_dollar_cap_needs_a_price(price: list[str], status: int) -> None:
    secret = create_secret("anna", "5/day")
    with (
        ScriptedServer("Hello.", window=4_000) as provider,
        start_process(
            [*BRIM, "serve", "--upstream", provider.url, *price, "--port", "0"]
        ) as process,
        client_of(json.loads(line_with(process, "serving"))["address"]) as client,
    ):
        body = {"messages": [{"role": "user", "content": "hi"}]}
        heads = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        client.request("POST", "/v1/chat/completions", json.dumps(body), heads)
        answer = client.getresponse()
        text = answer.read().decode()
        assert answer.status == status
    if status == 403:
        assert "The price of this model is unknown" in text
        assert "`brim serve --price INPUT/OUTPUT`" in text


def test_a_second_ctrl_c_records_the_output_so_far_and_exits() -> None:
    secret, never = create_secret("anna", "5/day"), threading.Event()
    flags = ["--window", "4000", "--price", "2/10", "--port", "0"]
    with (
        ScriptedServer(TextReply("Hello.", hold=never)) as provider,
        start_process([*BRIM, "serve", "--upstream", provider.url, *flags]) as process,
    ):
        address = json.loads(line_with(process, "serving"))["address"]
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        heads = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        with client_of(address) as client:
            client.request("POST", "/v1/chat/completions", json.dumps(body), heads)
            client.getresponse().readline()
            process.send_signal(signal.SIGINT)
            wait_until(lambda: refuses(urlsplit(address).port))
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            logged = [json.loads(line) for line in process.stdout.read().splitlines()]
            never.set()
        assert process.wait(PATIENCE) == 130
    (line,) = [line for line in logged if line["message"] == "request"]
    assert line["end"] == "stopped"
    assert only_row().state == "settled"
    assert read_cap_usage()["key dollars"][1] == 0


def test_in_a_pipe_all_output_is_json(llama: LocalServer) -> None:
    variables = {
        "BRIM_UPSTREAMS__LLAMA__ENDPOINT": llama.url,
        "BRIM_UPSTREAMS__LLAMA__KEY_ENV": "LLAMA_KEY",
        "LLAMA_KEY": llama.key,
    }
    with start_process([*BRIM, "serve", "--port", "0"], **variables) as process:
        first = json.loads(line_with(process, "serving"))
        assert first["upstreams"][0]["key_env"] == "LLAMA_KEY"
        with client_of(first["address"]) as client:
            send_request(client, llama, max_tokens=1)
            assert client.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        logged = process.stdout.read()
        assert all(isinstance(json.loads(line), dict) for line in logged.splitlines())
        assert "Count to ten" not in logged
        assert llama.key not in logged
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_the_embedded_model_is_served_in_all_three_formats(local_gateway: str, path: str) -> None:
    messages = [{"role": "user", "content": "Hello!"}]
    body = (
        {"input": messages, "max_output_tokens": 2}
        if path == "/v1/responses"
        else {"messages": messages, "max_tokens": 2}
    )
    with client_of(local_gateway) as client:
        client.request("POST", path, json.dumps({"model": "any", **body}))
        answer = client.getresponse()
        assert answer.status == 200
        assert answer.headers["brim-upstream"] == "local"
        assert int(answer.headers["brim-limit"]) < 512


@pytest.fixture(scope="module")
def local_gateway(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `brim serve --local`."""
    data = tmp_path_factory.mktemp("data")
    (data / "models").symlink_to(weights.parent)
    command = [*BRIM, "serve", "--local", "--window", "512", "--port", "0", "--json"]
    with start_process(command, BRIM_DATA=str(data), BRIM_STATE=str(data)) as process:
        yield json.loads(line_with(process, "address"))["address"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    "server", [["uvicorn"], ["granian", "--interface", "asgi"]], ids=lambda server: server[0]
)
def test_other_asgi_servers_work(server: list[str], llama: LocalServer) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    factory = ["--factory", "brim.gateway.asgi:app", "--port", str(port)]
    command = [sys.executable, "-m", *server, *factory]
    with start_process(command, BRIM_UPSTREAMS__LLAMA__ENDPOINT=llama.url) as process:
        wait_for(port, process)
        with client_of(f"http://127.0.0.1:{port}") as client:
            send_request(client, llama, max_tokens=1)
            answer = client.getresponse()
            assert answer.status == 200
            assert answer.headers["brim-request-id"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)


# --check


def test_a_working_upstream_is_checked_with_its_windows(
    llama: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_KEY", llama.key)
    checked = brim_serve("--upstream", llama.url, "--key-env", "LLAMA_KEY", "--check", "--json")
    assert checked.exit_code == 0
    facts = json.loads(checked.stdout)
    assert facts["ok"]
    assert facts["upstreams"][0]["windows"] == {llama.model: llama.window}
    shown = brim_serve("--upstream", llama.url, "--key-env", "LLAMA_KEY", "--check").stdout
    assert shown.startswith("ok    default ")
    assert f"{llama.model}: {llama.window:,} tokens" in shown
    assert llama.key not in shown


def test_a_configured_window_takes_precedence() -> None:
    with ScriptedServer("never asked", window=8_000, model="own") as provider:
        windows = {
            name: preflight.check_upstreams(Config(upstreams={"one": upstream}), {})[0].windows
            for name, upstream in {
                "set": UpstreamConfig(endpoint=provider.url, models=("own",), window=2_000),
                "told": UpstreamConfig(endpoint=provider.url),
            }.items()
        }
    assert windows == {"set": {"own": 2_000}, "told": {"own": 8_000}}


def test_an_upstream_without_a_key_requires_the_client_key(llama: LocalServer) -> None:
    checked = brim_serve("--upstream", llama.url, "--check")
    assert checked.exit_code == 0
    assert "requires a key, which clients send" in checked.stdout


def test_failing_upstreams_are_distinguished(
    llama: LocalServer, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"""
        [upstreams.wrong]
        endpoint = "{llama.url}"
        key_env = "WRONG_KEY"
        models = ["d"]
        [upstreams.unset]
        endpoint = "{llama.url}"
        key_env = "UNSET"
        models = ["e"]
        [upstreams.lost]
        endpoint = "{llama.url}"
        models = ["a"]
        fallback = "b"
        [upstreams.away]
        endpoint = "http://127.0.0.1:9"
        models = ["c"]
    """
    file = place / "my.toml"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("BRIM_CONFIG", str(file))
    monkeypatch.setenv("WRONG_KEY", "not-the-key")
    checked = brim_serve("--check", "--json")
    assert checked.exit_code == 1
    facts = {each["upstream"]: each for each in json.loads(checked.stdout)["upstreams"]}
    assert {each["state"] for each in facts.values()} == {"bad"}
    assert "UNSET is not set" in facts["unset"]["message"]
    assert "cannot be reached" in facts["away"]["message"]
    assert "no upstream serves its fallback b" in facts["lost"]["message"]
    assert "key" in facts["wrong"]["message"]
    assert "not-the-key" not in checked.stdout
