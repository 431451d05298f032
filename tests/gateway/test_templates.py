"""Strict chat templates behind a gateway: requests are adapted to the rules that a trial found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from brim.providers.local import LocalServer
from brim.testing import ErrorReply, ScriptedServer
from tests.support.fixtures import LlamaWith
from tests.support.gateway.process import Running, config_of, run_gateway
from tests.support.wire.strict_templates import CHATML, MISTRAL

PATH = "/v1/chat/completions"
MESSAGES = [
    {"role": "user", "content": "One."},
    {"role": "user", "content": "Two."},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Three."},
]
REJECTION = ErrorReply(400, "Jinja Exception: Conversation roles must alternate")


def ask(gateway: Running, **more: Any) -> httpx.Response:
    body = {"model": "my-local-model", "messages": MESSAGES, "max_tokens": 1, **more}
    return httpx.post(gateway.url + PATH, json=body, timeout=60)


@pytest.fixture
def strict(llama_with: LlamaWith) -> LocalServer:
    return llama_with(window=1024, template=MISTRAL)


@pytest.fixture
def gateway(strict: LocalServer) -> Iterator[Running]:
    config = config_of(strict.url, key_env="KEY")
    with run_gateway(config, {"KEY": strict.key}) as gateway:
        yield gateway


def test_a_strict_template_behind_an_unknown_name_is_answered(gateway: Running) -> None:
    for stream in (False, True):
        response = ask(gateway, stream=stream)
        assert response.status_code == 200, response.text
        assert "brim-resent" not in response.headers


def test_fitting_that_is_off_changes_nothing(gateway: Running) -> None:
    body = {"model": "my-local-model", "messages": MESSAGES, "max_tokens": 1}
    headers = {"brim-fitting": "off"}
    response = httpx.post(gateway.url + PATH, json=body, headers=headers, timeout=60)
    assert response.status_code in (400, 500)


def test_a_rejected_request_is_adapted_and_sent_again_once() -> None:
    with (
        ScriptedServer([REJECTION, "Yes.", "Yes."]) as upstream,
        run_gateway(config_of(upstream.url)) as gateway,
    ):
        response = ask(gateway)
        assert response.status_code == 200
        assert response.headers["brim-resent"] == "1"
        roles = [turn["role"] for turn in upstream.requests[1].body["messages"]]
        assert roles == ["user", "assistant", "user"]
        ask(gateway)  # without a trial, the rules hold for the rejected request only
        assert upstream.requests[2].body["messages"] == MESSAGES


def test_a_request_that_stays_rejected_is_relayed() -> None:
    with (
        ScriptedServer([REJECTION, REJECTION, "Yes."]) as upstream,
        run_gateway(config_of(upstream.url)) as gateway,
    ):
        response = ask(gateway)
        assert response.status_code == 400
        assert "must alternate" in response.text
        assert len(upstream.requests) == 2


def test_a_template_without_rules_of_order_gets_the_body_as_it_is(llama_with: LlamaWith) -> None:
    server = llama_with(window=1024, template=CHATML)
    with run_gateway(config_of(server.url, key_env="KEY"), {"KEY": server.key}) as gateway:
        assert ask(gateway).status_code == 200
