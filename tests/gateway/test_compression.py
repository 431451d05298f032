"""`POST /v1/compress`: the contract that proxies with a compressor call."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import brim
from brim.testing import ScriptedServer
from tests.support.gateway.accounts import create_secret
from tests.support.gateway.clients import long_talk
from tests.support.gateway.process import config_of, run_gateway

MESSAGES: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in long_talk(100)]


def compress(**fields: Any) -> httpx.Response:
    with ScriptedServer("Blue.", window=2_000) as upstream:
        config = config_of(upstream.url, window=2_000, reply=100)
        with run_gateway(config) as gateway:
            answer = httpx.post(f"{gateway.url}/v1/compress", json={"model": "gpt-4o", **fields})
        assert not upstream.requests
    return answer


@pytest.mark.parametrize("target", [None, 500])
def test_messages_are_fitted_and_counted(target: int | None) -> None:
    fields = {} if target is None else {"target_tokens": target}
    found = compress(messages=MESSAGES, **fields).raise_for_status().json()
    tokens = brim.count(found["messages"], model="gpt-4o")
    assert tokens == found["tokens_after"] <= (target or 1_900)
    assert found["tokens_before"] == brim.count(MESSAGES, model="gpt-4o")
    assert found["compression_ratio"] == round(tokens / found["tokens_before"], 4)
    assert found["messages"][-1] == MESSAGES[-1]


def test_messages_that_fit_are_returned_unchanged() -> None:
    found = compress(messages=MESSAGES[-3:]).json()
    assert found["messages"] == MESSAGES[-3:]
    assert (found["compression_ratio"], found["tokens_saved"]) == (1.0, 0)


@pytest.mark.parametrize(
    "fields", [{}, {"messages": "hi"}, {"messages": MESSAGES, "target_tokens": 0}]
)
def test_invalid_fields_are_named(fields: dict[str, Any]) -> None:
    answer = compress(**fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_request"


def test_messages_that_cannot_be_short_enough_are_an_error() -> None:
    answer = compress(messages=[{"role": "user", "content": "word " * 5_000}])
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_key_is_needed_if_keys_are_required() -> None:
    create_secret("anna")
    assert compress(messages=MESSAGES).status_code == 401
