"""Exact counts offline: the model's own template and vocabulary, equal to a real server's."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

import brim
from benchmarks.promises.reference_server import TEMPLATE
from brim.tokens.vocabularies import VocabularyTokenizer
from tests.support.wire.strict_templates import CHATML

if TYPE_CHECKING:
    from brim.providers.local import LocalServer
    from tests.support.fixtures import LlamaWith

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
CALL = {"id": "call_1", "type": "function"}
FUNCTION = {"name": "look", "arguments": '{"path": "/srv/größe"}'}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "You look at files."},
    {"role": "user", "content": "Look at größe, please."},
    {"role": "assistant", "content": "", "tool_calls": [CALL | {"function": FUNCTION}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "17 lines\n" * 30},
    {"role": "user", "content": "And now?"},
]


def open_vocabulary(server: LocalServer) -> VocabularyTokenizer:
    """Return the tokenizer of a server's model."""

    def encode(text: str, *, special: bool) -> list[int]:
        headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
        body = json.dumps({"content": text, "parse_special": special}).encode()
        address = server.url.removesuffix("/v1") + "/tokenize"
        with urlopen(Request(address, body, headers)) as response:
            tokens: list[int] = json.load(response)["tokens"]
            return tokens

    return VocabularyTokenizer(
        "smollm2", partial(encode, special=False), partial(encode, special=True)
    )


@pytest.mark.parametrize("template", [TEMPLATE, CHATML])
def test_a_rendered_request_is_counted_as_the_server_counts_it(
    llama_with: LlamaWith, template: str
) -> None:
    server = llama_with(template=template)
    vocabulary = open_vocabulary(server)
    counted = brim.count(CONVERSATION, tools=TOOLS, template=template, tokenizer=vocabulary)
    assert counted.exact
    with brim.Client(server.url, key=server.key) as client:
        assert counted == client.count(CONVERSATION, tools=TOOLS)


def test_a_request_fits_by_the_rendered_count() -> None:
    long = [*CONVERSATION[:4], *({"role": "user", "content": "And now? " * 9},) * 9]
    for window in range(300, 700, 40):
        fitted = brim.fit(
            long, model="qwen2.5-7b", tools=TOOLS, window=window, reply=1, template=TEMPLATE
        )
        counted = brim.count(fitted.messages, model="qwen2.5-7b", tools=TOOLS, template=TEMPLATE)
        assert counted == fitted.plan.size <= window - 1
        assert fitted.plan.is_server_counted


def test_a_session_counts_with_its_template() -> None:
    chat = brim.Session("qwen2.5-7b", template=TEMPLATE, window=1000, reply=1, tools=TOOLS)
    for message in CONVERSATION[1:]:
        chat.append(message)
    request = chat.request()
    counted = brim.count(request.messages, model="qwen2.5-7b", tools=TOOLS, template=TEMPLATE)
    assert request.plan.size == counted
    assert chat.request(format="anthropic").plan.server_tokens is None


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
        [{"role": "system", "content": "Be brief."}],
    ],
)
def test_what_the_template_cannot_render_is_estimated(messages: list[dict[str, Any]]) -> None:
    template = (
        "{{ raise_exception('no') if messages[0].role == 'system' else messages[0].content }}"
    )
    counted = brim.count(messages, model="qwen2.5-7b", template=template)
    assert counted > 0
    assert not counted.exact


def test_a_prompt_to_which_llama_cpp_adds_a_turn_is_estimated() -> None:
    pytest.importorskip("splintr")
    closed = "{% for each in messages %}<|turn>{{ each.content }}<turn|>\n{% endfor %}"
    counts = [
        brim.count([{"role": "user", "content": "Hi"}], model="gemma-4-31b-it", template=template)
        for template in (closed, f"{closed}<|turn>model\n")
    ]
    assert [count.exact for count in counts] == [False, True]


def test_a_configuration_of_a_tokenizer_adds_its_special_tokens(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for each in messages %}<|turn|>{{ each.content }}{% endfor %}"
    config = tmp_path / "tokenizer_config.json"
    added = {"7": {"content": "<|turn|>", "special": True}}
    config.write_text(json.dumps({"chat_template": template, "added_tokens_decoder": added}))
    messages = [{"role": "user", "content": "Hello"}]
    assert brim.count(messages, model="qwen2.5-7b", template=str(config)) == 3
    assert brim.count(messages, model="qwen2.5-7b", template=template) > 3


def test_without_the_models_own_vocabulary_the_count_is_an_estimate() -> None:
    assert not brim.count(CONVERSATION, model="my-model", template=TEMPLATE).exact
