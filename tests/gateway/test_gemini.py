"""Gemini's generateContent, with Google's own SDK as the client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import errors, types

from brim.testing import ErrorReply, Script, ScriptedServer, TextReply, ToolCallReply
from tests.support.gateway.accounts import PRICE, create_secret, only_row
from tests.support.gateway.process import Running, config_of, run_gateway

MODEL = "gemini-2.5-flash"
KEY = "the-client-s-own"
PATH = f"/v1beta/models/{MODEL}:generateContent"


@contextmanager
def gateway(
    script: Script, window: int = 4_000, **settings: Any
) -> Iterator[tuple[Running, ScriptedServer]]:
    with ScriptedServer(script, window=window, counts_tokens=True) as upstream:
        given: Any = {"format": ("gemini",), "window": window, "price": PRICE, **settings}
        with run_gateway(config_of(upstream.url.removesuffix("/v1"), **given)) as running:
            yield running, upstream


def generate(running: Running, contents: Any, **config: Any) -> types.GenerateContentResponse:
    with client_of(running) as client:
        settings = types.GenerateContentConfig(**config)
        return client.models.generate_content(model=MODEL, contents=contents, config=settings)


def stream(running: Running, contents: Any) -> list[types.GenerateContentResponse]:
    with client_of(running) as client:
        return list(client.models.generate_content_stream(model=MODEL, contents=contents))


def client_of(running: Running) -> genai.Client:
    return genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=running.url))


def talk(exchanges: int) -> list[Any]:
    """A conversation with calls and results, of about 60 tokens for each exchange."""
    contents: list[types.Content] = []
    for n in range(exchanges):
        call = types.Part.from_function_call(name="read", args={"path": f"file-{n}"})
        result = types.Part.from_function_response(name="read", response={"text": "line " * 40})
        contents += [
            types.Content(role="user", parts=[types.Part(text=f"Read file {n}.")]),
            types.Content(role="model", parts=[call]),
            types.Content(role="user", parts=[result]),
            types.Content(role="model", parts=[types.Part(text=f"File {n} is empty.")]),
        ]
    return [*contents, types.Content(role="user", parts=[types.Part(text="Name a colour!")])]


def body_of(*texts: str, **options: Any) -> dict[str, Any]:
    contents = [
        {"role": "model" if n % 2 else "user", "parts": [{"text": text}]}
        for n, text in enumerate(texts)
    ]
    return {"contents": contents, **({"generationConfig": options} if options else {})}


def test_the_sdk_gets_text_usage_and_finish_reason() -> None:
    with gateway("It is blue.") as (running, upstream):
        answer = generate(running, "What is it?")
    assert answer.text == "It is blue."
    assert answer.usage_metadata is not None
    assert answer.usage_metadata.prompt_token_count == upstream.requests[0].tokens
    assert answer.candidates is not None
    assert answer.candidates[0].finish_reason == types.FinishReason.STOP
    assert upstream.requests[0].headers["x-goog-api-key"] == KEY


def test_the_sdk_gets_a_stream() -> None:
    with gateway("It is blue.") as (running, _):
        chunks = stream(running, "x")
        (record,) = httpx.get(f"{running.url}/brim/requests").json()["data"]
    assert [chunk.text for chunk in chunks if chunk.text] == ["It", " is", " blue."]
    assert (record["streamed"], record["end"], record["model"]) == (True, "completed", MODEL)
    assert record["usage"]["output"] == 4


def test_the_sdk_gets_calls() -> None:
    with gateway(ToolCallReply("read", {"path": "a"})) as (running, _):
        answer = generate(running, "Read a.")
    assert answer.function_calls is not None
    assert answer.function_calls[0].args == {"path": "a"}


@pytest.mark.parametrize("exchanges", [1, 60])
def test_a_conversation_is_fitted_and_calls_stay_with_their_results(exchanges: int) -> None:
    contents = talk(exchanges)
    with gateway("Blue.") as (running, upstream):
        answer = generate(running, contents, system_instruction="Be brief.", max_output_tokens=50)
        assert answer.text == "Blue."
        (request,) = upstream.requests
    assert request.tokens <= 4_000 - 50
    assert request.body["contents"][-1]["parts"] == [{"text": "Name a colour!"}]
    assert request.body["systemInstruction"]["parts"][0]["text"] == "Be brief."
    kinds = [next(iter(part)) for each in request.body["contents"] for part in each["parts"]]
    for before, after in pairwise(kinds):
        assert (before == "functionCall") == (after == "functionResponse")
    assert len(request.body["contents"]) == len(contents) or exchanges == 60


def test_a_request_that_fits_is_forwarded_byte_for_byte() -> None:
    raw = b'{ "contents": [{"role":"user", "parts":[{"text":"hi"}]}], "unknown": 1.50 }'
    with gateway("Hi.") as (running, upstream):
        httpx.post(f"{running.url}{PATH}", content=raw).raise_for_status()
        assert upstream.requests[0].raw == raw


def test_a_request_that_cannot_fit_gets_googles_error() -> None:
    with gateway("Blue.") as (running, upstream):
        with pytest.raises(errors.ClientError) as caught:
            generate(running, "word " * 9_000)
        assert not upstream.requests
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
    assert "exceeds the maximum number of tokens allowed" in str(caught.value.message)


@pytest.mark.parametrize("in_stream", [False, True])
def test_a_context_length_error_is_answered_with_a_smaller_request(in_stream: bool) -> None:
    with gateway("Blue.", window=3_000) as (running, upstream):
        upstream.window = 2_000
        answers = stream(running, talk(26)) if in_stream else [generate(running, talk(26))]
        assert "".join(answer.text or "" for answer in answers) == "Blue."
        assert [len(upstream.rejected), len(upstream.requests)] == [1, 2]


def test_an_error_of_the_upstream_reaches_the_sdk() -> None:
    error = {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}
    with (
        gateway(ErrorReply(503, error=error)) as (running, _),
        pytest.raises(errors.ServerError, match="overloaded"),
    ):
        generate(running, "hi")


def test_a_stream_that_breaks_off_ends_with_an_error() -> None:
    with (
        gateway(TextReply("It is blue.", cut_after=1)) as (running, _),
        pytest.raises(errors.APIError),
    ):
        stream(running, "hi")


def test_the_sdk_counts_tokens_and_lists_models() -> None:
    with gateway("Blue.", models=(MODEL,)) as (running, upstream):
        with client_of(running) as client:
            counted = client.models.count_tokens(model=MODEL, contents="Name a colour!")
            listed = [model.name for model in client.models.list()]
        generate(running, "Name a colour!")
        assert counted.total_tokens == upstream.requests[0].tokens
        assert listed == [f"models/{MODEL}"]
        assert len(upstream.count_requests) == 1


# Keys and caps


@pytest.mark.parametrize("in_query", [False, True])
def test_a_key_of_the_gateway_is_accepted_and_not_forwarded(
    in_query: bool, caplog: pytest.LogCaptureFixture
) -> None:
    secret = create_secret("anna", "1/day")
    with gateway("Blue.", key_env="KEY") as (_, upstream):
        config = config_of(
            upstream.url.removesuffix("/v1"), format=("gemini",), window=4_000, price=PRICE,
            key_env="KEY",
        )  # fmt: skip
        with run_gateway(config, {"KEY": "upstream-key"}) as running:
            query = f"?key={secret}" if in_query else ""
            headers = {} if in_query else {"x-goog-api-key": secret}
            body = body_of("hi", maxOutputTokens=20)
            address = f"{running.url}{PATH}"
            answer = httpx.post(address + query, json=body, headers=headers)
            assert answer.status_code == 200
        request = upstream.requests[0]
    assert request.headers["x-goog-api-key"] == "upstream-key"
    assert secret not in request.path + str(request.headers) + caplog.text
    assert only_row().charge.micro_dollars == 2 * request.tokens + 10 * 2


def test_a_missing_key_gets_googles_error() -> None:
    create_secret("anna")
    with gateway("Blue.") as (running, _):
        answer = httpx.post(f"{running.url}{PATH}", json=body_of("hi"))
    assert answer.status_code == 401
    assert answer.json()["error"]["status"] == "UNAUTHENTICATED"


REJECTED: dict[str, dict[str, Any]] = {
    "search": {"tools": [{"googleSearch": {}}]},
    "code": {"tools": [{"functionDeclarations": []}, {"codeExecution": {}}]},
    "snake case": {"generation_config": {"max_output_tokens": 10}},
    "images": {"generationConfig": {"responseModalities": ["IMAGE"]}},
    "speech": {"generationConfig": {"speechConfig": {}}},
    "unknown": {"generationConfig": {"unknown": 1}},
    "sound": {"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": "AA=="}}]}]},
}


@pytest.mark.parametrize("fields", REJECTED.values(), ids=REJECTED)
def test_a_capped_key_cannot_send_fields_without_a_bound(fields: dict[str, Any]) -> None:
    secret = create_secret("anna", "1/day")
    with gateway("Blue.") as (running, upstream):
        body = {**body_of("hi"), **fields}
        headers = {"x-goog-api-key": secret}
        answer = httpx.post(f"{running.url}{PATH}", json=body, headers=headers)
        assert answer.status_code == 403
        assert answer.json()["error"]["details"][0]["reason"] == "uncountable"
        assert not upstream.requests


def test_a_capped_key_gets_an_output_limit_and_pays_for_every_candidate() -> None:
    secret = create_secret("anna", "0.0045/day")
    headers = {"x-goog-api-key": secret}
    with gateway("Blue.", reply=100) as (running, upstream):
        body = body_of("hi", candidateCount=4)
        assert httpx.post(f"{running.url}{PATH}", json=body, headers=headers).status_code == 429
        answer = httpx.post(f"{running.url}{PATH}", json=body_of("hi"), headers=headers)
        assert answer.status_code == 200
        assert upstream.requests[0].body["generationConfig"] == {"maxOutputTokens": 100}


def test_a_stream_without_events_is_rejected() -> None:
    with gateway("Blue.") as (running, _):
        answer = httpx.post(
            f"{running.url}/v1beta/models/{MODEL}:streamGenerateContent", json=body_of("hi")
        )
    assert answer.status_code == 400
    assert "alt=sse" in answer.json()["error"]["message"]
