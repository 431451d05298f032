"""The maximum cost of a request is reserved, in tokens and at its upstream's price."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from brim.config import UpstreamConfig
from brim.gateway.accounts.caps import ALL
from brim.gateway.upstreams import Upstream
from brim.models.pricing import Price
from brim.storage.calibration_store import CalibrationStore
from brim.testing import ScriptedServer
from brim.wire import formats
from tests.support.gateway.accounts import (
    COST,
    FREE,
    MODEL,
    PRICE,
    PROMPT_TOKENS,
    bearer_headers,
    create_secret,
    dollars,
    gateway_with_upstream,
    make_priced_config,
    only_row,
    read_cap_usage,
    say_hi,
    set_caps,
)
from tests.support.gateway.process import FORMATS, config_of, run_gateway
from tests.support.gateway.requests import CHAT, PATHS, RESPONSES, body_of, code_of, post

# Tokens


@pytest.mark.parametrize(
    ("path", "key"),
    [(CHAT, "max_tokens"), (RESPONSES, "max_output_tokens")],
)
def test_an_output_limit_is_added_for_capped_keys(path: str, key: str) -> None:
    capped, free = create_secret("anna", "5/day"), create_secret("bob")
    raw = (
        b'{ "metadata":  [1.50, "\\u00e9"], '
        + str(body_of(path, "hi", model=MODEL))[1:].replace("'", '"').encode()
    )
    short = raw.replace(b"{ ", b'{ "%b": 7, ' % key.encode(), 1)
    with gateway_with_upstream() as (gateway, provider):
        for secret, body in ((capped, raw), (free, raw), (capped, short), (free, short)):
            assert post(gateway.url, path, body, bearer_headers(secret)).status_code == 200
        sent = [request.raw for request in provider.requests]
    added = b'{"%b":100,' % key.encode()
    assert sent == [added + raw[1:], raw, short, short]


def test_the_output_limit_has_the_name_of_the_format_and_host() -> None:
    def key(endpoint: str, format: formats.BodyFormat) -> str:
        config = UpstreamConfig(endpoint, FORMATS)
        return Upstream("one", config, None, CalibrationStore()).api(format).reply_key

    assert key("https://api.openai.com/v1", formats.CHAT) == "max_completion_tokens"
    assert key("https://me.openai.azure.com/openai/v1", formats.CHAT) == "max_completion_tokens"
    assert key("http://127.0.0.1:8080/v1", formats.CHAT) == "max_tokens"
    assert key("https://api.openai.com/v1", formats.RESPONSES) == "max_output_tokens"
    assert key("https://api.anthropic.com", formats.ANTHROPIC) == "max_tokens"


@pytest.mark.parametrize("more", [{"n": 3}, {"n": 3, "response_format": None}])
def test_all_requested_choices_are_reserved(more: dict[str, Any]) -> None:
    three = 2 * PROMPT_TOKENS + 3 * 10 * 100
    secret = create_secret("anna", dollars(three))
    with gateway_with_upstream() as (gateway, provider):
        assert say_hi(gateway, secret, **more).status_code == 200
        set_caps(ALL, dollars(three - 1))
        assert say_hi(gateway, create_secret("bob"), **more).status_code == 429
        assert len(provider.requests) == 1


@pytest.mark.parametrize(
    "bound",
    [
        *({"max_tokens": -1}, {"max_tokens": 0}, {"max_completion_tokens": "9000"}),
        *({"n": -5}, {"n": "5"}, {"n": 2.0}, {"n": True}, {"n_predict": -1}),
    ],
    ids=str,
)
def test_an_invalid_output_limit_is_rejected_for_capped_keys(bound: dict[str, Any]) -> None:
    capped, free = create_secret("anna", "5/day"), create_secret("bob")
    with gateway_with_upstream() as (gateway, provider):
        rejected = say_hi(gateway, capped, **bound)
        assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, *bound)
        assert not provider.requests
        say_hi(gateway, free, **bound)
        assert len(provider.requests) == 1
    assert only_row().key_name == "bob"


def test_the_output_limit_of_llama_cpp_is_honoured() -> None:
    secret = create_secret("anna", "1000 tokens")
    with gateway_with_upstream() as (gateway, _):
        assert say_hi(gateway, secret, n_predict=1_000 - PROMPT_TOKENS).status_code == 200
        assert say_hi(gateway, secret, n_predict=1_000 - PROMPT_TOKENS).status_code == 429


def test_a_stored_conversation_reserves_the_whole_window() -> None:
    whole = 2 * 3_900 + 10 * 100
    secret = create_secret("anna", dollars(whole))
    with gateway_with_upstream() as (gateway, provider):
        more = {"previous_response_id": "resp_1"}
        assert say_hi(gateway, secret, RESPONSES, **more).status_code == 200
        set_caps(ALL, dollars(whole - 1))
        assert say_hi(gateway, create_secret("bob"), RESPONSES, **more).status_code == 429
        assert len(provider.requests) == 1


def test_a_stored_conversation_without_a_known_window_is_rejected() -> None:
    secret = create_secret("anna", "5/day")
    with (
        ScriptedServer("Hello.", reports_window=False) as provider,
        run_gateway(config_of(provider.url, price=PRICE)) as gateway,
    ):
        kept = {"previous_response_id": "resp_1", "model": "own"}
        answer = say_hi(gateway, secret, RESPONSES, **kept)
        assert (answer.status_code, code_of(RESPONSES, answer)) == (403, "uncountable")
        assert "upstreams.upstream-1.window" in answer.text
        assert say_hi(gateway, secret, RESPONSES, model="own").status_code == 200
        assert len(provider.requests) == 1


# Prices


@pytest.mark.parametrize("path", PATHS)
def test_a_dollar_cap_needs_a_price(path: str) -> None:
    secret = create_secret("anna", "5/day")
    with gateway_with_upstream(price=None) as (gateway, provider):
        answer = say_hi(gateway, secret, path, model="own")
        assert answer.status_code == 403
        assert "upstreams.upstream-1.price" in answer.json()["error"]["message"]
        assert not provider.requests
    with gateway_with_upstream(price=FREE) as (gateway, _):
        assert say_hi(gateway, secret, path, model="own").status_code == 200
    assert only_row().charge.micro_dollars == 0


def test_a_token_cap_needs_no_price() -> None:
    secret = create_secret("anna", "2k tokens/day")
    with gateway_with_upstream(price=None) as (gateway, _):
        assert say_hi(gateway, secret, model="own").status_code == 200
        answer = say_hi(gateway, secret, model="own", reply=1_995)
        assert answer.status_code == 429
        assert "The 2,000 tokens/day cap" in answer.json()["error"]["message"]
    assert read_cap_usage() == {"key tokens": (PROMPT_TOKENS + 2, 0)}
    assert only_row().charge.is_unpriced


def test_a_trimmed_retry_is_reserved_again() -> None:
    secret = create_secret("anna", dollars(cap := 45_000))
    price = Price(input=Decimal(2), output=Decimal(100))
    with (
        ScriptedServer("Hello.", window=1_500, reports_window=False) as provider,
        run_gateway(make_priced_config(provider.url, price=price)) as gateway,
    ):
        body = body_of(CHAT, *["word " * 600, "so"] * 6, "hi", model=MODEL, reply=3_000)
        answer = post(gateway.url, CHAT, body, bearer_headers(secret))
        assert answer.status_code == 429
        (sent,) = provider.requests
    assert 2 * sent.tokens + 100 * sent.body["max_tokens"] <= cap
    assert only_row().charge.micro_dollars == 0
    assert read_cap_usage() == {"key dollars": (0, 0)}


def test_a_huge_output_limit_is_clamped() -> None:
    free, capped = create_secret("bob"), create_secret("anna", "900M tokens")
    with gateway_with_upstream() as (gateway, provider):
        assert say_hi(gateway, free, n=2**62).status_code == 200
        assert say_hi(gateway, capped, n=2**62).status_code == 429
        assert len(provider.requests) == 1
    assert only_row().charge.micro_dollars == COST
