"""Strict templates in a real server: it rejects the input and accepts the adapted messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.wire.template_adapter import apply_template
from brim.wire.template_source import find_rules
from tests.support.strategies import Raw, history
from tests.support.wire.strict_templates import GEMMA, TEMPLATES

if TYPE_CHECKING:
    from brim.providers.local import LocalServer
    from tests.support.fixtures import LlamaWith


def render(server: LocalServer, messages: list[Any]) -> tuple[int, str]:
    """Return the status of the server, and the prompt or the error."""
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    address = server.url.removesuffix("/v1") + "/apply-template"
    body = json.dumps({"messages": messages}).encode()
    try:
        with urlopen(Request(address, body, headers)) as response:
            return response.status, json.load(response)["prompt"]
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


BANANA = [*history("u2 a2"), {"role": "banana", "content": "peel"}]


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("mistral", history("u2 u2")),
        ("mistral", history("u2 a2 a2")),
        ("mistral", history("s2 a2 u2")),
        ("mistral", history("s2 s2 u2")),
        ("mistral", history("u2 a2 s2 u2")),
        ("mistral", history("u2 c5 r5 a2")),
        ("mistral", history("u2 c5 r5 u2")),
        ("mistral", history("u2 cc5 r5 u2")),
        ("mistral", BANANA),
        ("gemma", history("u2 u2")),
        ("gemma", history("u2 c5 r5")),
        ("llama-3", history("s2 u2 cc5 r5 r5 a2")),
        ("qwen3.5", history("s2 u2 a2 s2 u2")),
        ("qwen3.5", history("s2 a2")),
        ("qwen3.5", BANANA),
    ],
)
def test_a_rejected_conversation_is_accepted_after_adapting(
    llama_with: LlamaWith, name: str, messages: list[Raw]
) -> None:
    server = llama_with(window=256, template=TEMPLATES[name])
    status, complaint = render(server, messages)
    assert status in (400, 500), complaint
    status, prompt = render(server, apply_template(messages, find_rules(name)))
    assert status == 200, prompt


def test_a_folded_step_reaches_the_model(llama_with: LlamaWith) -> None:
    server = llama_with(window=256, template=GEMMA)
    messages = history("s2 u2 cc5 r4 r3 u1")
    _, prompt = render(server, apply_template(messages, find_rules("gemma")))
    words = [message["content"].strip() for message in messages if message["content"]]
    assert prompt.startswith(f"<user>{words[0]} \n\n{words[1]}</><assistant>[tool: run]\n")
    assert prompt.endswith(f"[result]\n{words[3]}</><user>{words[4]}</>")


BLOCKS = ("s2", "u2", "a2", "c3 r2", "cc3 r2 r2", "cc3 r2", "c3", "o2")


@given(st.sampled_from(tuple(TEMPLATES)), st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=9))
def test_every_adapted_conversation_is_accepted(
    llama_with: LlamaWith, name: str, blocks: list[str]
) -> None:
    # llama.cpp has rules of its own for a list that ends with the assistant, with any template.
    messages = history(" ".join([*blocks, "u2"]))
    server = llama_with(window=256, template=TEMPLATES[name])
    status, prompt = render(server, apply_template(messages, find_rules(name)))
    assert status == 200, prompt
    for message in messages:
        if message["role"] == "user":
            assert message["content"].strip() in prompt
