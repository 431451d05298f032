from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from brim.errors import ProviderError
from brim.providers import server_info
from brim.providers.endpoint import Endpoint
from brim.providers.server_info import ServerInfo, detect_truncation, find_price_basis
from brim.providers.transport import Transport
from tests.support.providers.scripted import Scripted, by_path, in_turn, run, run_scripted


def models(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": list(rows)}


LLAMA = models({"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 4096, "n_ctx_train": 8192}})


@pytest.mark.parametrize(
    ("paths", "tokens", "source", "kind"),
    [
        ({"/v1/models": LLAMA}, 4096, "/v1/models", "llama.cpp"),
        (
            {"/v1/models": LLAMA, "/props": {"default_generation_settings": {"n_ctx": 2048}}},
            2048,
            "/props",
            "llama.cpp",
        ),
        ({"/props": {"default_generation_settings": {"n_ctx": 512}}}, 512, "/props", "llama.cpp"),
        (
            {"/v1/models": models({"id": "m", "owned_by": "vllm", "max_model_len": 32_768})},
            32_768,
            "/v1/models",
            "vllm",
        ),
        (
            {"/v1/models": models({"id": "m", "owned_by": "sglang", "max_model_len": 9})},
            9,
            "/v1/models",
            "sglang",
        ),
        (
            {"/v1/models": models({"id": "x"}, {"id": "m", "context_length": 8000,
                                  "top_provider": {"context_length": 4000}})},
            4000,
            "/v1/models",
            "unknown",
        ),
        ({"/v1/models": models({"id": "m", "context_window": 131_072})}, 131_072, "/v1/models",
         "unknown"),
        (
            {"/v1/models": models({"id": "m:latest", "owned_by": "library"}),
             "/api/ps": {"models": [{"name": "m:latest", "context_length": 4096}]},
             "/api/show": {"parameters": "num_ctx 8192"}},
            4096,
            "/api/ps",
            "ollama",
        ),
        (
            {"/v1/models": models({"id": "m:latest", "owned_by": "library"}),
             "/api/ps": {"models": [{"name": "other", "context_length": 99}]},
             "/api/show": {"parameters": "stop  \"<x>\"\nnum_ctx    8192\n",
                           "model_info": {"llama.context_length": 131_072}}},
            8192,
            "/api/show",
            "ollama",
        ),
        (
            {"/v1/models": models({"id": "m:latest", "owned_by": "library"}),
             "/api/ps": {"models": []},
             "/api/show": {"model_info": {"llama.context_length": 131_072}}},
            None,
            "Ollama has not loaded the model",
            "ollama",
        ),
        (
            {"/v1/models": models({"id": "m", "owned_by": "organization_owner"}),
             "/api/v0/models": models({"id": "m", "state": "loaded", "max_context_length": 9999,
                                       "loaded_context_length": 4096})},
            4096,
            "/api/v0/models",
            "lmstudio",
        ),
        (
            {"/v1/models": models({"id": "m", "owned_by": "organization_owner"}),
             "/api/v0/models": models({"id": "m", "state": "loaded", "max_context_length": 999})},
            999,
            "/api/v0/models",
            "lmstudio",
        ),
        (
            {"/v1/models": models({"id": "m", "owned_by": "organization_owner"}),
             "/api/v0/models": models({"id": "m", "state": "not-loaded",
                                       "max_context_length": 999})},
            None,
            "LM Studio has not loaded the model",
            "lmstudio",
        ),
        ({"/info": {"max_total_tokens": 2048}}, 2048, "/info", "tgi"),
        ({}, None, "does not report the window", "unknown"),
        ({"/v1/models": {"data": "?"}, "/props": [1]}, None, "does not report", "unknown"),
        ({"/v1/models": models({"id": "a"}, {"id": "b", "max_model_len": 5})}, None,
         "does not report", "unknown"),
        ({"/v1/models": models({"id": "m", "max_model_len": "many"})}, None, "does not report",
         "unknown"),
        ({"/v1/models": web.Response(text="<html>")}, None, "does not report", "unknown"),
    ],
)  # fmt: skip
def test_the_window_is_read_where_the_server_reports_it(
    paths: dict[str, Any], tokens: int | None, source: str, kind: str
) -> None:
    async def work() -> None:
        async with (
            run_scripted(by_path(paths)) as scripted,
            Transport(Endpoint(scripted.url + "/v1")) as connection,
        ):
            server = ServerInfo(connection)
            window = await server.window_of("m")
            assert (window.tokens, window.kind) == (tokens, kind)
            assert source in window.source

    run(work())


def check_queries_after(seconds: float, answer: Any, paths: list[str]) -> None:
    async def work() -> None:
        now = 0.0
        async with (
            run_scripted(answer) as scripted,
            Transport(Endpoint(scripted.url)) as connection,
        ):
            server = ServerInfo(connection, clock=lambda: now)
            await server.window_of("m")
            scripted.requests.clear()
            now += seconds
            await server.window_of("m")
            assert scripted.paths == paths
            server.forget("m")
            await server.window_of("m")
            assert scripted.paths[len(paths)] == "/v1/models"

    run(work())


def test_a_known_window_is_cached_and_an_unknown_one_is_queried_again() -> None:
    known = by_path({"/v1/models": models({"id": "m", "max_model_len": 5})})
    check_queries_after(10**6, known, [])
    check_queries_after(1, by_path({}), [])
    everything = ["/v1/models", "/props", "/api/ps", "/api/v0/models", "/info"]
    check_queries_after(31, by_path({}), everything)


def test_the_number_of_remembered_windows_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_info, "MAX_WINDOWS", 3)

    async def ask() -> None:
        async with (
            run_scripted(by_path({"/v1/models": LLAMA})) as away,
            Transport(Endpoint(away.url)) as connection,
        ):
            server = ServerInfo(connection)
            for name in "abcd":
                await server.window_of(name)
            number = len(away.requests)
            await server.window_of("b")
            assert len(away.requests) == number
            await server.window_of("a")
            assert len(away.requests) > number

    run(ask())


def test_the_model_name_is_sent_if_a_server_has_several() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            rows = ({"id": name, "owned_by": "llamacpp"} for name in ("a/1", "b"))
            return web.json_response(models(*rows))
        sizes = {"a/1": 100, "b": 200}
        size = sizes[request.query["model"]]
        return web.json_response({"default_generation_settings": {"n_ctx": size}})

    async def work() -> None:
        async with (
            run_scripted(answer) as scripted,
            Transport(Endpoint(scripted.url)) as connection,
        ):
            server = ServerInfo(connection)
            assert (await server.window_of("a/1")).tokens == 100
            assert (await server.window_of("b")).tokens == 200
            assert await server.models() == ["a/1", "b"]

    run(work())


def test_an_unreachable_server_has_an_unknown_window() -> None:
    async def work() -> None:
        async with Transport(Endpoint("http://127.0.0.1:1", retries=0)) as connection:
            server = ServerInfo(connection)
            window = await server.window_of("m")
            assert window.tokens is None
            assert "cannot be reached" in window.source
            assert window.kind == "unknown"
            with pytest.raises(ProviderError):
                await server.models()

    run(work())


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_hosts_without_windows_are_not_queried(kind: str) -> None:
    async def work() -> None:
        async with Transport(Endpoint(f"https://api.{kind}.com")) as connection:
            server = ServerInfo(connection)
            window = await server.window_of("m")
            assert (window.tokens, window.kind) == (None, kind)
            assert connection._pool is None

    run(work())


def test_the_key_is_sent() -> None:
    async def work() -> Scripted:
        async with (
            run_scripted(in_turn(web.json_response({}))) as scripted,
            Transport(Endpoint(scripted.url, key="sk-1")) as connection,
        ):
            await ServerInfo(connection).window_of("m")
            return scripted

    for request in run(work()).requests:
        assert request.headers["Authorization"] == "Bearer sk-1"


@pytest.mark.parametrize(
    ("kind", "window", "counted", "reported", "cut"),
    [
        ("ollama", 4096, 6000, 2050, True),
        ("ollama", 4096, 6000, 2049, True),
        ("ollama", 4096, 6000, 4096, True),
        ("ollama", 4096, 6000, 3500, True),
        ("unknown", 4096, 6000, 2050, True),
        ("unknown", 4096, 6000, 3500, False),
        ("ollama", 4096, 2060, 2050, False),
        ("ollama", 4096, 4400, 4096, False),
        ("ollama", 4096, 3000, 2900, False),
        ("ollama", 4096, 3000, 2500, False),
        ("ollama", 32_768, 6000, 3500, False),
        ("ollama", None, 6000, 2050, False),
        ("llama.cpp", 4096, 6000, 2050, False),
        ("vllm", 4096, 6000, 4096, False),
        ("ollama", 4096, 6000, 0, False),
    ],
)
def test_a_silently_truncated_prompt_is_detected(
    kind: str, window: int | None, counted: int, reported: int, cut: bool
) -> None:
    sentence = detect_truncation(kind, window, counted, reported)
    assert (sentence is not None) == cut
    if sentence is not None:
        assert f"{reported:,}" in sentence
        assert "num_ctx" in sentence


@pytest.mark.parametrize(
    ("url", "basis"),
    [
        ("http://127.0.0.1:8000/v1", "free"),
        ("http://192.168.1.20:8000/v1", "free"),
        ("http://vllm:8000/v1", "free"),
        ("http://gpu.internal/v1", "free"),
        ("https://api.provider.example/v1", "unknown"),
        ("http://8.8.8.8:8000/v1", "unknown"),
    ],
)
def test_only_servers_in_the_own_network_are_free(url: str, basis: str) -> None:
    assert find_price_basis("vllm", Endpoint(url)) == basis
    assert find_price_basis("unknown", Endpoint(url)) == "list"


def test_more_unknown_models_of_a_server_take_one_query_each() -> None:
    async def work() -> None:
        async with (
            run_scripted(by_path({})) as scripted,
            Transport(Endpoint(scripted.url)) as connection,
        ):
            server = ServerInfo(connection)
            await server.window_of("m")
            scripted.requests.clear()
            await server.window_of("n")
            assert scripted.paths == ["/v1/models"]

    run(work())
