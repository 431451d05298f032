"""A key with caps cannot send a request whose cost has no bound."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from anthropic.types import message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from brim.testing import ScriptedServer
from tests.support.gateway.accounts import (
    COST,
    MAX_COST,
    MODEL,
    PRICE,
    bearer_headers,
    create_secret,
    dollars,
    gateway_with_upstream,
    make_priced_config,
    only_row,
    say_hi,
    with_gateway,
)
from tests.support.gateway.process import run_gateway
from tests.support.gateway.requests import CHAT, MESSAGES, PATHS, RESPONSES, post

WINDOW = 2 * 3_900 + 10 * 100
"""Micro-dollars of a prompt that fills the window and a reply of 100 tokens."""
SENT_FIELDS = {"model", "messages", "input", "tools", "stream_options"}
TOOL = {"name": "look", "input_schema": {"type": "object"}}
HOSTED: list[tuple[str, dict[str, Any]]] = [
    *((CHAT, {"tools": [{"type": kind}]}) for kind in ("web_search", "x", 3)),
    (CHAT, {"tools": [{"type": []}]}),
    (CHAT, {"tools": [{"type": {"type": "function"}}]}),
    (RESPONSES, {"tools": [{"type": "mcp", "server_url": "https://mcp.example.com"}]}),
    *((RESPONSES, {"tools": [{"type": kind}]}) for kind in ("web_search", "shell", "namespace")),
    *((RESPONSES, {"tools": [{"type": kind}]}) for kind in ("code_interpreter", "file_search")),
    (MESSAGES, {"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]}),
    (MESSAGES, {"tools": [TOOL, {"type": "advisor_20260301", "model": "m", "name": "advisor"}]}),
    (MESSAGES, {"tools": [{"type": "bash_code_execution_20250825"}]}),
    (CHAT, {"model": "openai/gpt-4o:online"}),
    (CHAT, {"model": "openai/gpt-4o:Nitro"}),
]
CLIENT_TOOLS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"type": "function", "function": {"name": "look"}}),
    (RESPONSES, {"type": "function", "name": "look"}),
    (RESPONSES, {"type": "local_shell"}),
    (RESPONSES, {"type": "apply_patch"}),
    (MESSAGES, TOOL),
    (MESSAGES, {"type": "custom", **TOOL}),
    (MESSAGES, {"type": "bash_20250124", "name": "bash"}),
    (MESSAGES, {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}),
    (MESSAGES, {"type": "computer_20251124", "name": "computer"}),
]

# The complete published parameter lists: a valid value of each field, by whether it is bounded.
SHARED_FIELDS: dict[str, Any] = {
    "metadata": {"a": "b"},
    "temperature": 1,
    "top_p": 1,
    "stream": False,
    "service_tier": "auto",
}
BOUNDED: dict[str, dict[str, Any]] = {
    CHAT: SHARED_FIELDS
    | {"frequency_penalty": 1, "function_call": "auto", "functions": [], "logit_bias": {}}
    | {"logprobs": True, "max_completion_tokens": 9, "max_tokens": 9, "modalities": ["text"]}
    | {"n": 2, "parallel_tool_calls": True, "presence_penalty": 1, "prompt_cache_key": "a"}
    | {"prompt_cache_retention": "24h", "reasoning_effort": "low", "seed": 1, "stop": "a"}
    | {"response_format": {"type": "text"}, "safety_identifier": "a", "store": True}
    | {"tool_choice": "auto", "top_logprobs": 1, "user": "a", "verbosity": "low"}
    | {"web_search_options": None},
    RESPONSES: SHARED_FIELDS
    | {"background": False, "include": [], "instructions": "a", "max_output_tokens": 9}
    | {"max_tool_calls": 1, "parallel_tool_calls": True, "prompt": None, "user": "a"}
    | {"previous_response_id": None, "conversation": None, "prompt_cache_key": "a"}
    | {"prompt_cache_retention": "24h", "reasoning": {"effort": "low"}, "store": True}
    | {"safety_identifier": "a", "text": {"verbosity": "low"}, "tool_choice": "auto"}
    | {"top_logprobs": 1, "truncation": "auto"},
    MESSAGES: SHARED_FIELDS
    | {"cache_control": {"type": "ephemeral"}, "diagnostics": {}, "inference_geo": "global"}
    | {"max_tokens": 9, "output_config": {"effort": "low"}, "speed": "standard", "top_k": 1}
    | {"stop_sequences": ["a"], "system": "a", "thinking": {"type": "disabled"}}
    | {"tool_choice": {"type": "auto"}},
}
UNBOUNDED: dict[str, dict[str, Any]] = {
    CHAT: {"audio": {"voice": "a", "format": "wav"}, "modalities": ["text", "audio"]}
    | {"moderation": {}, "prediction": {"type": "content", "content": "a"}, "models": ["a"]}
    | {"prompt_cache_options": {"ttl": "24h"}, "web_search_options": {}, "best_of": 2}
    | {"search_parameters": {"mode": "on"}, "plugins": [{"id": "web"}], "provider": {}}
    | {"MAX_TOKENS": 100_000, "N": 50, "service_tier": "priority"},
    RESPONSES: {"background": True, "context_management": [], "access_programs": {}, "image": {}}
    | {"moderation": {}, "prompt_cache_options": {"ttl": "24h"}, "service_tier": "fast"},
    MESSAGES: {"container": "a", "inference_geo": "us", "speed": "fast", "workspace_id": "a"}
    | {"user_profile_id": "a", "mcp_servers": [], "context_management": {}, "fallbacks": "default"}
    | {"betas": ["a"], "billing_policy": {}, "compaction": {}, "fallback_credit_token": "a"}
    | {"thread": {"type": "create"}, "service_tier": "priority"},
}
PUBLISHED = {
    CHAT: completion_create_params.CompletionCreateParamsBase,
    RESPONSES: response_create_params.ResponseCreateParamsBase,
    MESSAGES: message_create_params.MessageCreateParamsBase,
}


@pytest.mark.parametrize("path", PATHS)
def test_keys_with_caps_can_send_only_fields_whose_cost_is_bounded(path: str) -> None:
    capped, free = create_secret("anna", "500/day"), create_secret("bob")
    unlisted = PUBLISHED[path].__annotations__.keys() - BOUNDED[path].keys() - SENT_FIELDS
    rejected = {name: {} for name in unlisted} | UNBOUNDED[path]
    with gateway_with_upstream() as (gateway, provider):
        for name, value in rejected.items():
            response = say_hi(gateway, capped, path, **{name: value})
            error = response.json()["error"]
            assert (response.status_code, error.get("param", name)) == (403, name), name
            assert "This key has caps" in error["message"]
        assert not provider.requests
        for secret, fields in ((capped, BOUNDED[path]), (free, rejected)):
            for name, value in fields.items():
                assert say_hi(gateway, secret, path, **{name: value}).status_code == 200, name


@pytest.mark.parametrize(("path", "more"), HOSTED, ids=str)
def test_tools_that_an_upstream_charges_for_need_a_key_without_caps(
    path: str, more: dict[str, Any]
) -> None:
    capped, free = create_secret("anna", "5/day"), create_secret("bob")
    with gateway_with_upstream() as (gateway, provider):
        response = say_hi(gateway, capped, path, **more)
        assert response.status_code == 403
        assert "This key has caps" in response.json()["error"]["message"]
        assert not provider.requests
        assert say_hi(gateway, free, path, **more).status_code == 200
        assert len(provider.requests) == 1
    assert only_row().key_name == "bob"


def test_tools_of_the_client_pass_for_keys_with_caps() -> None:
    capped = create_secret("anna", "500/day")
    with gateway_with_upstream() as (gateway, _):
        for path, tool in CLIENT_TOOLS:
            assert say_hi(gateway, capped, path, tools=[tool]).status_code == 200, tool


@pytest.mark.parametrize("hide", ["input_audio", r"input\u005faudio"])
def test_audio_needs_a_key_without_caps(hide: str) -> None:
    capped = bearer_headers(create_secret("anna", "5/day"))
    part = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": [part]}]}
    text = {**body, "messages": [{"role": "user", "content": 'What is "input_audio"?'}]}
    with gateway_with_upstream() as (gateway, _):
        raw = json.dumps(body).replace("input_audio", hide).encode()
        assert post(gateway.url, CHAT, raw, capped).status_code == 403
        assert post(gateway.url, CHAT, text, capped).status_code == 200


def test_the_operator_can_allow_more_fields_and_tools() -> None:
    capped = create_secret("anna", "5/day")
    allowed = ("web_search_options", "web_search", "modalities")
    with ScriptedServer("Hello.", window=4_000) as provider:
        config = with_gateway(make_priced_config(provider.url), allowed_fields=allowed)
        with run_gateway(config) as gateway:
            assert say_hi(gateway, capped, web_search_options={}).status_code == 200
            assert say_hi(gateway, capped, modalities=["text", "audio"]).status_code == 200
            assert say_hi(gateway, capped, tools=[{"type": "web_search"}]).status_code == 200
            assert say_hi(gateway, capped, plugins=[]).status_code == 403


def test_a_schema_that_the_upstream_adds_to_the_prompt_is_reserved() -> None:
    schema = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(99)}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    tight, roomy = create_secret("anna", dollars(MAX_COST + 500)), create_secret("bob", "5/day")
    with gateway_with_upstream() as (gateway, _):
        assert say_hi(gateway, tight, response_format=form).status_code == 429
        assert say_hi(gateway, roomy, response_format=form).status_code == 200


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
    with run_gateway(make_priced_config("http://127.0.0.1:9/v1", price=None)) as gateway:
        response = say_hi(gateway, secret, **more)
    assert (response.status_code, response.json()["error"]["code"]) == expected


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


def test_cache_writes_are_reserved_if_the_request_asks_for_a_cache() -> None:
    price = replace(PRICE, written=PRICE.output)
    content: dict[str, Any] = {"type": "text", "text": "hi"}
    body = {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": [content]}]}
    anna = bearer_headers(create_secret("anna", dollars(MAX_COST + COST)))
    with gateway_with_upstream(price=price) as (gateway, _):
        assert post(gateway.url, MESSAGES, body, anna).status_code == 200
        content["cache_control"] = {"type": "ephemeral"}
        assert post(gateway.url, MESSAGES, body, anna).status_code == 429


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
