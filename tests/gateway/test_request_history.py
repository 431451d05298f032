"""Finished requests are kept in a file, searched, and summed by time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from brim.config import GatewayConfig
from brim.gateway import history_views
from brim.gateway.errors import INTERNAL_ERROR_MESSAGE
from brim.gateway.failures import explain_failure
from brim.gateway.records import RequestRecord
from brim.gateway.request_history import DAY, HistoryFilter, RequestHistory
from brim.models.pricing import Usage
from brim.testing import ErrorReply, ScriptedServer
from tests.support.gateway.accounts import bearer_headers, create_secret, say_hi
from tests.support.gateway.process import Running, config_of, run_gateway
from tests.support.gateway.requests import CHAT, ask

NOW = 1_900_000_000.0
EVERYTHING = HistoryFilter(0.0, 1e11)


def make_record(at: float, **fields: Any) -> RequestRecord:
    record = RequestRecord(CHAT, "openai")
    record.time, record.model, record.upstream = at, "gpt-4o", "one"
    record.status, record.end, record.streamed = 200, "completed", True
    record.usage, record.cost = Usage(10, 4, 2), Decimal("0.5")
    record.first_byte, record.seconds = 0.1, 1.0
    for name, value in fields.items():
        setattr(record, name, value)
    return record


@pytest.fixture
def history(tmp_path: Path) -> RequestHistory:
    return RequestHistory(tmp_path, days=30_000)


# The file


def test_requests_are_found_after_a_restart(history: RequestHistory) -> None:
    first = make_record(NOW, key="anna", trimmed={"dropped": 3})
    second = make_record(NOW + 1, model="größe \ud83d".encode("ascii", "replace").decode())
    for each in (first, second, second):
        history.add(each)

    async def found() -> list[dict[str, Any]]:
        await history.flush()
        again = RequestHistory(history.path.parent, days=1)
        return await again.search(EVERYTHING, None, 10)

    newest, oldest = asyncio.run(found())
    assert (newest["id"], oldest["id"]) == (second.id, first.id)
    assert oldest["trimmed"] == {"dropped": 3}
    assert oldest["usage"] == {"input": 10, "cached": 4, "output": 2}
    assert oldest.keys() <= {*first.to_dict(), "failed"}


def test_old_requests_are_removed(tmp_path: Path) -> None:
    history = RequestHistory(tmp_path, days=2)
    history.add(make_record(time.time() - 3 * DAY))
    history.add(kept := make_record(time.time() - DAY))
    assert [each["id"] for each in asyncio.run(history.search(EVERYTHING, None, 9))] == [kept.id]


def test_without_days_nothing_is_kept(tmp_path: Path) -> None:
    history = RequestHistory(tmp_path, days=0)
    history.add(make_record(NOW))
    assert asyncio.run(history.search(EVERYTHING, None, 9)) == []
    assert not history.path.exists()


def test_a_file_that_cannot_be_written_loses_no_request(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.write_text("not a folder")
    history = RequestHistory(folder, days=30_000)
    history.add(record := make_record(NOW))
    asyncio.run(history.flush())
    folder.unlink()
    assert [each["id"] for each in asyncio.run(history.search(EVERYTHING, None, 9))] == [record.id]


def test_durations_are_summed_as_percentiles(history: RequestHistory) -> None:
    for number in range(1, 21):
        history.add(make_record(NOW + number, seconds=number / 10))
    history.add(make_record(NOW + 5, usage=None, seconds=99.0))
    history.add(make_record(NOW + 95, seconds=7.0, streamed=False))
    wanted = HistoryFilter(NOW, NOW + 120)
    assert asyncio.run(history.percentiles(wanted, 60, "seconds")) == {0: (1.0, 1.9), 1: (7.0, 7.0)}
    assert asyncio.run(history.percentiles(wanted, 60, "first_byte")) == {0: (0.1, 0.1)}


# Over HTTP


@pytest.fixture
def operator(upstream: ScriptedServer) -> Iterator[tuple[Running, httpx.Client]]:
    heads = bearer_headers(create_secret("boss", is_operator=True))
    with (
        run_gateway(config_of(upstream.url)) as served,
        httpx.Client(base_url=served.url, headers=heads) as client,
    ):
        yield served, client


def test_finished_requests_can_be_searched(operator: tuple[Running, httpx.Client]) -> None:
    served, client = operator
    anna, ben = create_secret("anna"), create_secret("ben", "0.000001/day")
    for _ in range(3):
        assert say_hi(served, anna).status_code == 200
    assert say_hi(served, ben, model="unknown-price").status_code == 403

    def search(query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.get(f"/brim/history?{query}").json()["data"]
        return found

    assert [each["key"] for each in search("")] == ["ben", "anna", "anna", "anna"]
    (failed,) = search("failed=true")
    assert failed["reason"].startswith("The key has a cap in dollars")
    assert search("q=ANNA 200&key=anna") == search("q=anna")
    assert search("q=anna+403") == search(f"until={time.time() - 60}") == []
    id = failed["id"]
    assert search(f"q={id}") == [failed]
    shown = client.get(f"/brim/requests/{id}").json()
    assert shown["reason"] == failed["reason"]


def test_pages_of_a_search_have_every_request_once(
    operator: tuple[Running, httpx.Client],
) -> None:
    served, client = operator
    for number in range(5):
        served.gateway.history.add(make_record(time.time() - number % 2))
    pages, after = [], ""
    while after is not None:
        page = client.get("/brim/history", params={"last": 2, "before": after}).json()
        pages.append([each["id"] for each in page["data"]])
        after = page["next"]
    ids = [id for page in pages for id in page]
    assert len(ids) == len(set(ids)) == 5


def test_series_have_sums_by_time_model_and_reason(
    operator: tuple[Running, httpx.Client],
) -> None:
    served, client = operator
    start = time.time() // 3_600 * 3_600 - 7_200
    failed = {"status": 429, "code": "insufficient_quota", "usage": None, "cost": None}
    for at, fields in ((0, {}), (1, {"key": "anna"}), (70, failed), (71, {"fallback": "o3"})):
        served.gateway.history.add(make_record(start + at, **fields))
    found = client.get(f"/brim/series?since={start}&until={start + 3_600}").json()
    (line,) = found["lines"]
    assert found["step"] == 15
    assert [(at, n) for at, n in enumerate(line["requests"]) if n] == [(0, 2), (4, 2)]
    assert sum(line["failed"]) == 1
    assert line["cost"][0] == 1.0
    assert line["total_median"][:2] == [1.0, None]
    assert [(each["name"], each["requests"]) for each in found["by_model"]] == [
        ("gpt-4o", 3), ("o3", 1),
    ]  # fmt: skip
    (reason,) = found["reasons"]
    assert reason["name"] == "insufficient_quota"
    assert "cap" in reason["reason"]
    by_model = client.get(f"/brim/series?since={start}&until={start + 60}&group=model").json()
    assert [each["name"] for each in by_model["lines"]] == ["gpt-4o"]


@pytest.mark.parametrize(
    "query",
    ["history?since=x", "history?since=-1", "history?since=5&until=4", "history?before=x_y",
     "history?last=0", "series?group=body", "series?until=nan", "series?since=1e300"],
)  # fmt: skip
def test_invalid_queries_are_rejected(operator: tuple[Running, httpx.Client], query: str) -> None:
    assert operator[1].get(f"/brim/{query}").json()["error"]["code"] == "invalid_request"


@pytest.mark.parametrize("path", ["history", "series"])
def test_a_query_that_takes_too_long_is_rejected(
    operator: tuple[Running, httpx.Client], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, client = operator
    for number in range(200):
        served.gateway.history.add(make_record(time.time() - number))
    with monkeypatch.context() as brief:
        brief.setattr(history_views, "READ_SECONDS", 0.0)
        answer = client.get(f"/brim/{path}?since=0")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "history_timeout")
    assert client.get(f"/brim/{path}?since=0").status_code == 200


def test_the_history_is_for_operators_only(operator: tuple[Running, httpx.Client]) -> None:
    client = bearer_headers(create_secret("anna"))
    for path in ("history", "series"):
        answer = httpx.get(f"{operator[0].url}/brim/{path}", headers=client)
        assert answer.status_code == 403


def test_the_history_can_be_switched_off(upstream: ScriptedServer, state: Path) -> None:
    config = replace(config_of(upstream.url), gateway=GatewayConfig(history_days=0))
    with run_gateway(config) as served:
        ask(served, CHAT, "hi")
        assert httpx.get(f"{served.url}/brim/history").json() == {
            "object": "list", "data": [], "next": None, "days": 0,
        }  # fmt: skip
    assert not (state / "history.sqlite3").exists()


# Why a request failed


def test_every_failure_is_explained() -> None:
    with (
        ScriptedServer([ErrorReply(401), ErrorReply(529), ErrorReply(418)]) as failing,
        run_gateway(config_of(failing.url)) as served,
    ):
        for _ in range(3):
            ask(served, CHAT, "hi")
        found = httpx.get(f"{served.url}/brim/requests").json()["data"]
    assert [each["reason"] for each in found] == [
        "The upstream (upstream-1) returned status 418.",
        "The upstream (upstream-1) is overloaded.",
        "The upstream (upstream-1) rejected its key. Check upstreams.NAME.key_env.",
    ]


def test_a_completed_request_has_no_reason() -> None:
    fine = {"status": 200, "code": None, "end": "completed", "upstream": "one"}
    assert explain_failure(fine) is None
    assert explain_failure({**fine, "end": "upstream_failed"}) is not None
    assert INTERNAL_ERROR_MESSAGE not in str(explain_failure({**fine, "code": "internal_error"}))
