"""Unmodified client libraries with another base URL, against a real llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from brim.providers.local import LocalServer
from tests.support.fixtures import LlamaWith
from tests.support.gateway.clients import (
    ASKING,
    WORDS,
    Asking,
    anthropic_client,
    langchain_openai,
    long_talk,
    openai_client,
)
from tests.support.gateway.process import Running, config_of, run_gateway
from tests.support.gateway.requests import CHAT, MESSAGES, body_of

TURNS = long_talk(120)
"""More than ten times the window."""


@pytest.fixture(scope="module")
def llama(llama_with: LlamaWith) -> LocalServer:
    return llama_with(window=512)


def gateway_to(llama: LocalServer) -> AbstractContextManager[Running]:
    return run_gateway(config_of(llama.url, key_env="KEY", reply=WORDS), {"KEY": llama.key})


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_every_client_can_send_a_history_of_any_length(ask: Asking, llama: LocalServer) -> None:
    with gateway_to(llama) as gateway:
        assert ask(gateway.url, llama.model, TURNS).strip()
    (record,) = gateway.gateway.records.newest(10)
    assert (record.status, record.end, record.resent) == (200, "completed", 0)
    assert record.tokens_before is not None
    assert record.tokens_before > 10 * llama.window
    assert record.trimmed["dropped"] > 150
    assert record.usage is not None
    assert not record.is_usage_estimated
    assert record.usage.input + WORDS <= llama.window


def test_response_headers_describe_the_trim(llama: LocalServer) -> None:
    def make_arguments(path: str) -> Any:
        return body_of(path, *TURNS, reply=4, model=llama.model)

    with (
        gateway_to(llama) as gateway,
        openai_client(gateway.url) as client,
        anthropic_client(gateway.url) as other,
    ):
        chat = client.chat.completions.with_raw_response.create(**make_arguments(CHAT))
        check(chat.headers, chat.parse().usage.prompt_tokens, llama)
        with other.messages.with_streaming_response.create(**make_arguments(MESSAGES)) as message:
            usage = message.parse().usage
            read = usage.input_tokens + (usage.cache_read_input_tokens or 0)
            check(message.headers, read, llama)
        chain = langchain_openai(gateway.url, llama.model, include_response_headers=True)
        reply: Any = chain.invoke([{"role": role, "content": text} for role, text in TURNS])
        check(reply.response_metadata["headers"], reply.usage_metadata["input_tokens"], llama)


def check(headers: Mapping[str, str], used: int, llama: LocalServer) -> None:
    """Response headers describe the request."""
    assert headers["brim-request-id"].startswith("brim_")
    assert headers["brim-upstream"] == "upstream-1"
    assert int(headers["brim-tokens-before"]) > 10 * llama.window
    assert int(headers["brim-tokens"]) <= int(headers["brim-limit"]) <= llama.window - WORDS
    assert int(headers["brim-tokens"]) == pytest.approx(used, rel=0.25)
    assert headers["brim-count"] in ("estimate", "server")
    assert headers["brim-trimmed"].startswith("dropped=")
    assert headers["brim-policy"] == "steady"
