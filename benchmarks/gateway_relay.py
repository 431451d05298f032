"""The baseline of the gateway benchmark: a relay that parses the body and passes it on unchanged.

    python -m benchmarks.gateway_relay UPSTREAM PORT

It runs Starlette as the server and aiohttp as the client: the minimum cost of a gateway on both.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

FORWARDED = ("content-type", "authorization", "x-api-key", "anthropic-version")


def create_app(upstream: str) -> Starlette:
    @asynccontextmanager
    async def connected(app: Starlette) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            app.state.session = session
            yield

    async def relay(request: Request) -> Response:
        body = await request.body()
        streamed = orjson.loads(body).get("stream", False)
        headers = {name: value for name, value in request.headers.items() if name in FORWARDED}
        session: aiohttp.ClientSession = request.app.state.session
        answer = await session.post(upstream + request.url.path, data=body, headers=headers)
        kind = answer.headers.get("content-type")
        if streamed and answer.ok:
            return StreamingResponse(_pieces(answer), answer.status, media_type=kind)
        async with answer:
            return Response(await answer.read(), answer.status, media_type=kind)

    routes = [
        Route("/v1/chat/completions", relay, methods=["POST"]),
        Route("/v1/messages", relay, methods=["POST"]),
        Route("/healthz", lambda _: Response("ok")),
    ]
    return Starlette(routes=routes, lifespan=connected)


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with answer:
        async for piece in answer.content.iter_any():
            yield piece


def main(upstream: str, port: str) -> None:
    app = create_app(upstream)
    uvicorn.run(
        app,
        port=int(port),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
