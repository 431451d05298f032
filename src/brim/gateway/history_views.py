"""Search in the history of requests, and series of it for charts."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from brim.gateway.errors import GatewayError
from brim.gateway.failures import explain_failure
from brim.gateway.gateway import Gateway
from brim.gateway.request_history import DAY, GroupOfRequests, HistoryFilter, RequestSums
from brim.gateway.responses import json_response, parse_number

MAX_FOUND: Final = 1_000
MAX_POINTS: Final = 240
STEPS: Final = (5, 15, 30, 60, 300, 900, 3_600, 3 * 3_600, 6 * 3_600, 24 * 3_600)
"""Seconds between two points of a series."""
MAX_GROUPS: Final = 50
MAX_LINES: Final = 5
"""Groups with a series of their own."""
PAUSE_FACTOR: Final = 9.0
"""A series is returned again for this many times the duration of its queries."""
MAX_CACHED: Final = 32
READ_SECONDS: Final = 20.0
"""How long reading may take; a long range of a busy gateway has many rows."""
_GROUPINGS: Final[tuple[GroupOfRequests, ...]] = ("model", "key", "upstream")


class HistoryViews:
    """What the history has, for operators."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._history = gateway.history
        self._lock = asyncio.Lock()
        self._cached: dict[tuple[HistoryFilter, str], tuple[float, dict[str, Any]]] = {}

    async def search(self, request: Request) -> Response:
        """Return matching requests, the newest first, and where the next page begins."""
        self._gateway.record_finished()
        number = parse_number(request, "last", default=100, most=MAX_FOUND)
        wanted, before = _read_filter(request), _read_cursor(request)
        async with _limited_time():
            found = await self._history.search(wanted, before, number)
        for each in found:
            each["reason"] = explain_failure(each)
        full = len(found) == number
        return json_response(
            {
                "object": "list",
                "data": found,
                "next": f"{found[-1]['time']!r}_{found[-1]['id']}" if full else None,
                "days": self._history.days,
            }
        )

    async def series(self, request: Request) -> Response:
        """Return sums and durations by time, and sums by model, key, upstream and reason."""
        self._gateway.record_finished()
        wanted, group = _read_filter(request), request.query_params.get("group", "")
        if group not in ("", *_GROUPINGS):
            message = "Invalid value of `group`. Use model, key or upstream."
            raise GatewayError(400, "invalid_request", message)
        step = _choose_step(wanted.until - wanted.since)
        first = math.floor(wanted.since / step) * step
        wanted = replace(wanted, since=first, until=math.ceil(wanted.until / step) * step)
        async with _limited_time(), self._lock:
            started = time.monotonic()
            expires, content = self._cached.get((wanted, group), (0.0, {}))
            if started >= expires:
                content = await self._compute(wanted, group, step)
                if len(self._cached) >= MAX_CACHED:
                    self._cached.clear()
                now = time.monotonic()
                pause = now + PAUSE_FACTOR * (now - started)
                self._cached[wanted, group] = pause, content
        return json_response(content)

    async def _compute(self, wanted: HistoryFilter, group: str, step: float) -> dict[str, Any]:
        sums = {
            f"by_{by}": [
                {"name": name, **asdict(each)}
                for name, each in await self._history.sums(wanted, by, MAX_GROUPS)
            ]
            for by in _GROUPINGS
        }
        count = round((wanted.until - wanted.since) / step)
        lines = [await self._read_line("", wanted, step, count)]
        if group in ("model", "key"):
            names = [each["name"] for each in sums[f"by_{group}"][:MAX_LINES] if each["name"]]
            some = [replace(wanted, **{group: name}) for name in names]
            lines = [
                await self._read_line(name, one, step, count)
                for name, one in zip(names, some, strict=True)
            ]
        return {
            "object": "brim.series",
            "since": wanted.since,
            "until": wanted.until,
            "step": step,
            "days": self._history.days,
            "lines": lines,
            **sums,
            "reasons": await self._read_reasons(wanted),
        }

    async def _read_line(
        self, name: str, wanted: HistoryFilter, step: float, count: int
    ) -> dict[str, Any]:
        sums = await self._history.series(wanted, step)
        first = await self._history.percentiles(wanted, step, "first_byte")
        whole = await self._history.percentiles(wanted, step, "seconds")
        points = [sums.get(number, RequestSums()) for number in range(count)]
        columns = {field: [getattr(each, field) for each in points] for field in _FIELDS}
        durations = [
            _Durations(*first.get(number, _NONE), *whole.get(number, _NONE))
            for number in range(count)
        ]
        return {"name": name, **columns, **_to_columns(durations)}

    async def _read_reasons(self, wanted: HistoryFilter) -> list[dict[str, Any]]:
        """Return why requests failed, the most frequent reason first."""
        failed = await self._history.sums(replace(wanted, is_failed=True), "reason", MAX_GROUPS)
        return [
            {"name": name, "requests": each.requests, "reason": _explain_group(name)}
            for name, each in failed
        ]


@asynccontextmanager
async def _limited_time() -> AsyncIterator[None]:
    """Raise `GatewayError` if the block takes too long."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            yield
    except TimeoutError:
        message = (
            f"Reading the history took longer than {READ_SECONDS:g} s. Choose a shorter range of "
            "time, or try again later."
        )
        raise GatewayError(503, "history_timeout", message, headers={"retry-after": "60"}) from None


_FIELDS: Final = ("requests", "failed", "input", "cached", "output", "cost")
_NONE: Final = (None, None)


@dataclass(frozen=True, slots=True)
class _Durations:
    first_median: float | None
    first_late: float | None
    total_median: float | None
    total_late: float | None


def _to_columns(durations: Sequence[_Durations]) -> dict[str, list[float | None]]:
    names = _Durations.__dataclass_fields__
    return {name: [getattr(each, name) for each in durations] for name in names}


def _explain_group(name: str) -> str | None:
    """Return the words for a code, a status or an end."""
    if name.isdigit():
        return explain_failure({"status": int(name), "code": None, "end": "", "upstream": None})
    return explain_failure({"status": 0, "code": name, "end": name, "upstream": None})


def _choose_step(length: float) -> float:
    """Return the shortest step with at most this many points."""
    return next((step for step in STEPS if length / step <= MAX_POINTS), STEPS[-1])


# The query


def _read_filter(request: Request) -> HistoryFilter:
    query = request.query_params
    until = _read_time(request, "until", time.time() + 1.0)
    since = _read_time(request, "since", until - DAY)
    if not since < until:
        message = "`since` must be before `until`."
        raise GatewayError(400, "invalid_request", message, param="since")
    return HistoryFilter(
        since,
        until,
        query.get("q", "")[:200],
        query.get("model", ""),
        query.get("key", ""),
        is_failed=query.get("failed") == "true",
        is_trimmed=query.get("trimmed") == "true",
    )


def _read_time(request: Request, name: str, default: float) -> float:
    """Return a time in seconds since 1970."""
    try:
        value = float(request.query_params.get(name) or default)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e11:  # the year 5138
        message = f"Invalid value of `{name}`. Use seconds since 1970."
        raise GatewayError(400, "invalid_request", message, param=name)
    return value


def _read_cursor(request: Request) -> tuple[float, str] | None:
    text = request.query_params.get("before")
    if not text:
        return None
    at, _, id = text.partition("_")
    try:
        return float(at), id
    except ValueError:
        message = "Invalid value of `before`. Use `next` of the previous page."
        raise GatewayError(400, "invalid_request", message, param="before") from None
