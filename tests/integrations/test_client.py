"""`brim.wrap`: clients of the OpenAI and Anthropic SDKs that fit every request."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

import brim
from brim.testing import ErrorReply, ScriptedServer, TextReply, ToolCallReply
from tests.support.pages import run_page

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.process,
    pytest.mark.usefixtures("one_authority"),
]

LONG = "the words of a file " * 40
MODEL = "gpt-4o"
CLAUDE = "claude-opus-4-5"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("Done.", window=4_096, model=MODEL) as running:
        yield running


def steps(count: int = 40) -> list[Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read the files."}]
    for number in range(count):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read"}}
        call["function"] |= {"arguments": "{}"}  # type: ignore[operator]
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"{number} {LONG}"},
        ]
    return messages


def chat(count: int = 41) -> list[Any]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": f"{i} {LONG}"} for i in range(count)]


Connect = Callable[..., Any]


def create_client(kind: Callable[..., Any], server: ScriptedServer) -> Any:
    url = server.url if kind.__module__.startswith("openai") else server.url.removesuffix("/v1")
    return kind(base_url=url, api_key="key", max_retries=0)


@pytest.fixture
def connect(server: ScriptedServer) -> Iterator[Connect]:
    """Return a function that wraps a new client of the server."""
    with ExitStack() as clients:

        def create(kind: Callable[..., Any] = openai.OpenAI, **settings: Any) -> Any:
            return brim.wrap(clients.enter_context(create_client(kind, server)), **settings)

        yield create


class Answer(BaseModel):
    text: str


def stream_chat(client: openai.OpenAI, **options: Any) -> Any:
    with client.chat.completions.stream(**options) as stream:
        assert stream.get_final_completion().choices[0].message.content == "Done."
        return stream


def stream_responses(client: openai.OpenAI, *, messages: Any, **options: Any) -> Any:
    with client.responses.stream(input=messages, **options) as stream:
        assert stream.get_final_response().output_text == "Done."
        return stream


OPENAI_CALLS: dict[str, Callable[..., Any]] = {
    "create": lambda client, **options: client.chat.completions.create(**options),
    "stream": lambda client, **options: client.chat.completions.create(stream=True, **options),
    "helper": stream_chat,
    "beta": lambda client, **options: stream_chat(client.beta, **options),
    "raw": lambda client, **options: client.chat.completions.with_raw_response.create(**options),
    "raw client": lambda client, **options: client.with_raw_response.chat.completions.create(
        **options
    ),
    "copy": lambda client, **options: client.with_options(timeout=9).chat.completions.create(
        **options
    ),
    "responses": lambda client, *, messages, **options: client.responses.create(
        input=messages, **options
    ),
    "responses helper": stream_responses,
}


@pytest.mark.parametrize("call", OPENAI_CALLS.values(), ids=OPENAI_CALLS.keys())
def test_every_way_to_call_openai_is_fitted_and_has_its_plan(
    server: ScriptedServer, connect: Connect, call: Callable[..., Any]
) -> None:
    response = call(connect(window=4_096), model=MODEL, messages=chat())
    assert response.brim.plan.is_trimmed
    assert not response.brim.retried
    assert not server.rejected
    (request,) = server.requests
    assert request.tokens == response.brim.plan.tokens


def test_parse_is_fitted() -> None:
    with (
        ScriptedServer('{"text": "Done."}', window=4_096, model=MODEL) as server,
        create_client(openai.OpenAI, server) as client,
    ):
        parsed = brim.wrap(client, window=4_096).chat.completions.parse(
            model=MODEL, messages=chat(), response_format=Answer
        )
    assert parsed.choices[0].message.parsed == Answer(text="Done.")
    assert parsed.brim.plan.is_trimmed


def stream_claude(client: anthropic.Anthropic, **options: Any) -> Any:
    with client.messages.stream(**options) as stream:
        assert stream.get_final_text() == "Done."
        return stream


ANTHROPIC_CALLS: dict[str, Callable[..., Any]] = {
    "create": lambda client, **options: client.messages.create(**options),
    "stream": lambda client, **options: client.messages.create(stream=True, **options),
    "helper": stream_claude,
    "beta": lambda client, **options: client.beta.messages.create(**options),
    "beta helper": lambda client, **options: stream_claude(client.beta, **options),
    "copy": lambda client, **options: stream_claude(client.with_options(timeout=9), **options),
}


@pytest.mark.parametrize("call", ANTHROPIC_CALLS.values(), ids=ANTHROPIC_CALLS.keys())
def test_every_way_to_call_anthropic_is_fitted_and_has_its_plan(
    server: ScriptedServer, connect: Connect, call: Callable[..., Any]
) -> None:
    client = connect(anthropic.Anthropic, window=4_096)
    response = call(client, model=CLAUDE, max_tokens=100, messages=chat())
    assert response.brim.plan.is_trimmed
    assert not server.rejected
    assert server.requests[0].body["messages"] != chat()


async def open_chat(client: openai.AsyncOpenAI, **options: Any) -> Any:
    async with client.chat.completions.stream(**options) as stream:
        completion = await stream.get_final_completion()
        assert completion.choices[0].message.content == "Done."
        return stream


async def open_messages(client: anthropic.AsyncAnthropic, **options: Any) -> Any:
    async with client.messages.stream(**options) as stream:
        assert await stream.get_final_text() == "Done."
        return stream


AsyncCall = Callable[[Any], Awaitable[Any]]
ASYNC_CALLS: dict[str, tuple[Callable[..., Any], AsyncCall]] = {
    "openai": (
        openai.AsyncOpenAI,
        lambda client: client.chat.completions.create(model=MODEL, messages=chat()),
    ),
    "openai helper": (
        openai.AsyncOpenAI,
        lambda client: open_chat(client, model=MODEL, messages=chat()),
    ),
    "openai responses": (
        openai.AsyncOpenAI,
        lambda client: client.responses.create(
            model=MODEL, input=chat(20)
        ),  # its error has no limit
    ),
    "anthropic": (
        anthropic.AsyncAnthropic,
        lambda client: client.messages.create(model=CLAUDE, max_tokens=100, messages=chat()),
    ),
    "anthropic helper": (
        anthropic.AsyncAnthropic,
        lambda client: open_messages(client, model=CLAUDE, max_tokens=100, messages=chat()),
    ),
}


@pytest.mark.parametrize(("kind", "call"), ASYNC_CALLS.values(), ids=ASYNC_CALLS.keys())
async def test_async_clients_retry_once_with_the_limit_of_the_error(
    server: ScriptedServer, kind: Callable[..., Any], call: AsyncCall
) -> None:
    async with create_client(kind, server) as client:
        response = await call(brim.wrap(client))  # the catalog's window is larger than the server's
    assert response.brim.retried
    assert response.brim.plan.fits
    assert len(server.requests) == 2
    assert len(server.rejected) == 1


async def read_async(client: Any) -> Any:
    stream = await client.chat.completions.create(model=MODEL, messages=chat(), stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Done."
    return stream


STREAMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "openai": (
        openai.OpenAI,
        lambda client: client.chat.completions.create(model=MODEL, messages=chat(), stream=True),
    ),
    "openai helper": (
        openai.OpenAI,
        lambda client: stream_chat(client, model=MODEL, messages=chat()),
    ),
    "responses": (
        openai.OpenAI,
        lambda client: client.responses.create(model=MODEL, input=chat(20), stream=True),
    ),
    "responses helper": (
        openai.OpenAI,
        lambda client: stream_responses(client, model=MODEL, messages=chat(20)),
    ),
    "anthropic helper": (
        anthropic.Anthropic,
        lambda client: stream_claude(client, model=CLAUDE, max_tokens=100, messages=chat()),
    ),
}


@pytest.mark.parametrize(("kind", "call"), STREAMS.values(), ids=STREAMS.keys())
def test_an_error_before_the_first_content_of_a_stream_is_retried(
    kind: Callable[..., Any], call: Callable[[Any], Any]
) -> None:
    with (
        ScriptedServer("Done.", window=4_096, model=MODEL, context_errors="in_stream") as server,
        create_client(kind, server) as client,
    ):
        stream = call(brim.wrap(client))
        assert stream.brim.retried
        assert stream.brim.plan.fits
        list(stream)
        assert (len(server.requests), len(server.rejected)) == (2, 1)


async def test_an_error_in_an_async_stream_is_retried() -> None:
    with ScriptedServer("Done.", window=4_096, model=MODEL, context_errors="in_stream") as server:
        async with create_client(openai.AsyncOpenAI, server) as client:
            assert (await read_async(brim.wrap(client))).brim.retried
        async with create_client(anthropic.AsyncAnthropic, server) as client:
            options = {"model": CLAUDE, "max_tokens": 100, "messages": chat()}
            assert (await open_messages(brim.wrap(client), **options)).brim.retried
        assert len(server.rejected) == 2


def test_other_errors_in_a_stream_come_when_it_is_read() -> None:
    script = [ErrorReply(500, "broken", in_stream=True)]
    with (
        ScriptedServer(script, window=4_096, model=MODEL) as server,
        create_client(openai.OpenAI, server) as client,
    ):
        stream = brim.wrap(client).chat.completions.create(
            model=MODEL, messages=chat(3), stream=True
        )
        with pytest.raises(openai.APIError, match="broken"):
            list(stream)
        assert len(server.requests) == 1


def test_a_stream_that_cannot_get_smaller_has_the_error_of_the_sdk() -> None:
    with (
        ScriptedServer("Done.", window=100, model=MODEL, context_errors="in_stream") as server,
        create_client(openai.OpenAI, server) as client,
    ):
        stream = brim.wrap(client).chat.completions.create(
            model=MODEL, messages=chat(1), stream=True
        )
        with pytest.raises(openai.APIError, match="context"):
            list(stream)


def test_the_limit_of_an_error_holds_for_later_requests(
    server: ScriptedServer, connect: Connect
) -> None:
    client = connect()
    first = client.chat.completions.create(model=MODEL, messages=steps())
    later = client.with_options(timeout=9).chat.completions.create(model=MODEL, messages=steps(41))
    assert (first.brim.retried, later.brim.retried) == (True, False)
    assert later.brim.plan.budget.window == 4_096
    assert len(server.rejected) == 1


def test_a_second_rejection_and_other_errors_are_those_of_the_sdk() -> None:
    too_long = "This model's maximum context length is 4096 tokens. However, you requested 9000."
    script = [*[ErrorReply(400, too_long)] * 2, ErrorReply(400, "invalid model")]
    with (
        ScriptedServer(script, model=MODEL) as server,
        create_client(openai.OpenAI, server) as client,
    ):
        for sent in (2, 3):
            with pytest.raises(openai.BadRequestError):
                brim.wrap(client).chat.completions.create(model=MODEL, messages=chat())
            assert len(server.requests) == sent


def test_a_request_that_cannot_fit_is_not_sent(server: ScriptedServer, connect: Connect) -> None:
    with pytest.raises(brim.ContextOverflowError):
        connect(window=300, reply=10).chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": LONG * 9}]
        )
    with pytest.raises(brim.BudgetError, match="Pass window"):
        connect().chat.completions.create(model="unknown-model", messages=chat(1))
    assert not server.requests


def test_the_wrapped_client_is_one_of_its_class_and_the_original_is_untouched(
    server: ScriptedServer,
) -> None:
    class Own(openai.OpenAI):
        """A user's own client."""

    with Own(base_url=server.url, api_key="key", max_retries=0, timeout=7) as client:
        assert client.chat.completions  # resources that exist already belong to the original
        wrapped = brim.wrap(client, window=4_096)
        assert isinstance(wrapped, Own)
        assert isinstance(wrapped.with_options(timeout=9), type(wrapped))
        assert (wrapped.api_key, wrapped.timeout, wrapped.base_url) == ("key", 7, client.base_url)
        assert wrapped.chat.completions.create(model=MODEL, messages=chat())
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model=MODEL, messages=chat())


