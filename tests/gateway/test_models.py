"""Routing by model, endpoints about models, and options of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import anthropic
import httpx
import openai
import pytest

import brim
from brim.config import Config, GatewayConfig, UpstreamConfig
from brim.config.schema import CountConfig
from brim.fitting.policies import PolicyName
from brim.gateway.upstreams import match_rank
from brim.models.pricing import Price
from brim.providers.local import LocalServer
from brim.testing import ScriptedServer
from brim.wire.formats import FormatName
from tests.support.gateway.clients import anthropic_client, long_talk, openai_client
from tests.support.gateway.process import FORMATS, config_of, run_gateway
from tests.support.gateway.requests import (
    CHAT,
    COUNT_TOKENS,
    INPUT_TOKENS,
    MESSAGES,
    PATHS,
    RESPONSES,
    ask,
    body_of,
    post,
    read_spoken,
    turns_in,
)

TURNS = long_talk(60)
HELLO = "Hello?"


def upstream(
    provider: ScriptedServer, *models: str, format: tuple[FormatName, ...] = FORMATS
) -> UpstreamConfig:
    return UpstreamConfig(endpoint=provider.url, models=models, format=format)


# Which way


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("gpt-5-mini", "by name"),
        ("gpt-5-nano", "by pattern"),
        ("gpt-5", "by pattern"),
        ("claude-opus", "by pattern"),
        ("anything/else:free", "all others"),
        ("GPT-5-MINI", "all others"),
    ],
)
def test_the_models_name_selects_its_upstream(model: str, text: str) -> None:
    with (
        ScriptedServer("all others") as third,
        ScriptedServer("by pattern") as second,
        ScriptedServer("by name") as first,
    ):
        upstreams = {
            "rest": upstream(third),
            "patterns": upstream(second, "gpt-5*", "claude-*"),
            "names": upstream(first, "gpt-5-mini", "gpt-4o"),
        }
        with run_gateway(Config(upstreams=upstreams)) as gateway:
            for path in PATHS:
                answer = post(gateway.url, path, body_of(path, HELLO, model=model))
                assert read_spoken(answer) == text


def test_the_available_models_are_listed_once_with_their_aliases() -> None:
    with ScriptedServer("ok") as provider:
        one = upstream(provider, "gpt-5*")
        settings = GatewayConfig(aliases={"fast": "gpt-5-mini"})
        config = Config(upstreams={"one": one, "two": one}, gateway=settings)
        with (
            run_gateway(config) as gateway,
            openai_client(gateway.url) as client,
            pytest.raises(openai.NotFoundError, match=re.escape("Available: gpt-5*, fast.")),
        ):
            client.responses.create(model="m", input="Hello?")


def test_an_unknown_model_is_an_error_with_the_available_ones() -> None:
    with ScriptedServer("ok") as provider:
        config = Config(upstreams={"one": upstream(provider, "gpt-5*")})
        with (
            run_gateway(config) as gateway,
            openai_client(gateway.url) as client,
            anthropic_client(gateway.url) as other,
        ):
            with pytest.raises(
                openai.NotFoundError, match="No upstream serves the model 'm'"
            ) as unknown:
                client.responses.create(model="m", input="Hello?")
            assert unknown.value.code == "model_not_found"
            with pytest.raises(
                anthropic.NotFoundError, match="No upstream serves the model 'm'"
            ) as missing:
                other.messages.create(model="m", max_tokens=9, messages=[])
            assert missing.value.type == "not_found_error"
        assert not provider.requests


def test_a_wrong_format_is_an_error_that_names_the_right_path() -> None:
    with ScriptedServer("ok") as one, ScriptedServer("ok") as two:
        upstreams = {
            "a": upstream(one, "claude-*", format=("anthropic",)),
            "b": upstream(two, "gpt-*", format=("openai", "responses")),
        }
        with run_gateway(Config(upstreams=upstreams)) as gateway:
            claude = post(gateway.url, CHAT, body_of(CHAT, HELLO, model="claude-x"))
            gpt = post(gateway.url, MESSAGES, body_of(MESSAGES, HELLO, model="gpt-x"))
        assert not [*one.requests, *two.requests]
    assert (claude.status_code, gpt.status_code) == (400, 400)
    assert claude.json()["error"]["code"] == "wrong_format"
    assert f"to {MESSAGES}." in claude.json()["error"]["message"]
    assert gpt.json()["error"]["type"] == "invalid_request_error"
    assert f"to {CHAT} or {RESPONSES}." in gpt.json()["error"]["message"]


def test_a_model_that_two_upstreams_serve_each_in_its_format() -> None:
    with ScriptedServer("one") as one, ScriptedServer("two") as two:
        upstreams = {
            "a": upstream(one, format=("anthropic",)),
            "b": upstream(two, format=("openai", "responses")),
        }
        with run_gateway(Config(upstreams=upstreams)) as gateway:
            texts = [read_spoken(post(gateway.url, path, body_of(path, HELLO))) for path in PATHS]
    assert texts == ["two", "one", "two"]


def test_a_body_without_a_model() -> None:
    body = {"messages": [{"role": "user", "content": "Hello?"}]}
    with ScriptedServer("ok") as provider, ScriptedServer("ok") as other:
        with run_gateway(config_of(provider.url)) as gateway:
            assert read_spoken(post(gateway.url, CHAT, body)) == "ok"
        with run_gateway(config_of(provider.url, other.url)) as gateway:
            rejected = post(gateway.url, CHAT, body)
        assert provider.requests[0].body == body
    assert rejected.status_code == 404
    assert "has no `model`" in rejected.json()["error"]["message"]


MIXED_UP: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "responses at the path of chat": (CHAT, RESPONSES, {"input": "Hello?"}),
    "chat at the path of responses": (
        RESPONSES,
        CHAT,
        {"messages": [{"role": "user", "content": "Hello?"}]},
    ),
    "messages at the path of chat": (
        CHAT,
        MESSAGES,
        {"system": "Be brief.", "messages": [{"role": "user", "content": "Hello?"}]},
    ),
    "chat at the path of messages": (
        MESSAGES,
        CHAT,
        {
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": "Hello?"},
            ]
        },
    ),
}


@pytest.mark.parametrize(("at", "meant", "body"), MIXED_UP.values(), ids=MIXED_UP)
def test_the_format_of_a_body_is_detected_from_its_shape(
    at: str, meant: str, body: Mapping[str, Any]
) -> None:
    with ScriptedServer("ok") as provider, run_gateway(config_of(provider.url)) as gateway:
        answer = post(gateway.url, at, {"model": "m", "max_tokens": 9, **body})
        assert (answer.status_code, read_spoken(answer)) == (200, "ok")
        (request,) = provider.requests
    assert request.path == meant


@pytest.mark.parametrize("path", PATHS)
def test_paths_work_without_their_version(path: str) -> None:
    with ScriptedServer("ok") as provider, run_gateway(config_of(provider.url)) as gateway:
        answer = post(gateway.url, path.removeprefix("/v1"), body_of(path, HELLO))
        assert read_spoken(answer) == "ok"


def test_other_endpoints_work_without_their_version() -> None:
    with (
        ScriptedServer("ok", model="one") as provider,
        run_gateway(config_of(provider.url)) as gateway,
    ):
        assert httpx.get(f"{gateway.url}/models").json()["data"][0]["id"] == "one"
        assert httpx.get(f"{gateway.url}/models/one").json()["id"] == "one"
        for at, path in COUNTS.items():
            body = body_of(path, HELLO)
            short = at.removeprefix("/v1")
            assert counted_at(gateway.url, short, body) == counted_at(gateway.url, at, body)


@pytest.mark.parametrize(
    ("names", "model", "means"),
    [
        ((), "gpt-5", 1),
        (("gpt-5",), "gpt-5", 3),
        (("gpt-*", "gpt-5"), "gpt-5", 3),
        (("gpt-*",), "gpt-5", 2),
        (("*-5*",), "gpt-5-mini", 2),
        (("gpt-*",), "my-gpt-5", 0),
        (("gpt-?",), "gpt-5", 0),
        (("gpt-[45]",), "gpt-5", 0),
        (("gpt-[45]",), "gpt-[45]", 3),
        (("org/*.v1",), "org/a\nb.v1", 2),
        (("org/*.v1",), "org/a-v1", 0),
    ],
)
def test_only_an_asterisk_is_a_wildcard(names: Sequence[str], model: str, means: int) -> None:
    assert match_rank(names, model) == means


@pytest.mark.parametrize("path", PATHS)
def test_an_invalid_model_name_is_rejected(path: str) -> None:
    with ScriptedServer("ok") as provider, run_gateway(config_of(provider.url)) as gateway:
        body = body_of(path, HELLO)
        assert read_spoken(post(gateway.url, path, body | {"model": "m" * 256})) == "ok"
        rejected = post(gateway.url, path, body | {"model": "m" * 257})
        assert rejected.status_code == 400
        assert "`model` is too long" in rejected.json()["error"]["message"]
        at = next((at for at, form in COUNTS.items() if form == path), None)
        if at is not None:
            assert post(gateway.url, at, body | {"model": "m" * 257}).status_code == 400
        assert len(provider.requests) == 1


# The list of models


def test_the_models_are_listed_for_each_client() -> None:
    with ScriptedServer("ok", model="local/one") as one, ScriptedServer("ok", model="other") as two:
        upstreams = {
            "all": upstream(one),
            "named": upstream(two, "gpt-5", "claude-x"),
            "patterns": upstream(two, "oth*"),
        }
        names = ["claude-x", "gpt-5", "local/one", "other"]
        with (
            run_gateway(Config(upstreams=upstreams)) as gateway,
            openai_client(gateway.url) as client,
            anthropic_client(gateway.url) as other,
        ):
            assert [model.id for model in client.models.list()] == names
            assert [model.id for model in other.models.list()] == names
            found = client.models.retrieve("local/one")
            assert (found.id, found.object, found.owned_by) == ("local/one", "model", "all")
            assert other.models.retrieve("claude-x").display_name == "claude-x"
            with pytest.raises(openai.NotFoundError) as unknown:
                client.models.retrieve("nothing")
            assert unknown.value.code == "model_not_found"
            with pytest.raises(anthropic.NotFoundError):
                other.models.retrieve("nothing")


def test_listed_models_have_their_sizes_and_prices() -> None:
    with ScriptedServer("ok", model="one", window=5_000) as one:
        upstreams = {
            "known": UpstreamConfig(one.url, ("openai", "anthropic"), ("gpt-4o",)),
            "priced": UpstreamConfig(
                one.url, models=("one",), price=Price(Decimal("0.25"), output=Decimal(2))
            ),
            "unknown": UpstreamConfig(one.url, models=("mine",)),
        }
        with run_gateway(Config(upstreams=upstreams)) as gateway:
            listed = httpx.get(f"{gateway.url}/v1/models").json()["data"]
            facts = {model["id"]: model for model in listed}
            assert facts["gpt-4o"]["context_length"] == 128_000
            assert facts["gpt-4o"]["max_output_tokens"] == 16_384
            assert facts["gpt-4o"]["pricing"]["prompt"] == "0.0000025"
            assert facts["one"]["pricing"] == {"prompt": "0.00000025", "completion": "0.000002"}
            assert facts["mine"].keys() == {"id", "object", "created", "owned_by"}
            ask(gateway, CHAT, "hi", model="one")
            assert httpx.get(f"{gateway.url}/v1/models/one").json()["context_length"] == 5_000
            heads = {"anthropic-version": "2023-06-01"}
            shown = httpx.get(f"{gateway.url}/v1/models/gpt-4o", headers=heads).json()
            assert (shown["max_input_tokens"], shown["max_tokens"]) == (128_000, 16_384)


def test_an_unreachable_upstream_does_not_hide_the_others() -> None:
    with ScriptedServer("ok") as two:
        gone = two.url
    with ScriptedServer("ok", model="one") as one:
        upstreams = {"up": upstream(one), "down": UpstreamConfig(endpoint=gone)}
        with (
            run_gateway(Config(upstreams=upstreams)) as gateway,
            openai_client(gateway.url) as client,
        ):
            assert [model.id for model in client.models.list()] == ["one"]


# Counts


def counted_at(address: str, path: str, body: Mapping[str, Any]) -> tuple[int, str | None]:
    answer = post(address, path, body)
    return answer.json()["input_tokens"], answer.headers["brim-count"]


COUNTS = {COUNT_TOKENS: MESSAGES, INPUT_TOKENS: RESPONSES}


@pytest.mark.parametrize("at", COUNTS)
@pytest.mark.parametrize("model", ["gpt-4o", "m"])
def test_the_server_counts_if_it_can_and_otherwise_brim(at: str, model: str) -> None:
    body = body_of(COUNTS[at], *TURNS, reply=20, model=model)
    with ScriptedServer("ok", counts_tokens=True) as counts, ScriptedServer("ok") as does_not:
        with run_gateway(config_of(counts.url)) as gateway:
            assert counted_at(gateway.url, at, body) == (counts.tokens(body), "server")
        with run_gateway(config_of(does_not.url)) as gateway:
            tokens, how = counted_at(gateway.url, at, body)
        assert tokens == brim.count(body, model=model)
        assert how == ("exact" if model == "gpt-4o" else "estimate")
        off = Config(upstreams={"one": upstream(counts)}, count=CountConfig(server="off"))
        with run_gateway(off) as gateway:
            assert counted_at(gateway.url, at, body) == (tokens, how)
        assert len(counts.count_requests) == 1
        assert not [*counts.requests, *does_not.requests]


def test_the_counted_body_has_the_format_that_is_sent() -> None:
    turns: list[Any] = [("user", "Begin.")]
    for place in range(16):
        function = {"name": "look", "arguments": "{}"}
        call = {"id": f"call_{place}", "type": "function", "function": function}
        result = {"role": "tool", "tool_call_id": f"call_{place}", "content": "some words " * 90}
        turns += [{"role": "assistant", "content": None, "tool_calls": [call]}, result]
    body = body_of(CHAT, *turns, reply=20, model="own")
    with ScriptedServer("ok", window=4_000, like="llama.cpp", model="own") as provider:
        with run_gateway(config_of(provider.url, template="strict", count="always")) as gateway:
            answer = post(gateway.url, CHAT, body)
        counted, (request,) = provider.count_requests[-1], provider.requests
    assert answer.headers["brim-count"] == "server"
    assert answer.headers["brim-tokens"] == str(request.tokens)
    assert turns_in(CHAT, counted.body) == turns_in(CHAT, request.body)


def test_sdk_clients_get_the_counts_of_a_real_server(llama: LocalServer) -> None:
    messages: Any = [{"role": "user", "content": "Name a colour, " * 20}]
    with (
        run_gateway(config_of(llama.url, key_env="KEY"), {"KEY": llama.key}) as gateway,
        anthropic_client(gateway.url) as client,
        openai_client(gateway.url) as other,
    ):
        counted = client.messages.count_tokens(model=llama.model, messages=messages).input_tokens
        answer = client.messages.create(model=llama.model, messages=messages, max_tokens=2)
        cached = answer.usage.cache_read_input_tokens or 0
        assert counted == answer.usage.input_tokens + cached
        assert other.responses.input_tokens.count(
            model=llama.model, input=messages[0]["content"]
        ).input_tokens == pytest.approx(counted, abs=5)


# What a request can choose


@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
@pytest.mark.parametrize("path", PATHS)
def test_a_request_can_choose_its_policy(path: str, policy: PolicyName) -> None:
    body = body_of(path, *TURNS, reply=20, model="gpt-4o")
    with (
        ScriptedServer("ok", window=1_000) as provider,
        run_gateway(config_of(provider.url)) as gateway,
    ):
        answer = post(gateway.url, path, body, {"brim-policy": policy.upper()})
        assert read_spoken(answer) == "ok"
        assert answer.headers["brim-policy"] == policy
        (request,) = provider.requests
    wanted = brim.fit(body, window=1_000, policy=policy)
    assert request.body == dict(wanted)


@pytest.mark.parametrize("path", PATHS)
def test_a_dry_run_shows_what_would_be_sent(path: str) -> None:
    body = body_of(path, *TURNS, reply=20, model="gpt-4o", stream=True)
    with (
        ScriptedServer("ok", window=1_000) as provider,
        run_gateway(config_of(provider.url)) as gateway,
    ):
        shown = post(gateway.url, path, body, {"brim-fitting": "dry-run"})
        assert not provider.requests
        post(gateway.url, path, body)
        (request,) = provider.requests
    assert shown.status_code == 200
    assert shown.json()["object"] == "brim.plan"
    assert shown.json()["body"] == request.body
    decisions = shown.json()["plan"]["decisions"]
    assert len(decisions) == len(TURNS)
    kept = sum(decision["after"] for decision in decisions)
    notes = sum(note["tokens"] for note in shown.json()["plan"]["notes"])
    assert shown.json()["tokens"] - (kept + notes) == shown.json()["tokens_before"] - sum(
        decision["before"] for decision in decisions
    )


@pytest.mark.parametrize("is_set", [False, True])
def test_cache_marks_are_set_on_request(is_set: bool) -> None:
    body = body_of(MESSAGES, *TURNS, reply=20, model="gpt-4o", system="Be brief.")
    options = {"brim-cache-marks": "off" if is_set else "on"}
    with ScriptedServer("ok", window=1_000) as provider:
        with run_gateway(config_of(provider.url, cache_marks=is_set)) as gateway:
            post(gateway.url, MESSAGES, body)
            post(gateway.url, MESSAGES, body, options)
        first, second = (request.body for request in provider.requests)
    marked, plain = (first, second) if is_set else (second, first)
    assert "cache_control" not in json.dumps(plain)
    assert 1 <= json.dumps(marked).count("cache_control") <= 4
    assert "cache_control" in json.dumps(turns_in(MESSAGES, marked)[-1])


def test_the_clients_own_cache_marks_are_kept_and_none_are_added() -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [{"type": "text", "text": "Be brief.", **mark}]
    body = body_of(MESSAGES, *TURNS, reply=20, system=system)
    with ScriptedServer("ok", window=1_000) as provider:
        with run_gateway(config_of(provider.url, cache_marks=True)) as gateway:
            post(gateway.url, MESSAGES, body)
        (request,) = provider.requests
    assert request.body["system"] == system
    assert json.dumps(request.body).count("cache_control") == 1


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ({"brim-policy": "bold"}, "invalid_header"),
        ({"brim-fitting": "maybe"}, "invalid_header"),
        ({"brim-cache-marks": "1"}, "invalid_header"),
        ({"brim-polcy": "steady"}, "unknown_header"),
    ],
)
def test_an_invalid_option_is_rejected(header: Mapping[str, str], code: str) -> None:
    with ScriptedServer("ok") as provider, run_gateway(config_of(provider.url)) as gateway:
        answer = post(gateway.url, CHAT, body_of(CHAT, HELLO), header)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == code
        assert not provider.requests
