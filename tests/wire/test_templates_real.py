"""Strict templates in a real server: it rejects the input and accepts the adapted messages.

The templates are small ones made for this test, which reject what the real ones reject; they share
no code with `brim.wire.template_adapter`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.wire.template_adapter import apply_template
from brim.wire.template_rules import find_rules
from tests.support.strategies import Raw, history

if TYPE_CHECKING:
    from brim.providers.local import LocalServer
    from tests.support.fixtures import LlamaWith

MISTRAL = """
{%- set seen = namespace(turns=0, waiting=0) -%}
{%- for message in messages -%}
  {%- if message.role == 'system' -%}
    {%- if not loop.first -%}{{ raise_exception('a late system message') }}{%- endif -%}
    [SYSTEM]{{ message.content }}[/SYSTEM]
  {%- elif message.role == 'tool' -%}
    {%- if seen.waiting == 0 -%}{{ raise_exception('a result without its call') }}{%- endif -%}
    {%- set seen.waiting = seen.waiting - 1 -%}
    [RESULT]{{ message.content }}[/RESULT]
  {%- elif message.role not in ['user', 'assistant'] -%}
    {{ raise_exception('an unknown role') }}
  {%- else -%}
    {%- if seen.waiting > 0 -%}{{ raise_exception('a call without its result') }}{%- endif -%}
    {%- if message.role == 'assistant' and message.tool_calls -%}
      {%- for call in message.tool_calls -%}
        {%- if call.id | length != 9 -%}{{ raise_exception('an id too long') }}{%- endif -%}
        [CALL]{{ call.function.name }}{{ call.function.arguments }}{{ call.id }}[/CALL]
      {%- endfor -%}
      {%- set seen.waiting = message.tool_calls | length -%}
    {%- else -%}
      {%- if (message.role == 'user') != (seen.turns % 2 == 0) -%}
        {{ raise_exception('turns do not alternate') }}
      {%- endif -%}
      {%- set seen.turns = seen.turns + 1 -%}
      [{{ message.role }}]{{ message.content }}[/]
    {%- endif -%}
  {%- endif -%}
{%- endfor -%}
{%- if seen.waiting > 0 -%}{{ raise_exception('a call without its result') }}{%- endif -%}
"""
GEMMA = """
{%- for message in messages -%}
  {%- if message.role == 'system' -%}{{ raise_exception('no system role') }}{%- endif -%}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception('turns do not alternate') }}
  {%- endif -%}
  {%- if message.tool_calls -%}{{ raise_exception('no tools') }}{%- endif -%}
  <{{ message.role }}>{{ message.content | trim }}</>
{%- endfor -%}
"""
LLAMA = """
{%- for message in messages -%}
  {%- if 'tool_calls' in message -%}
    {%- if message.tool_calls | length != 1 -%}{{ raise_exception('one at a time') }}{%- endif -%}
    <call>{{ message.tool_calls[0].function.name }}</>
  {%- else -%}
    <{{ message.role }}>{{ message.content }}</>
  {%- endif -%}
{%- endfor -%}
"""
QWEN = """
{%- set seen = namespace(user=false) -%}
{%- for message in messages -%}
  {%- if message.role == 'system' and not loop.first -%}
    {{ raise_exception('a late system message') }}
  {%- elif message.role not in ['system', 'user', 'assistant', 'tool'] -%}
    {{ raise_exception('an unknown role') }}
  {%- elif message.role == 'user' -%}
    {%- set seen.user = true -%}
  {%- endif -%}
  <{{ message.role }}>{{ message.content }}</>
{%- endfor -%}
{%- if not seen.user -%}{{ raise_exception('no user') }}{%- endif -%}
"""
TEMPLATES = {"mistral": MISTRAL, "gemma": GEMMA, "llama-3": LLAMA, "qwen3.5": QWEN}


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
