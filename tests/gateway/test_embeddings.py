"""Embeddings and compactions: counted, capped, and rejected or fitted if they are too long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web

from brim.config import Config, UpstreamConfig
from brim.gateway.accounts.reservations import LedgerRow
from tests.support.gateway.accounts import (
    PRICE,
    create_secret,
    dollars,
    only_row,
    read_cap_usage,
)
from tests.support.gateway.process import run_gateway
from tests.support.providers.scripted import Scripted, run, run_scripted

MODEL = "text-embedding-3-small"
TEXTS = ["hello world", "one two three four"]
"""Two and four tokens."""

Calls = Callable[[openai.AsyncOpenAI], Awaitable[Any]]


async def answer(request: web.Request) -> web.StreamResponse:
    """Return vectors, or a compacted conversation, with a usage of 6 input tokens."""
    if request.path == "/v1/responses/compact":
        item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "abc"}
        usage = {"input_tokens": 6, "output_tokens": 3, "total_tokens": 9}
        head = {"id": "resp_1", "object": "response.compaction", "created_at": 0}
        return web.json_response({**head, "output": [item], "usage": usage})
    if request.path != "/v1/embeddings":
        return web.Response(status=404)
    vectors = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
    usage = {"prompt_tokens": 6, "total_tokens": 6}
    return web.json_response({"object": "list", "data": vectors, "model": MODEL, "usage": usage})


def call(work: Calls, *, secret: str = "", **settings: Any) -> tuple[Any, Scripted]:
    """Return what the SDK returns or raises, and the upstream."""

    async def call_async() -> tuple[Any, Scripted]:
        async with run_scripted(answer) as server:
            upstream = UpstreamConfig(server.url, ("openai", "responses"), **settings)
            with run_gateway(Config(upstreams={"one": upstream})) as gateway:
                client = openai.AsyncOpenAI(
                    base_url=f"{gateway.url}/v1", api_key=secret or "none", max_retries=0
                )
                try:
                    return await work(client), server
                except openai.APIStatusError as error:
                    return error, server
                finally:
                    await client.close()

    found: tuple[Any, Scripted] = run(call_async())
    return found


def embed(given: Any, **fields: Any) -> Calls:
    async def work(client: openai.AsyncOpenAI) -> Any:
        raw = await client.embeddings.with_raw_response.create(model=MODEL, input=given, **fields)
        raw.parse()
        return raw

    return work


def compact(**fields: Any) -> Calls:
    return lambda client: client.responses.compact(model="gpt-4o", **fields)


@pytest.mark.parametrize(
    ("given", "tokens"),
    [("hello world", 2), (TEXTS, 6), ([15339, 1917], 2), ([[15339, 1917], [1, 2, 3]], 5)],
)
def test_inputs_are_counted_and_forwarded_unchanged(given: Any, tokens: int) -> None:
    found, server = call(embed(given))
    assert found.headers["brim-tokens"] == str(tokens)
    (sent,) = [request for request in server.requests if request.path == "/v1/embeddings"]
    assert sent.body["input"] == given


@pytest.mark.parametrize("number", [1, 3])
def test_each_input_may_fill_the_window(number: int) -> None:
    found, _ = call(embed(["a " * 8_000] * number))
    assert found.status_code == 200


@pytest.mark.parametrize("long", ["a " * 9_000, [1] * 8_193])
def test_an_input_that_is_too_long_is_named(long: Any) -> None:
    error, server = call(embed(["short", long] if isinstance(long, str) else [[1], long]))
    assert (error.status_code, error.code, error.param) == (400, "context_length_exceeded", "input")
    assert "input 1" in error.message
    assert "/v1/embeddings" not in server.paths


@pytest.mark.parametrize("given", [[], [None], [["a"]], 5, [1, "a"]])
def test_an_invalid_input_is_an_error(given: Any) -> None:
    error, _ = call(lambda client: client.post("/embeddings", cast_to=object,
                                               body={"model": MODEL, "input": given}))  # fmt: skip
    assert (error.status_code, error.code) == (400, "invalid_request")


def charge(row: LedgerRow) -> tuple[int, int, int]:
    return row.charge.usage.input, row.charge.usage.output, row.charge.micro_dollars


def test_a_capped_key_pays_for_the_reported_tokens() -> None:
    secret = create_secret("anna", "1/day")
    call(embed(TEXTS), secret=secret)
    assert charge(only_row()) == (6, 0, 1)  # 6 tokens at $0.02 per million, rounded up


def test_a_full_cap_rejects_embeddings_before_the_upstream() -> None:
    secret = create_secret("anna", "5 tokens/day")
    error, server = call(embed(TEXTS), secret=secret)
    assert error.code == "insufficient_quota"
    assert "/v1/embeddings" not in server.paths


def test_a_capped_key_cannot_send_unknown_fields() -> None:
    secret = create_secret("anna", "1/day")
    error, _ = call(embed("hello", extra_body={"search": True}), secret=secret)
    assert (error.code, error.param) == ("uncountable", "search")


def test_another_model_does_not_replace_one_that_fails() -> None:
    async def work() -> None:
        async with run_scripted(answer) as good:
            upstreams = {
                "down": UpstreamConfig("http://127.0.0.1:9", models=(MODEL,), fallback=("other",)),
                "good": UpstreamConfig(good.url, models=("other",)),
            }
            with run_gateway(Config(upstreams=upstreams)) as gateway:
                async with httpx.AsyncClient() as client:
                    body = {"model": MODEL, "input": "hello"}
                    found = await client.post(f"{gateway.url}/v1/embeddings", json=body)
            assert found.status_code == 502
            assert not good.requests

    run(work())


# Compaction


def test_a_compaction_reserves_the_longest_output_and_pays_for_the_actual_one() -> None:
    secret = create_secret("anna", dollars(300_000))
    found, server = call(compact(input="hello world"), secret=secret, price=PRICE)
    assert found.output[0].type == "compaction"
    assert "max_output_tokens" not in server.requests[-1].body
    assert charge(only_row()) == (6, 3, 2 * 6 + 10 * 3)
    assert read_cap_usage()["key dollars"] == (42, 0)


def test_a_compaction_needs_room_for_the_longest_output() -> None:
    secret = create_secret("anna", dollars(10 * 16_384))  # the prompt comes on top
    error, server = call(compact(input="hello world"), secret=secret, price=PRICE)
    assert error.code == "insufficient_quota"
    assert "/v1/responses/compact" not in server.paths


def test_a_long_conversation_is_fitted_before_it_is_compacted() -> None:
    roles = ("user", "assistant")
    turns = [{"role": roles[place % 2], "content": "word " * 200} for place in range(21)]
    _, server = call(compact(input=turns), window=2_000, reply=100)
    assert len(server.requests[-1].body["input"]) < len(turns)


def test_a_stored_conversation_reserves_the_whole_window() -> None:
    room = 2 * 1_900 + 10 * 16_384
    for cap, status in ((room, 200), (room - 1, 429)):
        secret = create_secret(f"anna-{status}", dollars(cap))
        found, _ = call(
            compact(previous_response_id="resp_0"),
            secret=secret,
            price=PRICE,
            window=2_000,
            reply=100,
        )
        assert getattr(found, "status_code", 200) == status
