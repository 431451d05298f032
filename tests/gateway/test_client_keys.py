"""If an upstream has no key, brim's own requests use the client's key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.support.gateway.process import config_of, run_gateway
from tests.support.providers.scripted import Scripted, run, run_scripted

OFFERED = {"anns": ["claude-x"], "bobs": ["claude-x", "claude-secret"]}
"""The models that the server lists for each key."""
COUNTS = {"/v1/messages/count_tokens": "messages", "/v1/responses/input_tokens": "input"}
TOKENS = 41
WINDOW = 5_000


async def _answer(request: web.Request) -> web.StreamResponse:
    given = request.headers
    key = given.get("x-api-key") or given.get("authorization", "").removeprefix("Bearer ")
    if key not in OFFERED:
        return web.json_response({"error": {"message": "no such key"}}, status=401)
    if request.path == "/v1/models":
        rows = [{"id": name, "context_length": WINDOW} for name in OFFERED[key]]
        return web.json_response({"data": rows})
    if request.path in COUNTS:
        return web.json_response({"input_tokens": TOKENS})
    return web.json_response({"error": {"message": "not found"}}, status=404)


@asynccontextmanager
async def run_keyed(
    environment: Mapping[str, str] | None = None, **settings: Any
) -> AsyncIterator[tuple[aiohttp.ClientSession, Scripted]]:
    """A client of a gateway in front of a server that requires keys."""
    given = {"format": ("anthropic", "responses"), **settings}
    async with run_scripted(_answer) as server:
        with run_gateway(config_of(server.url, **given), environment) as gateway:
            async with aiohttp.ClientSession(gateway.url) as client:
                yield client, server


def heads(key: str, **more: str) -> dict[str, str]:
    return {"x-api-key": key, "anthropic-version": "2023-06-01", **more}


async def count_text(
    client: aiohttp.ClientSession, at: str, given: Mapping[str, str], text: str = "Hello?"
) -> tuple[int, str]:
    body = {"model": "claude-x", COUNTS[at]: [{"role": "user", "content": text}]}
    async with client.post(at, json=body, headers=given) as answer:
        return (await answer.json())["input_tokens"], answer.headers["brim-count"]


async def list_models(client: aiohttp.ClientSession, given: Mapping[str, str]) -> list[str]:
    async with client.get("/v1/models", headers=given) as answer:
        return [model["id"] for model in (await answer.json())["data"]]


@pytest.mark.parametrize("at", COUNTS)
def test_token_counts_use_the_client_key_and_features(at: str) -> None:
    async def ask() -> None:
        async with run_keyed() as (client, server):
            beta = {"anthropic-beta": "context-1m", "openai-beta": "x", "x-other": "y"}
            assert await count_text(client, at, heads("anns", **beta)) == (TOKENS, "server")
            (request,) = [request for request in server.requests if request.path == at]
            assert request.headers["x-api-key"] == "anns"
            assert request.headers["anthropic-beta"] == "context-1m"
            assert request.headers["openai-beta"] == "x"
            assert "x-other" not in request.headers

    run(ask())


@pytest.mark.parametrize("at", COUNTS)
def test_a_rejected_client_key_does_not_disable_counts_for_others(at: str) -> None:
    async def ask() -> None:
        async with run_keyed() as (client, _):
            for key in ("wrong", ""):
                assert (await count_text(client, at, heads(key)))[1] == "estimate"
            assert await count_text(client, at, heads("bobs")) == (TOKENS, "server")
            assert (await count_text(client, at, heads("wrong")))[1] == "estimate"

    run(ask())


def test_a_request_near_the_limit_is_counted_with_the_client_key() -> None:
    async def ask() -> None:
        async with run_keyed(window=2_000, reply=100) as (client, server):
            message = {"role": "user", "content": "some words " * 850}
            body = {"model": "claude-x", "max_tokens": 9, "messages": [message]}
            async with client.post("/v1/messages", json=body, headers=heads("bobs")) as answer:
                assert answer.headers["brim-count"] == "server"
            request = next(request for request in server.requests if request.path in COUNTS)
            assert request.headers["x-api-key"] == "bobs"

    run(ask())


def test_the_window_is_queried_with_the_client_key() -> None:
    async def ask() -> None:
        async with run_keyed(reply=100) as (client, _):
            body = {"model": "claude-secret", "max_tokens": 9, "messages": []}
            async with client.post("/v1/messages", json=body, headers=heads("bobs")) as answer:
                assert WINDOW / 2 < int(answer.headers["brim-limit"]) < WINDOW

    run(ask())


def test_models_of_a_client_key_are_listed_for_that_client_only() -> None:
    async def ask() -> None:
        async with run_keyed() as (client, _):
            for key in ("bobs", "anns", "wrong", "anns", "bobs"):
                assert await list_models(client, heads(key)) == sorted(OFFERED.get(key, []))

    run(ask())


def test_an_upstream_with_its_own_key_never_gets_a_client_key() -> None:
    async def ask() -> None:
        async with run_keyed({"KEY": "anns"}, key_env="KEY") as (client, server):
            given = heads("bobs", **{"anthropic-beta": "context-1m", "openai-project": "bobs"})
            assert await list_models(client, given) == OFFERED["anns"]
            for at in COUNTS:
                assert (await count_text(client, at, given))[1] == "server"
            assert "bobs" not in str([dict(request.headers) for request in server.requests])
            assert "context-1m" in str([dict(request.headers) for request in server.requests])
            number = len(server.requests)
            assert await list_models(client, heads("wrong")) == OFFERED["anns"]
            assert len(server.requests) == number

    run(ask())
