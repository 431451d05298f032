"""A key with caps cannot send a request whose cost has no bound."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.gateway.accounts import (
    MAX_COST,
    MODEL,
    bearer_headers,
    create_secret,
    dollars,
    gateway_with_upstream,
    only_row,
    priced,
    say_hi,
)
from tests.support.gateway.process import running
from tests.support.gateway.requests import CHAT, MESSAGES, RESPONSES, post

WINDOW = 2 * 3_900 + 10 * 100
"""Micro-dollars of a prompt that fills the window and a reply of 100 tokens."""
TOOL = {"name": "look", "input_schema": {"type": "object"}}
UNBOUNDED: list[tuple[str, dict[str, Any]]] = [
    (RESPONSES, {"background": True}),
    (RESPONSES, {"tools": [{"type": "web_search"}]}),
    (RESPONSES, {"tools": [{"type": "mcp", "server_url": "https://mcp.example.com"}]}),
    (MESSAGES, {"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]}),
    (MESSAGES, {"mcp_servers": [{"type": "url", "url": "https://mcp.example.com"}]}),
    (CHAT, {"web_search_options": {}} | {"plugins": [{"id": "web"}]}),
    (CHAT, {"models": ["gpt-4o", "gpt-5-pro"]}),
    (CHAT, {"service_tier": "priority"}),
    (CHAT, {"MAX_TOKENS": 100_000}),
    (CHAT, {"N": 50}),
]


@pytest.mark.parametrize(("path", "more"), UNBOUNDED, ids=str)
def test_a_key_with_caps_cannot_send_a_request_without_a_cost_bound(
    path: str, more: dict[str, Any]
) -> None:
    capped, free = create_secret("anna", "5/day"), create_secret("bob")
    with gateway_with_upstream() as (gateway, provider):
        refused = say_hi(gateway, capped, path, **more)
        assert refused.status_code == 403
        assert "This key has caps" in refused.json()["error"]["message"]
        assert not provider.requests
        assert say_hi(gateway, free, path, **more).status_code == 200
        assert len(provider.requests) == 1
    assert only_row().key_name == "bob"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"model": "unknown-model"}, (403, "price_unknown")),
        ({"max_tokens": "many"}, (400, "invalid_request")),
        ({"MAX_TOKENS": 9}, (403, "uncountable")),
    ],
    ids=str,
)
def test_an_unbounded_request_is_rejected_before_the_upstream_is_contacted(
    more: dict[str, Any], expected: tuple[int, str]
) -> None:
    secret = create_secret("anna", "5/day")
    with running(priced("http://127.0.0.1:9/v1", price=None)) as gateway:
        refused = say_hi(gateway, secret, **more)
    assert (refused.status_code, refused.json()["error"]["code"]) == expected


def test_a_cap_in_tokens_allows_expensive_tiers() -> None:
    secret = create_secret("anna", "5k tokens/day")
    with gateway_with_upstream() as (gateway, _):
        assert say_hi(gateway, secret, service_tier="priority").status_code == 200


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}),
        (RESPONSES, {"prompt": {"id": "pmpt_1"}}),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ],
    ids=str,
)
def test_a_prompt_that_the_upstream_extends_reserves_the_whole_window(
    path: str, more: dict[str, Any]
) -> None:
    roomy, tight = create_secret("anna", dollars(WINDOW)), create_secret("bob", dollars(WINDOW - 1))
    with gateway_with_upstream() as (gateway, provider):
        assert say_hi(gateway, tight, path, reply=100, **more).status_code == 429
        assert say_hi(gateway, roomy, path, reply=100, **more).status_code == 200
        assert len(provider.requests) == 1


def test_a_file_by_reference_reserves_the_whole_window() -> None:
    roomy, tight = create_secret("anna", dollars(WINDOW)), create_secret("bob", dollars(WINDOW - 1))
    parts = [{"type": "file", "file": {"file_id": "file-1"}}, {"type": "text", "text": "hi"}]
    body = {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": parts}]}
    with gateway_with_upstream() as (gateway, _):
        assert post(gateway.url, CHAT, body, bearer_headers(tight)).status_code == 429
        assert post(gateway.url, CHAT, body, bearer_headers(roomy)).status_code == 200


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("second", ["max_tokens", "max_tok\\u0065ns"])
def test_a_duplicate_field_is_sent_with_the_reserved_value_only(
    second: str, is_streamed: bool
) -> None:
    capped = create_secret("anna", "5/day")
    raw = (
        f'{{"max_tokens": 100000, "model": "gpt-4o", "{second}": 10, '
        f'"stream": {"true" if is_streamed else "false"}, '
        '"messages": [{"role": "user", "content": "hi"}]}'
    ).encode()
    with gateway_with_upstream() as (gateway, provider):
        assert post(gateway.url, CHAT, raw, bearer_headers(capped)).status_code == 200
        (request,) = provider.requests
        assert request.raw.count(b"max_tok") == 1
        assert request.body["max_tokens"] == 10
    assert not only_row().is_estimated  # a stream was asked for its usage as well


def test_a_one_hour_cache_is_reserved_at_twice_the_input_price() -> None:
    content: dict[str, Any] = {"type": "text", "text": "hi"}
    body = {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": [content]}]}
    anna = bearer_headers(create_secret("anna", dollars(MAX_COST)))
    with gateway_with_upstream() as (gateway, _):
        content["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
        assert post(gateway.url, MESSAGES, body, anna).status_code == 429
        hidden = json.dumps(body).replace('"1h"', r'"\u0031h"').encode()
        assert post(gateway.url, MESSAGES, hidden, anna).status_code == 429
        content["cache_control"] = {"type": "ephemeral"}
        assert post(gateway.url, MESSAGES, body, anna).status_code == 200