def test_everything_else_passes_through(connect: Connect) -> None:
    wrapped = connect(window=4_096)
    assert [model.id for model in wrapped.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError):
        wrapped.embeddings.create(model=MODEL, input=LONG * 300)
    body = {"model": MODEL, "prompt": LONG}
    with pytest.raises(openai.NotFoundError):
        wrapped.post("/completions", cast_to=object, body=body)


def test_a_response_stays_the_value_it_was(server: ScriptedServer, connect: Connect) -> None:
    with create_client(openai.OpenAI, server) as plain:
        expected = plain.chat.completions.create(model=MODEL, messages=chat(3))
    response = connect(window=4_096).chat.completions.create(model=MODEL, messages=chat(3))
    assert type(response) is type(expected)
    assert response == expected
    assert response.to_json() == expected.to_json()
    assert copy.deepcopy(response) == response
    assert pickle.loads(pickle.dumps(response)) == response


def test_a_response_can_be_appended_as_every_example_does(
    server: ScriptedServer, connect: Connect
) -> None:
    client, messages = connect(window=4_096), chat(3)
    for _ in range(3):
        response = client.chat.completions.create(model=MODEL, messages=messages)
        messages.append(response.choices[0].message)
        messages.append({"role": "user", "content": LONG})
    assert server.requests[-1].body["messages"][-2]["content"] == "Done."


