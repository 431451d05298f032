"""The clients that people have, unchanged but for the address, against a real llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brim.local import LocalServer
from tests.conftest import LlamaWith
from tests.gateway.clients import (
    ASKING,
    WORDS,
    Asking,
    anthropic_client,
    chat_of,
    long_talk,
    openai_client,
)
from tests.gateway.running import Running, config_of, running

TURNS = long_talk(120)
"""About ten times the window."""


@pytest.fixture(scope="module")
def llama(llama_with: LlamaWith) -> LocalServer:
    return llama_with(window=512)


@pytest.fixture
def gateway(llama: LocalServer) -> Iterator[Running]:
    with running(config_of(llama.url, key_env="KEY", reply=WORDS), {"KEY": llama.key}) as started:
        yield started


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_no_history_is_too_long(ask: Asking, gateway: Running, llama: LocalServer) -> None:
    assert ask(gateway.url, llama.model, TURNS).strip()
    (record,) = gateway.gateway.records.newest(10)
    assert record.status == 200
    assert record.end == "whole"
    assert record.resent == 0
    assert record.before is not None
    assert record.before > 10 * llama.window
    assert record.usage is not None
    assert not record.is_usage_counted
    assert record.usage.input + WORDS <= llama.window
    assert record.cut["dropped"] > 150
