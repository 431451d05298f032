"""Model discovery with scripted servers and a real llama.cpp."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from brim.config import ModelConfig
from brim.models import catalog
from brim.providers.local import LocalServer
from brim.shell.setup.discovery import FoundModel, find_models
from tests.support.shell.model_lists import VLLM, ModelListServer, free_port, serve_models

PATIENT = 20.0
"""Seconds, for a busy machine."""


@contextmanager
def run_server(raw: bytes, *, hangs_up: bool = True) -> Iterator[int]:
    """Open a port that sends the same bytes to every client."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()

        def serve() -> None:
            held = []
            while not ended.is_set():
                connection, _ = listening.accept()
                connection.sendall(raw)
                if hangs_up:
                    connection.close()
                held.append(connection)
            for connection in held:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        port: int = listening.getsockname()[1]
        try:
            yield port
        finally:
            ended.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


def found_at(server: ModelListServer, **environment: str) -> list[FoundModel]:
    return find_models(environment, ports=[server.port], timeout=PATIENT)


LLAMA = {
    "/v1/models": {"data": [{"id": "/models/Small-1B.Q4.gguf", "owned_by": "llamacpp"}]},
    "/props": {"default_generation_settings": {"n_ctx": 4096}},
}
OLLAMA = {
    "/v1/models": {"data": [{"id": "qwen3:8b", "owned_by": "library"}]},
    "/api/tags": {
        "models": [
            {"name": "qwen3:8b", "model": "qwen3:8b"},
            {"name": "nomic-embed-text:latest"},
            {"name": "llama3.2:latest"},
        ]
    },
}
STUDIO = {
    "/v1/models": {"data": [{"id": "a", "owned_by": "organization_owner"}, {"id": "b"}]},
    "/api/v0/models": {
        "data": [
            {"id": "a", "type": "llm", "state": "not-loaded"},
            {"id": "b", "type": "vlm", "state": "loaded"},
            {"id": "c", "type": "embeddings", "state": "loaded"},
        ]
    },
}
OTHER = {"/v1/models": {"object": "list", "data": [{"id": "mine", "object": "model"}]}}


def without_list(answers: Mapping[str, Any]) -> dict[str, Any]:
    return {path: answer for path, answer in answers.items() if path != "/v1/models"}


@pytest.mark.parametrize(
    ("answers", "names", "how"),
    [
        (LLAMA, ["Small-1B.Q4"], "llama.cpp at {}, Small-1B.Q4, 4,096 tokens"),
        (OLLAMA, ["qwen3:8b", "llama3.2:latest"], "Ollama at {}, 2 models"),
        (without_list(OLLAMA), ["qwen3:8b", "llama3.2:latest"], "Ollama at {}, 2 models"),
        (STUDIO, ["b", "a"], "LM Studio at {}, 2 models"),
        (without_list(STUDIO), ["b", "a"], "LM Studio at {}, 2 models"),
        (VLLM, ["Qwen/Q-7B"], "vLLM at {}, Qwen/Q-7B, 32,768 tokens"),
        (OTHER, ["mine"], "an OpenAI-compatible server at {}, mine"),
    ],
)
def test_kinds_of_servers_are_recognized(
    answers: Mapping[str, Any], names: list[str], how: str
) -> None:
    with serve_models(answers) as server:
        found = found_at(server)
    assert [each.name for each in found] == names
    assert {each.source for each in found} == {how.format(server.url)}
    assert {each.model.endpoint for each in found} == {server.url}


def test_a_model_is_requested_by_its_servers_name() -> None:
    with serve_models(LLAMA) as server:
        (found,) = found_at(server)
    assert found.model == ModelConfig(endpoint=server.url, model="/models/Small-1B.Q4.gguf")


def test_only_the_first_models_of_a_server_are_listed() -> None:
    many = {"/api/tags": {"models": [{"name": f"model-{n}"} for n in range(30)]}}
    with serve_models(many) as server:
        found = found_at(server)
    assert [each.name for each in found] == [f"model-{n}" for n in range(5)]
    assert found[0].source == f"Ollama at {server.url}, 30 models"


def test_a_model_that_brim_derived_is_not_listed() -> None:
    names = ("llama3.2:3b", "llama3.2:3b-brim-16384", "qwen3:brim-8192")
    with serve_models({"/api/tags": {"models": [{"name": name} for name in names]}}) as server:
        assert [each.name for each in found_at(server)] == ["llama3.2:3b"]


def test_the_same_model_of_two_servers_has_two_names() -> None:
    with serve_models(VLLM) as one, serve_models(VLLM) as other:
        found = find_models({}, ports=[one.port, other.port], timeout=PATIENT)
    assert [each.name for each in found] == ["Qwen/Q-7B", "Qwen/Q-7B-2"]
    assert [each.model.endpoint for each in found] == [one.url, other.url]


