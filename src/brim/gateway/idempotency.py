"""Repeated requests of the administration API: the first response is returned again."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from brim.gateway.errors import GatewayError

KEEP_SECONDS: Final = 24 * 3_600.0
MAX_RESPONSES: Final = 1_000
MAX_KEY_LENGTH: Final = 255


@dataclass(frozen=True, slots=True)
class _Call:
    request: str
    """A digest of the request."""
    expires: float
    response: asyncio.Future[Response]


class IdempotentCalls:
    """The responses of the last day by `Idempotency-Key`, at most 1,000, in memory.

    They may contain a new key, which must not be stored anywhere. So another gateway, or this one
    after a restart, does not know them.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[tuple[str, str], _Call] = OrderedDict()

    async def run(
        self, actor: str, key: str, request: bytes, work: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Run the work, or return the response to the first request of this actor with this key.

        Raise `GatewayError` if that was another request. A failure is not kept: the request may be
        repeated.
        """
        if not 0 < len(key) <= MAX_KEY_LENGTH:
            message = f"Invalid Idempotency-Key. Use at most {MAX_KEY_LENGTH} characters."
            raise GatewayError(400, "invalid_request", message)
        self._drop_old()
        digest = hashlib.sha256(request).hexdigest()
        if (first := self._calls.get((actor, key))) is not None:
            if first.request != digest:
                message = "This Idempotency-Key belongs to another request. Use a new one."
                raise GatewayError(422, "idempotency_key_reused", message)
            return await asyncio.shield(first.response)
        call = _Call(digest, time.monotonic() + KEEP_SECONDS, asyncio.Future())
        self._calls[actor, key] = call
        try:
            response = await work()
        except BaseException as error:
            del self._calls[actor, key]
            call.response.set_exception(_to_repeatable(error))
            call.response.exception()  # there may be no second request
            raise
        call.response.set_result(response)
        return response

    def _drop_old(self) -> None:
        now = time.monotonic()
        while self._calls:
            oldest = next(iter(self._calls.values()))
            if len(self._calls) < MAX_RESPONSES and oldest.expires > now:
                return
            self._calls.popitem(last=False)


def _to_repeatable(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    return GatewayError(503, "interrupted", "The first request with this key was interrupted.")