def test_dropped_messages_are_summarized(server: ScriptedServer, connect: Connect) -> None:
    client = connect(window=4_096, summarize=lambda *_: "They talked about files.")
    client.chat.completions.create(model=MODEL, messages=chat())
    assert "They talked about files." in str(server.requests[0].body["messages"])


def test_each_plan_is_reported(connect: Connect) -> None:
    plans: list[brim.Plan] = []
    connect(on_plan=plans.append).chat.completions.create(model=MODEL, messages=chat())
    assert [plan.is_trimmed for plan in plans] == [False, True]


@pytest.mark.parametrize("client", [None, "http://localhost", object()])
def test_other_objects_are_rejected_with_advice(client: object) -> None:
    with pytest.raises(brim.InputError, match="openai or anthropic"):
        brim.wrap(client)


def test_an_unknown_option_is_rejected(connect: Connect) -> None:
    with pytest.raises(brim.InputError, match="Unknown option: windw"):
        connect(windw=8_192)


def test_the_page_of_the_documentation_runs(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = run_page("clients", server, monkeypatch)
    with names["client"]:  # type: ignore[attr-defined]
        assert len(names["messages"]) == 2  # type: ignore[arg-type]


# The tool `recall`

FACT = "My locker at the station in Lisbon has the number 4711."
RECALL = TextReply("Let me see. ", [ToolCallReply("recall", {"query": "locker number"})])
CLIENTS = [openai.OpenAI, openai.AsyncOpenAI, anthropic.Anthropic, anthropic.AsyncAnthropic]


def talk() -> list[Any]:
    """A fact in the middle of remarks: there `steady` drops it."""
    messages = chat()
    messages[12]["content"] = FACT
    return [*messages, {"role": "user", "content": "Which locker was it?"}]


async def ask(client: Any, *, streams: bool) -> str:
    """Return the reply of a client of either SDK."""
    is_openai = hasattr(client, "chat")
    create = client.chat.completions.create if is_openai else client.messages.create
    given = {"model": MODEL if is_openai else CLAUDE, "messages": talk(), "max_tokens": 100}
    answer = create(**given, stream=streams)
    answer = await answer if isinstance(answer, Awaitable) else answer
    if not streams:
        assert FACT not in str(answer)
        return str(answer.choices[0].message.content if is_openai else answer.content[0].text)
    events = [event async for event in answer] if hasattr(answer, "__aiter__") else [*answer]
    if is_openai:
        assert not any(event.choices[0].delta.tool_calls for event in events)
        return "".join(event.choices[0].delta.content or "" for event in events)
    assert [event.type for event in events].count("message_stop") == 1
    return "".join(getattr(getattr(event, "delta", None), "text", "") for event in events)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("kind", CLIENTS)
async def test_the_model_recalls_what_was_trimmed(kind: Callable[..., Any], streams: bool) -> None:
    with ScriptedServer([RECALL, "It is 4711."], window=4_096) as server:
        client = brim.wrap(create_client(kind, server), window=4_096, recall=True)
        text = await ask(client, streams=streams)
        if isinstance(closing := client.close(), Awaitable):
            await closing
    assert text == ("Let me see. It is 4711." if streams else "It is 4711.")
    first, second = server.requests
    assert "call recall to read them" in str(first.body)
    assert FACT not in str(first.body)
    assert FACT in str(second.body)


async def test_calls_of_other_tools_are_left_to_the_caller() -> None:
    calls = TextReply("", [ToolCallReply("recall", {"query": "locker"}), ToolCallReply("run")])
    tool: Any = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}
    with ScriptedServer(calls, window=4_096) as server:
        client = brim.wrap(create_client(openai.OpenAI, server), window=4_096, recall=True)
        completions = client.chat.completions
        answer = completions.create(model=MODEL, messages=talk(), tools=[tool])
    calls_made = [call.to_dict()["function"] for call in answer.choices[0].message.tool_calls or ()]
    assert calls_made == [{"name": "run", "arguments": "{}"}]
    assert len(server.requests) == 1
