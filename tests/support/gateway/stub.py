"""A server for tests: `python -m tests.support.gateway.stub STOP_SECONDS HEAD_SECONDS`.

It prints its address, and `stopping` when it stops. /stream begins a response that ends with a line
on standard input; every other path is answered immediately.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from starlette.types import Receive, Scope, Send

from brim.gateway import http_protocol
from brim.gateway.server import HttpServer, open_listener

released = asyncio.Event()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await receive()
        _listen_to_input()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/stream":
        await send({"type": "http.response.body", "body": b"begun\n", "more_body": True})
        await released.wait()
    await send({"type": "http.response.body", "body": b"ended\n"})


def _listen_to_input() -> None:
    loop = asyncio.get_running_loop()

    def wait() -> None:
        if sys.stdin.readline():
            loop.call_soon_threadsafe(released.set)

    threading.Thread(target=wait, daemon=True).start()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    http_protocol.HEADER_SECONDS = float(sys.argv[2])  # type: ignore[misc]
    with open_listener("127.0.0.1", 0) as listener:
        try:
            server = HttpServer(
                app, stop_seconds=float(sys.argv[1]), stopping=lambda: _say("stopping")
            )
            server.serve(listener, _say)
        except KeyboardInterrupt:
            sys.exit(130)
