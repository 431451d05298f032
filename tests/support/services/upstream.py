"""A model server that keeps the true bill: `python -m tests.support.services.upstream`.

Every request uses its own model name, which identifies it in this bill and in the ledger. Its cost
is fixed when it arrives, like that of a provider that charges for cancelled responses.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Iterator
from typing import Any, Final

from aiohttp import web

INPUT: Final = 10
"""Tokens of every prompt, fewer than brim counts."""
PRICE: Final = {"input": 1, "output": 2}
"""Dollars per million tokens, which are micro-dollars per token."""
PIECES: Final = 8
PAUSE: Final = 0.04

GATEWAY: Final = "x-gateway"
"""The header that names the gateway."""

BILL: Final = web.AppKey("bill", list[tuple[str, int]])
BEGUN: Final = web.AppKey("begun", dict[str, tuple[str, bool]])
"""Running requests: the gateway, and whether streamed."""


def answer_of(body: dict[str, Any]) -> int:
    """Output tokens: from half of the limit to all of it."""
    most: int = body["max_tokens"]
    return random.Random(body["model"]).randint(most // 2, most)


async def complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    tokens = answer_of(body)
    cost = PRICE["input"] * INPUT + PRICE["output"] * tokens
    request.app[BILL].append((body["model"], cost))
    request.app[BEGUN][body["model"]] = request.headers[GATEWAY], bool(body.get("stream"))
    half = PIECES * PAUSE / 2
    asyncio.get_running_loop().call_later(half, request.app[BEGUN].pop, body["model"])
    usage = {"prompt_tokens": INPUT, "completion_tokens": tokens, "total_tokens": INPUT + tokens}
    if body.get("stream"):
        return await _stream(request, body["model"], usage)
    await asyncio.sleep(PIECES * PAUSE)
    choice = {"index": 0, "message": {"role": "assistant", "content": "word " * PIECES},
              "finish_reason": "stop"}  # fmt: skip
    return web.json_response(_object("chat.completion", body["model"], [choice], usage))


async def _stream(request: web.Request, model: str, usage: dict[str, int]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for choice in _choices():
        await asyncio.sleep(PAUSE)
        await response.write(_event(_object("chat.completion.chunk", model, [choice])))
    await response.write(_event(_object("chat.completion.chunk", model, [], usage)))
    await response.write(b"data: [DONE]\n\n")
    return response


def _choices() -> Iterator[dict[str, Any]]:
    for _ in range(PIECES):
        yield {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
    yield {"index": 0, "delta": {}, "finish_reason": "stop"}


def _event(chunk: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()


def _object(
    kind: str, model: str, choices: list[dict[str, Any]], usage: dict[str, int] | None = None
) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": kind,
        "created": 0,
        "model": model,
        "choices": choices,
        "usage": usage,
    }


async def bill(request: web.Request) -> web.Response:
    return web.json_response(request.app[BILL])


async def begun(request: web.Request) -> web.Response:
    return web.json_response(list(request.app[BEGUN].values()))


async def serve() -> None:
    app = web.Application()
    app[BILL], app[BEGUN] = [], {}
    app.add_routes(
        [
            web.post("/v1/chat/completions", complete),
            web.get("/bill", bill),
            web.get("/begun", begun),
        ]
    )
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
