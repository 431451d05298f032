"""Showing: the operator's page, and the numbers that only it asks for.

The page is a handful of files that hold nothing and may be seen by anybody. What it shows it asks
for as programs do, with the operator's key; names and sizes only, never what was said.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.routing import Route

from brim.gateway import bodies
from brim.gateway.accounts.cap_usage import read_cap_usage
from brim.gateway.accounts.caps import Cap, Unit, key_scope, reset_time, scope_parts, to_dollars
from brim.gateway.accounts.keys import unique_names
from brim.gateway.errors import GatewayError

if TYPE_CHECKING:
    from datetime import date

    from starlette.requests import Request

    from brim.gateway.accounts.cap_usage import CapUsage
    from brim.gateway.accounts.keys import ApiKey
    from brim.gateway.accounts.reservations import GroupBy, LedgerTotal
    from brim.gateway.accounts.store import AccountStore
    from brim.gateway.app import Gateway
    from brim.gateway.routes import ModelRoute

ASSETS: Final = "/brim/page/"
"""Where the page's files are; they are public, like the page itself."""
MAX_DAYS: Final = 366
MAX_ROWS: Final = 500
"""Keys, caps, models and so on that are told of; the rest is only counted."""
MAX_CACHED: Final = 64
PAUSE_FACTOR: Final = 9.0
"""Times as long as the ledger took to read, it is not read again."""

_FOLDER: Final = Path(__file__).with_name("static")
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript",
                 ".svg": "image/svg+xml"}  # fmt: skip
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def create_routes(gateway: Gateway) -> list[Route]:
    """The page, its files, and what it asks for beside the requests."""
    shown = Dashboard(gateway)
    return [
        Route("/", send_page, methods=["GET"]),
        Route(ASSETS + "{name}", send_asset, methods=["GET"]),
        Route("/brim/spending", shown.spending, methods=["GET"]),
        Route("/brim/lanes", shown.lanes, methods=["GET"]),
    ]


# The page


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page as it is sent."""

    raw: bytes
    media: str
    tag: str


@cache
def load_assets() -> Mapping[str, Asset]:
    """All files of the page by name: what is asked for is looked up, and never opened."""
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        if (media := _TYPES.get(path.suffix)) is not None:
            raw = path.read_bytes()
            found[path.name] = Asset(raw, media, f'"{hashlib.sha256(raw).hexdigest()[:20]}"')
    return found


async def send_page(request: Request) -> Response:
    return _asset_response(load_assets()["index.html"], request)


async def send_asset(request: Request) -> Response:
    found = load_assets().get(request.path_params["name"])
    if found is None:
        raise GatewayError(404, "not_found", "the page has no such file")
    return _asset_response(found, request)


def _asset_response(asset: Asset, request: Request) -> Response:
    headers = {**_HEADERS, "etag": asset.tag}
    if request.headers.get("if-none-match") == asset.tag:
        return Response(status_code=304, headers=headers)
    return Response(asset.raw, headers=headers, media_type=asset.media)


# What it shows


class Dashboard:
    """Spending against its caps, and what was learned of each model."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._sums = SpendingCache(gateway.accounts.books)

    async def spending(self, request: Request) -> Response:
        """What was spent in the last days, by day, key, model and project, and what may be."""
        since = datetime.now(UTC).date() - timedelta(days=_parse_days(request) - 1)
        accounts = self._gateway.accounts
        told = {}
        if accounts.is_required:
            told = await _read_spending(accounts.books, self._sums, since)
        return _json(
            {"object": "brim.spending", "since": since.isoformat(), **_NO_SPENDING, **told}
        )

    async def lanes(self, _: Request) -> Response:
        """What is known of each model at each upstream, and where from; the latest asked first."""
        latest = list(self._gateway.lanes)[::-1]
        known = [_route_to_dict(lane) for lane in latest[:MAX_ROWS]]
        return _json({"object": "list", "data": known, "left_out": len(latest) - len(known)})


def _parse_days(request: Request) -> int:
    asked = request.query_params.get("days", "30")
    number = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 5 else 0
    if not 0 < number <= MAX_DAYS:
        raise GatewayError(400, "invalid_request", f"days is a number from 1 to {MAX_DAYS}")
    return number


def _json(content: Mapping[str, Any]) -> Response:
    return Response(
        bodies.serialize(content),
        headers={"cache-control": "no-store"},
        media_type="application/json",
    )


# Spending

GROUPINGS: Final[tuple[GroupBy, ...]] = ("day", "key", "model", "project")
_Totals = Mapping["GroupBy", Sequence["LedgerTotal"]]
_Query = tuple[tuple["GroupBy", ...], "date | None"]
_NO_SPENDING: Final[Mapping[str, Any]] = {
    "has_accounts": False,
    "keys": [],
    "caps": [],
    **{f"by_{by}": [] for by in GROUPINGS},
    "left_out": 0,
}


