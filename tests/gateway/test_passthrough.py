"""Listed paths are forwarded unchanged, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from brim.config import GatewayConfig
from tests.support.gateway.process import config_of, run_gateway
from tests.support.providers.scripted import Handler, Scripted, run, run_scripted

KEY = "sk-upstream-d41d8cd98f"


async def _ok(_: web.Request) -> web.StreamResponse:
    return web.json_response({"object": "something"})


@asynccontextmanager
async def run_passthrough(answer: Handler, *paths: str) -> AsyncIterator[tuple[str, Scripted]]:
    """The address of a gateway with passthrough paths, and the server behind it."""
    async with run_scripted(answer) as server:
        config = config_of(server.url, key_env="KEY")
        config = replace(config, gateway=GatewayConfig(passthrough_paths=paths))
        with run_gateway(config, {"KEY": KEY}) as gateway:
            yield gateway.url, server


async def send(address: str, line: str) -> tuple[int, bytes]:
    """Return the response to a request with this request line."""
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    response = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(response.split()[1]), response.partition(b"\r\n\r\n")[2]


PASSED = {
    "POST /v1/moderations": "/v1/moderations",
    "GET /v1/responses/resp_1?include=all": "/v1/responses/resp_1",
    "DELETE /v1/responses/resp_1": "/v1/responses/resp_1",
    "GET /v1/responses/resp_1/input_items": "/v1/responses/resp_1/input_items",
    "GET /v1/responses/a%3Fb": "/v1/responses/a?b",
    "GET /v1/responses/..hidden": "/v1/responses/..hidden",
}
REFUSED = (
    "GET /v1/moderations/1",
    "GET /v1/responses",
    "GET /v1/responses/../files",
    "GET /v1/responses/%2e%2e/files",
    "GET /v1/responses/..%2ffiles",
    "GET /v1/responses/..%5cfiles",
    "GET /v1/responses/..;/files",
    "GET /v1/responses/x/..",
    "GET /v1/responses//files",
    "GET /v1/files",
)
LISTED = ("/v1/moderations", "/v1/responses/*")


@pytest.mark.parametrize(("line", "path"), PASSED.items())
def test_a_listed_path_is_forwarded(line: str, path: str) -> None:
    async def ask() -> None:
        async with run_passthrough(_ok, *LISTED) as (address, server):
            status, response = await send(address, line)
            assert (status, b"something" in response) == (200, True)
            assert [(each.method, each.path) for each in server.requests] == [
                (line.split()[0], path)
            ]

    run(ask())


@pytest.mark.parametrize("line", REFUSED)
def test_no_other_path_is_forwarded(line: str) -> None:
    async def ask() -> None:
        async with run_passthrough(_ok, *LISTED) as (address, server):
            status, _ = await send(address, line)
            assert status in (404, 405)
            assert server.requests == []

    run(ask())


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/brim/requests", "/openapi.json"])
def test_own_paths_are_never_passed_through(path: str) -> None:
    async def ask() -> None:
        async with run_passthrough(_ok, "/*") as (address, server):
            assert (await send(address, f"GET {path}"))[0] == 200
            assert server.requests == []
            assert (await send(address, "GET /v1/anything/else"))[0] == 200
            assert [each.path for each in server.requests] == ["/v1/anything/else"]

    run(ask())


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/chat/completions/", "/v1/Chat/completions", "/v1/chat/completions;x"),
        *("/v1/chat//completions", "/v1/chat%5ccompletions", "/v1/messages%20", "/v1/responses/;x"),
        *("/V1/messages/", "/chat/Completions", "/v1/messages/count_tokens/", "/Brim/requests/"),
    ],
)
def test_own_paths_are_recognized_in_every_spelling(path: str) -> None:
    async def ask() -> None:
        async with run_passthrough(_ok, "/*", "/v1/*") as (address, server):
            assert (await send(address, f"POST {path}"))[0] == 404
            assert server.requests == []

    run(ask())


@pytest.mark.parametrize("path", ["/openapi.json/", "/healthz/", "/metrics/", "/brim/requests/"])
def test_no_path_leads_to_another_host(path: str) -> None:
    async def ask() -> None:
        async with run_passthrough(_ok) as (address, _):
            assert (await send(address, f"GET {path}"))[0] == 404

    run(ask())


@pytest.mark.parametrize("status", [200, 401])
def test_an_error_does_not_reveal_the_upstream_key(status: int) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": f"wrong key: {KEY}"}}, status=status)

    async def ask() -> None:
        async with run_passthrough(answer, "/v1/moderations") as (address, _):
            answered, response = await send(address, "POST /v1/moderations")
            assert answered == status
            assert b"wrong key: [key]" in response

    run(ask())
