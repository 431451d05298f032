"""Rate limits and end users, as clients see them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anthropic
import openai
import pytest

from brim.gateway.accounts.caps import each_user_scope
from brim.gateway.accounts.keys import hash_secret
from brim.gateway.accounts.rates import WINDOW_SECONDS
from brim.gateway.auth import find_end_user
from brim.testing import TextReply
from tests.support.gateway.accounts import (
    COST,
    MODEL,
    PROMPT_TOKENS,
    WORDS,
    anthropic_with,
    create_secret,
    dollars,
    gateway_with_upstream,
    ledger,
    open_request,
    openai_with,
    run_in_store,
    say_hi,
    set_caps,
)
from tests.support.gateway.process import Running
from tests.support.gateway.requests import MESSAGES, wait_until


@pytest.fixture(scope="module")
def gateway() -> Iterator[Running]:
    create_secret("first")  # a gateway that starts without keys notices them later
    with gateway_with_upstream() as (running, _):
        yield running


@pytest.fixture(autouse=True)
def state(shared_state: None) -> None:
    """The store of the shared gateway."""


def key_id(secret: str) -> str:
    access = run_in_store(lambda store: store.access(hash_secret(secret)))
    assert access is not None
    return access.key.id


def test_openai_clients_see_their_limits(gateway: Running) -> None:
    secret = create_secret("anna", "2rpm", "10k tokens/minute")
    client = openai_with(gateway, secret)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    raw = client.chat.completions.with_raw_response.create(**body)  # type: ignore[call-overload]
    found = {name: value for name, value in raw.headers.items() if "ratelimit" in name}
    assert found == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": f"{WINDOW_SECONDS}s",
        "x-ratelimit-limit-tokens": "10000",
        "x-ratelimit-remaining-tokens": str(10_000 - PROMPT_TOKENS - 100),
        "x-ratelimit-reset-tokens": f"{WINDOW_SECONDS}s",
    }
    client.chat.completions.create(**body)  # type: ignore[call-overload]
    with pytest.raises(openai.RateLimitError, match="2 requests/minute of key anna") as limited:
        client.chat.completions.create(**body)  # type: ignore[call-overload]
    assert limited.value.code == "rate_limit_exceeded"
    headers = limited.value.response.headers
    assert 0 < int(headers["retry-after"]) <= WINDOW_SECONDS
    assert headers["x-ratelimit-remaining-requests"] == "0"


def test_anthropic_clients_see_their_limits(gateway: Running) -> None:
    secret = create_secret("claude", "1rpm")
    client = anthropic_with(gateway, secret)
    raw = client.messages.with_raw_response.create(
        model=MODEL, max_tokens=100, messages=[{"role": "user", "content": "hi"}]
    )
    assert raw.headers["anthropic-ratelimit-requests-limit"] == "1"
    assert raw.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert raw.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    assert not any(name.startswith("x-ratelimit") for name in raw.headers)
    with pytest.raises(anthropic.RateLimitError, match="1 requests/minute") as limited:
        client.messages.create(
            model=MODEL, max_tokens=100, messages=[{"role": "user", "content": "hi"}]
        )
    assert int(limited.value.response.headers["retry-after"]) > 0


def test_tokens_are_limited_by_their_maximum_and_then_their_number(gateway: Running) -> None:
    secret = create_secret("tess", f"{PROMPT_TOKENS + 110} tokens/minute")
    assert say_hi(gateway, secret).status_code == 200
    assert say_hi(gateway, secret).status_code == 200, "settled before it is rejected"
    rejected = say_hi(gateway, secret, max_tokens=120)
    assert rejected.status_code == 429
    assert "lower than the 128 tokens that this request may need" in rejected.text
    assert rejected.headers["x-should-retry"] == "false"


def test_concurrent_requests_are_limited() -> None:
    goes_on = threading.Event()
    secret = create_secret("carl", "1 concurrent")
    with gateway_with_upstream(TextReply(WORDS, hold=goes_on)) as (gateway, provider):
        with open_request(gateway, secret, stream=True):
            wait_until(lambda: provider.requests)
            rejected = say_hi(gateway, secret)
            assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "1")
            assert "1 concurrent requests of key carl" in rejected.text
        goes_on.set()
        wait_until(lambda: [row for row in ledger() if row.key_name == "carl"])
        assert say_hi(gateway, secret).status_code == 200


def test_a_rate_limit_does_not_restrict_the_fields_of_a_request(gateway: Running) -> None:
    secret = create_secret("rita", "100rpm")
    assert say_hi(gateway, secret, web_search_options={}).status_code == 200


def test_each_end_user_has_its_own_cap(gateway: Running) -> None:
    secret = create_secret("app")
    set_caps(each_user_scope(key_id(secret)), dollars(2 * COST + 1_000, "day"))
    for _ in range(2):
        assert say_hi(gateway, secret, user="max").status_code == 200
    rejected = say_hi(gateway, secret, user="max")
    assert rejected.status_code == 429
    assert "end user 'max' of key app" in rejected.text
    assert say_hi(gateway, secret, user="mia").status_code == 200
    response = say_hi(gateway, secret, MESSAGES, max_tokens=100, metadata={"user_id": "mia"})
    assert response.status_code == 200
    wait_until(lambda: len(_users("app")) == 4)
    assert sorted(_users("app")) == ["max", "max", "mia", "mia"]


def _users(key: str) -> list[str]:
    return [row.user for row in ledger() if row.key_name == key]


def test_a_long_name_of_an_end_user_is_hashed(gateway: Running) -> None:
    secret = create_secret("long")
    assert say_hi(gateway, secret, user="x" * 200).status_code == 200
    wait_until(lambda: _users("long"))
    (name,) = _users("long")
    assert (name[:7], len(name)) == ("sha256:", 71)


def test_a_header_names_the_end_user() -> None:
    body = {"user": "mia", "metadata": {"user_id": "max"}}
    sent = {b"x-end-user": "größer".encode()}
    assert find_end_user(body, sent, "X-End-User") == "größer"
    assert find_end_user(body, {}, "X-End-User") == "mia"
    assert find_end_user({"metadata": {"user_id": "max"}, "user": 5}, sent, "") == ""
    assert find_end_user({"metadata": {"user_id": "max"}}, sent, "") == "max"
    assert find_end_user({"metadata": "max"}, {}, "X-End-User") == ""
