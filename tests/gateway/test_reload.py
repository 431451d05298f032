"""The configuration can be read again without dropping a request."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from brim.config import Config, GatewayConfig
from brim.errors import ConfigError
from brim.gateway.gateway import ConfigChange
from brim.testing import ScriptedServer, TextReply
from tests.support.gateway.accounts import bearer_headers, create_secret
from tests.support.gateway.process import Running, config_of, run_gateway, run_serve
from tests.support.gateway.requests import CHAT, body_of, post, wait_until


@pytest.fixture
def other() -> Iterator[ScriptedServer]:
    with ScriptedServer("Goodbye.", window=4_000) as provider:
        yield provider


def reload(served: Running, config: Config | Exception) -> httpx.Response:
    """Change the configuration of a gateway, and let it read that."""

    def load() -> Config:
        if isinstance(config, Exception):
            raise config
        return config

    served.gateway.load_config = load
    return httpx.post(f"{served.url}/brim/reload")


def say(served: Running) -> str:
    answer = post(served.url, CHAT, body_of(CHAT, "hi", model="gpt-4o"))
    text: str = answer.raise_for_status().json()["choices"][0]["message"]["content"]
    return text


def test_new_requests_use_the_new_configuration(
    upstream: ScriptedServer, other: ScriptedServer
) -> None:
    with run_gateway(config_of(upstream.url)) as served:
        assert say(served) == "Hello."
        new = replace(
            config_of(other.url), gateway=GatewayConfig(max_body_bytes=200, store="elsewhere")
        )
        assert reload(served, new).json() == {
            "object": "brim.reload",
            "changed": ["gateway.max_body_bytes", "upstreams.upstream-1"],
            "needs_restart": ["gateway.store"],
        }
        assert say(served) == "Goodbye."
        assert post(served.url, CHAT, body_of(CHAT, "hi " * 200)).status_code == 413
        names = [each["upstream"] for each in httpx.get(f"{served.url}/brim/routes").json()["data"]]
        assert names == ["upstream-1"]


def test_a_running_request_is_not_dropped(other: ScriptedServer) -> None:
    may_end = threading.Event()
    streamed = body_of(CHAT, "hi", stream=True)
    with (
        ScriptedServer(TextReply("Slow but whole.", hold=may_end)) as slow,
        run_gateway(config_of(slow.url)) as served,
        ThreadPoolExecutor(1) as thread,
    ):
        running = thread.submit(post, served.url, CHAT, streamed)
        wait_until(lambda: len(slow.requests) == 1)
        assert reload(served, config_of(other.url)).status_code == 200
        assert say(served) == "Goodbye."
        may_end.set()
        assert "whole" in running.result().text


def test_an_invalid_configuration_changes_nothing_and_says_why(upstream: ScriptedServer) -> None:
    with run_gateway(config_of(upstream.url)) as served:
        answer = reload(served, ConfigError(["brim.toml, line 3: unknown key: gateway.hots"]))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_configuration")
        assert "gateway.hots" in error["message"]
        assert say(served) == "Hello."


def test_a_reload_is_in_the_audit_log(upstream: ScriptedServer, other: ScriptedServer) -> None:
    heads = bearer_headers(create_secret("boss", is_operator=True))
    with run_gateway(config_of(upstream.url)) as served:
        served.gateway.load_config = lambda: config_of(other.url)
        assert httpx.post(f"{served.url}/brim/reload").status_code == 401
        assert httpx.post(f"{served.url}/brim/reload", headers=heads).status_code == 200
        (entry,) = httpx.get(f"{served.url}/brim/audit", headers=heads).json()["data"]
    assert (entry["actor"], entry["action"]) == ("key:boss", "configuration.reload")
    assert entry["details"]["changed"] == ["upstreams.upstream-1"]


def test_the_signal_reads_the_file_again(
    upstream: ScriptedServer, other: ScriptedServer, tmp_path: Path
) -> None:
    file, log = tmp_path / "brim.toml", tmp_path / "log"
    file.write_text(f'[upstreams.one]\nendpoint = "{upstream.url}"\n', encoding="utf-8")
    with (
        log.open("wb") as output,
        run_serve({"BRIM_CONFIG": str(file)}, logs=output.fileno()) as (address, process),
    ):

        def say_again() -> str:
            return post(address, CHAT, body_of(CHAT, "hi")).text

        assert "Hello." in say_again()
        file.write_text(f'[upstreams.one]\nendpoint = "{other.url}"\n', encoding="utf-8")
        os.kill(process.pid, signal.SIGHUP)
        wait_until(lambda: "Goodbye." in say_again())
        file.write_text("[upstreams.one]\nendpoint = 5\n", encoding="utf-8")
        os.kill(process.pid, signal.SIGHUP)
        wait_until(lambda: b"not reloaded" in log.read_bytes())
        assert "Goodbye." in say_again()
    assert b"upstreams.one.endpoint" in log.read_bytes()


def test_unchanged_settings_are_no_change() -> None:
    config = config_of("http://127.0.0.1:9")
    assert ConfigChange.of(config, config) == ConfigChange((), ())