@pytest.mark.parametrize(
    "answer",
    [
        b"<!doctype html><title>Hello</title>",
        b"",
        b"null",
        b"[" * 100_000,
        b'{"data": "models"}',
        b'{"data": [1, null, "x", {"id": 3}, {"id": ""}, {"id": "a\\nb"}, {"name": "x"}]}',
        b'{"data": [{"id": "' + b"x" * 5_000 + b'"}]}',
        b'{"models": {"name": "x"}}',
        b"\xff\xfe\x00",
    ],
)
def test_invalid_responses_are_ignored(answer: bytes) -> None:
    with serve_models({"*": answer}) as server:
        assert found_at(server) == []
        assert server.paths


@pytest.mark.parametrize("status", [301, 302, 307, 401, 403, 404, 500, 503])
def test_only_a_successful_response_counts(status: int) -> None:
    with (
        serve_models(OTHER) as other,
        serve_models({"*": OTHER["/v1/models"]}, status=status, Location=other.url) as server,
    ):
        assert found_at(server) == []
        assert not other.paths


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"HTTP/1.1 999999 No\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"",
    ],
)
def test_no_response_raises_an_error(raw: bytes) -> None:
    with run_server(raw) as port:
        assert find_models({}, ports=[port], timeout=PATIENT) == []


def test_a_silent_server_times_out() -> None:
    with run_server(b"", hangs_up=False) as silent, serve_models(VLLM) as server:
        found = find_models({}, ports=[silent, server.port], timeout=2.0)
    assert [each.name for each in found] == ["Qwen/Q-7B"]


def test_closed_ports_give_no_models() -> None:
    assert find_models({}, ports=[free_port(), free_port()], timeout=PATIENT) == []


@pytest.mark.parametrize(
    "form", ["127.0.0.1:{}", "http://127.0.0.1:{}", "0.0.0.0:{}", ":{}", "localhost:{}/"]
)
def test_ollama_host_is_used(form: str) -> None:
    with serve_models(OLLAMA) as server:
        found = find_models({"OLLAMA_HOST": form.format(server.port)}, ports=[], timeout=PATIENT)
    assert [each.name for each in found] == ["qwen3:8b", "llama3.2:latest"]


@pytest.mark.parametrize("named", ["", " ", "http://[", "host:notaport", "ftp://x:1", "://"])
def test_an_invalid_address_is_ignored(named: str) -> None:
    environment = {"OLLAMA_HOST": named, "OPENAI_BASE_URL": named}
    assert find_models(environment, ports=[], timeout=0.2) == []


def test_a_key_gives_a_small_model_of_its_provider() -> None:
    openai, anthropic = find_models({"OPENAI_API_KEY": "k1", "ANTHROPIC_API_KEY": "k2"}, ports=[])
    assert openai.model.endpoint == "https://api.openai.com/v1"
    assert openai.model.key_env == "OPENAI_API_KEY"
    assert anthropic.model.format == "anthropic"
    assert anthropic.model.key_env == "ANTHROPIC_API_KEY"
    for each in (openai, anthropic):
        known = catalog.model(each.name)
        assert known is not None
        assert known.context
        assert each.model.model == each.name
        assert f"{each.model.key_env} is set; {each.name}" in each.source
        assert "k1" not in repr(each)
        assert "k2" not in repr(each)


def test_another_base_url_is_queried_for_its_models() -> None:
    with serve_models(OTHER) as server:
        environment = {"OPENAI_API_KEY": "k1", "OPENAI_BASE_URL": f"{server.url}/v1/"}
        (found,) = find_models(environment, ports=[server.port], timeout=PATIENT)
    assert found.model == ModelConfig(endpoint=server.url, model="mine", key_env="OPENAI_API_KEY")
    assert set(server.keys) == {"Bearer k1"}


def test_no_key_is_sent_to_a_default_port() -> None:
    keys = {"OPENAI_API_KEY": "k1", "ANTHROPIC_API_KEY": "k2", "LLAMA_API_KEY": "k3"}
    with serve_models(OTHER) as server, serve_models(OTHER, status=401) as closed:
        find_models(keys, ports=[server.port, closed.port], timeout=PATIENT)
    assert set(server.keys) == set(closed.keys) == {None}


def test_a_llama_server_with_a_key_is_found(llama: LocalServer) -> None:
    port = int(llama.url.removesuffix("/v1").rpartition(":")[2])
    assert find_models({}, ports=[port], timeout=PATIENT) == []
    (found,) = find_models({"LLAMA_API_KEY": llama.key}, ports=[port], timeout=PATIENT)
    url = f"http://127.0.0.1:{port}"
    assert found.source == f"llama.cpp at {url}, {llama.model}, 2,048 tokens"
    assert found.model == ModelConfig(endpoint=url, model=llama.model, key_env="LLAMA_API_KEY")


def test_nothing_heavy_is_loaded() -> None:
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from brim.shell.setup.discovery import find_models\n"
            "find_models({}, ports=[], timeout=0.1)\n"
            "print([name for name in ('httptools', 'mcp', 'rich') if name in sys.modules])",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == "[]"