class SpendingCache:
    """The ledger's sums, kept for a time that grows with what it takes to read them.

    However long the ledger is, and however many look at the same days, it is being read for a tenth
    of the time at most.
    """

    def __init__(self, books: AccountStore) -> None:
        self._books = books
        self._reading = asyncio.Lock()
        self._kept: dict[_Query, tuple[float, Sequence[LedgerTotal]]] = {}

    async def since(self, day: date) -> _Totals:
        return {by: await self.spent((by,), day) for by in GROUPINGS}

    async def spent(self, by: Sequence[GroupBy], since: date | None) -> Sequence[LedgerTotal]:
        asked = tuple(by), since
        async with self._reading:
            begun = time.monotonic()
            until, summed = self._kept.get(asked, (0.0, ()))
            if begun < until:
                return summed
            summed = await self._books.spent(by, since)
            if len(self._kept) >= MAX_CACHED:
                self._kept.clear()
            now = time.monotonic()
            self._kept[asked] = now + PAUSE_FACTOR * (now - begun), summed
            return summed


async def _read_spending(books: AccountStore, ledger: SpendingCache, since: date) -> dict[str, Any]:
    summed = await ledger.since(since)
    keys, caps = await books.keys(), await books.caps()
    names = unique_names(keys)
    held = [_cap_to_dict(standing, names) for standing in await read_cap_usage(books, ledger.spent)]
    told: dict[str, list[dict[str, Any]]] = {
        "keys": [_key_to_dict(key, names[key.id], caps) for key in reversed(keys)],
        "caps": sorted(held, key=_fullness, reverse=True),
    }
    for by, rows in summed.items():
        sums = [_total_to_dict(spent, names if by == "key" else {}) for spent in rows]
        told[f"by_{by}"] = sums if by == "day" else sorted(sums, key=_spending_size, reverse=True)
    left_out = sum(max(0, len(listed) - MAX_ROWS) for listed in told.values())
    shown = {name: listed[:MAX_ROWS] for name, listed in told.items()}
    return {"has_accounts": True, **shown, "left_out": left_out}


def _key_to_dict(key: ApiKey, name: str, caps: Mapping[str, Iterable[Cap]]) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": name,
        "project": key.project,
        "operator": key.is_operator,
        "created": key.created,
        "revoked": key.revoked,
        "caps": [str(cap) for cap in caps.get(key_scope(key.id), ())],
    }


def _cap_to_dict(standing: CapUsage, names: Mapping[str, str]) -> dict[str, Any]:
    """A cap, with what stands against it in the period that runs now."""
    cap = standing.cap
    return {
        "scope": standing.scope,
        **_scope_to_dict(standing.scope, names),
        "cap": str(cap),
        "unit": cap.unit,
        "period": cap.period,
        "most": _amount(cap.most, cap.unit),
        "spent": _amount(standing.spent, cap.unit),
        "reserved": _amount(standing.reserved, cap.unit),
        "opens": reset_time(cap.period, time.time()),
    }


def _scope_to_dict(scope: str, names: Mapping[str, str]) -> dict[str, str]:
    """Whom a scope is about, in the name that people know."""
    kind, whose = scope_parts(scope)
    return {"kind": kind, "name": names.get(whose, whose) if kind == "key" else whose}


def _amount(counted: int, unit: Unit) -> int | float:
    """Dollars or tokens, as people count them."""
    return float(to_dollars(counted)) if unit == "dollars" else counted


def _fullness(held: Mapping[str, Any]) -> float:
    taken = held["spent"] + held["reserved"]
    return float(taken / held["most"]) if held["most"] else 1.0


def _total_to_dict(spent: LedgerTotal, names: Mapping[str, str]) -> dict[str, Any]:
    """What was spent on one day, or on one key, whose name goes before its id."""
    (on,) = spent.on
    usage = spent.bill.usage
    return {
        "on": on,
        "name": names.get(on, on),
        "requests": spent.requests,
        "input": usage.input,
        "cached": usage.cached,
        "output": usage.output,
        "cost": float(to_dollars(spent.bill.micro_dollars)),
        "unpriced": spent.bill.is_unpriced,
        "presumed": spent.presumed,
    }


def _spending_size(sums: Mapping[str, Any]) -> tuple[float, int]:
    return sums["cost"], sums["input"] + sums["output"]


# Models


def _route_to_dict(lane: ModelRoute) -> dict[str, Any]:
    """What requests for a model are fitted to now, and what taught it."""
    target, fitter = lane.target, lane.fitter(lane.policy)
    budget = fitter.budget
    calibration = target.calibration
    is_known = not lane.is_guessed
    return {
        "upstream": lane.upstream.name,
        "model": lane.model,
        "server": lane.kind,
        "policy": lane.policy,
        "window": budget.window if is_known else None,
        "reply": budget.reply,
        "margin": budget.margin if is_known else None,
        "limit": budget.limit if is_known else None,
        "source": target.window_source,
        "exact": not fitter.counter.uncertainty,
        "refused_above": calibration.window_at(target.server_window),
        "guessed_limit": target.ceiling,
        "ratio": calibration.ratio if calibration.ratios else None,
        "ratios": list(calibration.ratios),
        "density": calibration.density if calibration.densities else None,
        "offset": calibration.offset,
        "accepted": lane.accepted or None,
    }
