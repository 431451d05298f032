"""Caps hold: the maximum cost is reserved before the upstream sees a request."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pytest

from brim.gateway import auth
from brim.gateway.accounts.caps import ALL, Cap, project_scope
from brim.gateway.accounts.reservations import CapReached
from brim.gateway.errors import cap_error
from brim.testing import ErrorReply, ScriptedServer, TextReply
from tests.support.gateway.accounts import (
    COST,
    MAX_COST,
    MODEL,
    anthropic_with,
    bearer_headers,
    create_secret,
    dollars,
    fallback_config,
    gateway_with_upstream,
    ledger,
    make_priced_config,
    only_row,
    openai_with,
    read_cap_usage,
    run_in_store,
    say_hi,
    set_caps,
    with_gateway,
)
from tests.support.gateway.process import Running, run_gateway
from tests.support.gateway.requests import (
    CHAT,
    MESSAGES,
    PATHS,
    RESPONSES,
    ask,
    code_of,
    post,
    wait_until,
)

HELLO: Any = [{"role": "user", "content": "hi"}]


# Reached caps


@pytest.mark.parametrize("path", PATHS)
def test_a_reached_cap_is_reported_before_the_upstream_is_called(path: str) -> None:
    secret = create_secret("anna", dollars(MAX_COST, "day"))
    with gateway_with_upstream() as (gateway, provider):
        assert say_hi(gateway, secret, path, reply=100).status_code == 200
        answer = say_hi(gateway, secret, path, reply=100)
        message = answer.json()["error"]["message"]
        assert answer.status_code == 429
        assert code_of(path, answer) in ("insufficient_quota", "rate_limit_error")
        assert "The $0.001016/day cap of key anna is reached" in message
        assert re.search(
            r"\$0\.0000\d+ spent, \$0 reserved, and this request may cost up to \$0\.0010", message
        )
        assert re.search(r"resets at 20\d\d-\d\d-\d\d 00:00 UTC", message)
        assert answer.headers["x-should-retry"] == "false"
        assert 0 < int(answer.headers["retry-after"]) <= 86_400
        assert len(provider.requests) == 1
    assert len(ledger()) == 1


@pytest.mark.parametrize(
    ("cap", "amount", "shown"),
    [
        (Cap(5_000_000), 4_398_046_511_104, "cost up to $4,398,046.51 "),
        (Cap(5_000_000), 1_234, "cost up to $0.001234 "),
        (Cap(5, "tokens"), 1_234_567, "cost up to 1,234,567 "),
    ],
)
def test_amounts_have_significant_digits(cap: Cap, amount: int, shown: str) -> None:
    message = cap_error(CapReached(ALL, cap, 12_345_678_901, 0, None), amount, "anna").message
    assert shown in message
    assert ("12,345,678,901 spent" if cap.unit == "tokens" else "$12,345.68 spent") in message


def test_a_cap_below_a_single_request_is_reported() -> None:
    secret = create_secret("anna", dollars(MAX_COST - 1, "day"))
    with gateway_with_upstream() as (gateway, provider):
        answer = say_hi(gateway, secret, reply=100)
        assert "is lower than this request's maximum cost" in answer.json()["error"]["message"]
        assert answer.status_code == 429
        assert "retry-after" not in answer.headers
        assert not provider.requests
    assert ledger() == []
    assert read_cap_usage() == {"key dollars": (0, 0)}


def test_a_total_cap_does_not_reset() -> None:
    secret = create_secret("anna", dollars(MAX_COST))
    with gateway_with_upstream() as (gateway, _):
        assert say_hi(gateway, secret).status_code == 200
        answer = say_hi(gateway, secret)
        assert "It does not reset." in answer.json()["error"]["message"]
        assert "retry-after" not in answer.headers


def test_client_libraries_do_not_retry_a_reached_cap() -> None:
    secret = create_secret("anna", dollars(COST - 1, "month"))
    with gateway_with_upstream() as (gateway, provider):
        with openai_with(gateway, secret, retries=3) as client:
            with pytest.raises(openai.RateLimitError) as rejected:
                client.chat.completions.create(model=MODEL, messages=HELLO)
            assert (rejected.value.code, rejected.value.type) == ("insufficient_quota",) * 2
            with pytest.raises(openai.RateLimitError):
                client.responses.create(model=MODEL, input="hi")
        with anthropic_with(gateway, secret, retries=3) as other:
            with pytest.raises(anthropic.RateLimitError) as limited:
                other.messages.create(model=MODEL, messages=HELLO, max_tokens=9)
            assert limited.value.type == "rate_limit_error"
        assert len(gateway.gateway.records.newest(100)) == 3
        assert not provider.requests


def test_a_cap_filled_by_running_requests_allows_a_retry() -> None:
    secret, goes_on = create_secret("anna", dollars(2 * MAX_COST - 1, "day")), threading.Event()
    with (
        gateway_with_upstream([TextReply("Hello.", hold=goes_on), "Hello."]) as (gateway, provider),
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(say_hi, gateway, secret, stream=True)
        wait_until(lambda: provider.requests)
        rejected = say_hi(gateway, secret)
        assert rejected.status_code == 429
        assert rejected.headers["retry-after"] == "1"
        assert "x-should-retry" not in rejected.headers
        assert "has no room right now" in rejected.json()["error"]["message"]
        goes_on.set()
        assert first.result().status_code == 200
        with openai_with(gateway, secret, retries=2) as client:  # which retry by themselves
            client.chat.completions.create(model=MODEL, messages=HELLO)
    assert read_cap_usage() == {"key dollars": (2 * COST, 0)}


def test_finished_requests_never_block_a_cap() -> None:
    secret = create_secret("anna", dollars(MAX_COST + 9 * COST))
    with gateway_with_upstream() as (gateway, provider):
        assert [say_hi(gateway, secret).status_code for _ in range(11)] == [200] * 10 + [429]
        assert len(provider.requests) == 10
    assert read_cap_usage() == {"key dollars": (10 * COST, 0)}


def test_sixty_concurrent_requests_do_not_exceed_a_cap() -> None:
    secret, goes_on = (
        create_secret("anna", dollars(10 * MAX_COST + MAX_COST // 2)),
        threading.Event(),
    )
    rejected = threading.Semaphore(0)

    def asks(gateway: Running) -> int:
        status = say_hi(gateway, secret, stream=True).status_code
        if status == 429:
            rejected.release()
        return status

    with (
        gateway_with_upstream(lambda _: TextReply("Hello.", hold=goes_on)) as (gateway, provider),
        ThreadPoolExecutor(60) as pool,
    ):
        asking = [pool.submit(asks, gateway) for _ in range(60)]
        for _ in range(50):
            rejected.acquire()
        assert read_cap_usage() == {"key dollars": (0, 10 * MAX_COST)}
        goes_on.set()
        assert sorted(each.result() for each in asking) == [200] * 10 + [429] * 50
        assert len(provider.requests) == 10
    assert read_cap_usage() == {"key dollars": (10 * COST, 0)}
    assert len(ledger()) == 10


# Scopes


@pytest.mark.parametrize(
    ("tight", "whose"),
    [("own", "key anna"), ("project", "project blue"), ("all", "this gateway")],
)
def test_all_caps_that_apply_count(tight: str, whose: str) -> None:
    caps = dict.fromkeys(("own", "project", "all"), "9/day") | {tight: dollars(MAX_COST, "day")}
    secret = create_secret("anna", caps["own"], project="blue")
    set_caps(project_scope("blue"), caps["project"])
    set_caps(ALL, caps["all"])
    with gateway_with_upstream() as (gateway, _):
        assert say_hi(gateway, secret).status_code == 200
        rejected = say_hi(gateway, secret)
        assert rejected.status_code == 429
        assert f"The $0.001016/day cap of {whose} is reached" in rejected.json()["error"]["message"]
    spent = {"key dollars": (COST, 0), "project dollars": (COST, 0), "all dollars": (COST, 0)}
    assert read_cap_usage() == spent


def test_a_changed_cap_applies_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "KNOWN_KEY_SECONDS", 0.0)
    secret = create_secret("anna", dollars(MAX_COST))
    with gateway_with_upstream() as (gateway, _):
        assert [say_hi(gateway, secret).status_code for _ in range(2)] == [200, 429]
        (scope,) = run_in_store(lambda store: store.caps())
        set_caps(scope, dollars(COST + MAX_COST))
        assert [say_hi(gateway, secret).status_code for _ in range(2)] == [200, 429]
        set_caps(scope)
        assert [say_hi(gateway, secret).status_code for _ in range(2)] == [200, 200]
        set_caps(scope, dollars(1))
        assert say_hi(gateway, secret).status_code == 429


# Other paths


def test_a_capped_key_cannot_use_passthrough_paths() -> None:
    secret = create_secret("anna", "5/day")
    with ScriptedServer("Hello.") as provider:
        config = with_gateway(
            make_priced_config(provider.url), passthrough_paths=("/v1/moderations",)
        )
        with run_gateway(config) as gateway:
            rejected = post(gateway.url, "/v1/moderations", {"model": "m"}, bearer_headers(secret))
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (403, "uncounted_path")


@pytest.mark.parametrize("room", [2 * MAX_COST, 2 * MAX_COST - 1])
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_fallback_is_reserved_at_its_own_price(path: str, room: int) -> None:
    secret = create_secret("anna", dollars(room))
    with (
        ScriptedServer(ErrorReply(503, "come later")) as first,
        ScriptedServer("Hello.") as second,
        run_gateway(fallback_config(first.url, second.url)) as gateway,
    ):
        answer = say_hi(gateway, secret, path)
        if room == 2 * MAX_COST:
            assert answer.status_code == 200
            assert answer.headers["brim-fallback"] == "gpt-4o-mini"
        else:
            assert answer.status_code == 503
            assert "come later" in answer.text
            assert not second.requests
    row, is_dear = only_row(), room == 2 * MAX_COST
    assert row.model == ("gpt-4o-mini" if is_dear else MODEL)
    assert row.upstream == ("second" if is_dear else "first")
    assert row.charge.micro_dollars == (2 * COST if is_dear else 0)
    assert read_cap_usage() == {"key dollars": (2 * COST if is_dear else 0, 0)}


def test_a_dry_run_costs_nothing() -> None:
    secret = create_secret("anna", dollars(1))
    with gateway_with_upstream() as (gateway, provider):
        headers = {**bearer_headers(secret), "brim-fitting": "dry-run"}
        assert ask(gateway, MESSAGES, "hi", model=MODEL, headers=headers).status_code == 200
        assert not provider.requests
    assert ledger() == []
