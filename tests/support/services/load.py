"""Clients that send requests through a load balancer continuously, and record the results."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Final, Literal, Self

import aiohttp

from tests.support.services.machines import PATIENCE, Replica

REPLY: Final = 400
"""Output limit in tokens."""
ENOUGH: Final = 3
"""A client stops after this many rejections."""

End = Literal["running", "complete", "rejected", "broken"]


@dataclass(slots=True)
class LoadRequest:
    """A request as its client saw it."""

    name: str
    """Also the name of the model that it requests."""
    key: str
    is_streamed: bool
    replica: str | None = None
    """The gateway that answered."""
    end: End = "running"
    problem: str = ""
    """The message of a rejection or failure."""


class Load:
    """Clients with their keys, several for each key, while the block runs.

    At its end no new requests are sent, and running ones may end.
    """

    def __init__(
        self,
        address: str,
        gateways: Sequence[Replica],
        secrets: Mapping[str, str],
        clients: int = 4,
    ) -> None:
        self.requests: list[LoadRequest] = []
        self._address = address
        self._gateways = gateways
        self._secrets = secrets
        self._clients = clients
        self._is_over = False
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=30)
        # On a reused connection, HAProxy disconnects without an error response.
        connector = aiohttp.TCPConnector(force_close=True)
        self._session = aiohttp.ClientSession(self._address, connector=connector, timeout=timeout)
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        for name, secret in self._secrets.items():
            for number in range(self._clients):
                self._group.create_task(self._ask_on(name, number, secret))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        try:
            await self._group.__aexit__(kind, error, trace)
        finally:
            await self._session.close()

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Wait until a condition about the requests is true."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not is_true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            ends = Counter((each.end, each.replica, each.problem) for each in self.requests)
            raise AssertionError(ends.most_common(5)) from None

    def ended(self, end: End, replica: str | None = None) -> list[LoadRequest]:
        """Return the requests with this end, of one gateway or of all."""
        return [
            each for each in self.requests if each.end == end and replica in (None, each.replica)
        ]

    def _name(self, head: str | None) -> str | None:
        return next((each.name for each in self._gateways if each.answered(head)), None)

    async def _ask_on(self, key: str, client: int, secret: str) -> None:
        rejections = number = 0
        # Random, or synchronized clients could send only one kind to a gateway.
        chance = Random(f"{key}-{client}")
        while not self._is_over and rejections < ENOUGH:
            is_streamed = chance.random() < 0.5
            request = LoadRequest(f"{key}-{client}-{number}", key, is_streamed)
            number += 1
            self.requests.append(request)
            await self._ask(request, secret)
            rejections += request.end == "rejected"
            self._changed.set()

    async def _ask(self, request: LoadRequest, secret: str) -> None:
        body = {
            "model": request.name,
            "messages": [
                {"role": "user", "content": "Say a few words, and then some more of them."}
            ],
            "max_tokens": REPLY,
            "stream": request.is_streamed,
        }
        heads = {"Authorization": f"Bearer {secret}"}
        try:
            async with self._session.post("/v1/chat/completions", json=body, headers=heads) as got:
                request.replica = self._name(got.headers.get("brim-replica"))
                self._changed.set()
                raw = await got.read()
        except aiohttp.ClientError as error:
            request.end, request.problem = "broken", repr(error)
        else:
            request.end, request.problem = _end(got.status, raw, request.is_streamed)


def _end(status: int, raw: bytes, is_streamed: bool) -> tuple[End, str]:
    text = raw.decode()
    if status == 429:
        return "rejected", text
    is_whole = text.endswith("data: [DONE]\n\n") if is_streamed else _is_answer(text)
    return (
        ("complete", "") if status == 200 and is_whole else ("broken", f"{status}: {text[-300:]}")
    )


def _is_answer(text: str) -> bool:
    try:
        return bool(json.loads(text)["choices"])
    except (ValueError, LookupError):
        return False
