"""Client libraries, configured with the gateway's address only.

`ASKING` has a function for each of them, whole and streamed: it takes the turns of a conversation
and returns the reply as the client read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anthropic
import openai

if TYPE_CHECKING:
    # These packages take seconds to import, so they are imported on first use.
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model

Turn = tuple[str, str]
Turns = Sequence[Turn]
"""Turns as (role, text), the user first and last."""
Asking = Callable[[str, str, Turns], str]
"""Sends a conversation to a model at an address."""

SYSTEM: Final = "Answer in a few words."
WORDS: Final = 12
"""Output limit in tokens."""
KEY: Final = "the-client-s-own"


def long_talk(exchanges: int) -> list[Turn]:
    """Questions and replies of about 60 tokens each, and a last question."""
    turns = []
    for n in range(exchanges):
        turns.append(("user", f"Tell me why {7 * n} is larger than {n}, if it is."))
        turns.append(("assistant", f"Because seven times {n} is {7 * n}. " * 2))
    return [*turns, ("user", "Name a colour!")]


# OpenAI


def openai_client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)


def async_openai_client(address: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)


def chat_of(turns: Turns) -> list[Any]:
    messages = [{"role": role, "content": text} for role, text in turns]
    return [{"role": "system", "content": SYSTEM}, *messages]


def _chat(model: str, turns: Turns, **more: Any) -> Any:
    settings = {"max_tokens": WORDS, "temperature": 0, **more}
    return {"model": model, "messages": chat_of(turns), **settings}


def openai_chat(address: str, model: str, turns: Turns) -> str:
    with openai_client(address) as client:
        answer = client.chat.completions.create(**_chat(model, turns))
        return str(answer.choices[0].message.content)


def openai_chat_streamed(address: str, model: str, turns: Turns) -> str:
    with openai_client(address) as client:
        chunks = client.chat.completions.create(**_chat(model, turns, stream=True))
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


async def _openai_chat_async(address: str, model: str, turns: Turns) -> str:
    async with async_openai_client(address) as client:
        answer = await client.chat.completions.create(**_chat(model, turns))
        return str(answer.choices[0].message.content)


async def _openai_chat_streamed_async(address: str, model: str, turns: Turns) -> str:
    async with async_openai_client(address) as client:
        chunks = await client.chat.completions.create(**_chat(model, turns, stream=True))
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])


def _response(model: str, turns: Turns, **more: Any) -> Any:
    settings = {"max_output_tokens": WORDS, "temperature": 0, **more}
    items = [_item(place, *turn) for place, turn in enumerate(turns)]
    return {"model": model, "instructions": SYSTEM, "input": items, **settings}


def _item(place: int, role: str, text: str) -> dict[str, Any]:
    """A turn in the format of a response's output, the only one that llama.cpp accepts."""
    if role == "user":
        return {"role": role, "content": text}
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": f"msg_{place}", "status": "completed"}
    return {**item, "role": role, "content": [part]}


def _delta(event: Any) -> str:
    return str(event.delta) if event.type == "response.output_text.delta" else ""


def openai_responses(address: str, model: str, turns: Turns) -> str:
    with openai_client(address) as client:
        return str(client.responses.create(**_response(model, turns)).output_text)


def openai_responses_streamed(address: str, model: str, turns: Turns) -> str:
    with openai_client(address) as client:
        events = client.responses.create(**_response(model, turns, stream=True))
        return "".join(map(_delta, events))


async def _openai_responses_async(address: str, model: str, turns: Turns) -> str:
    async with async_openai_client(address) as client:
        return str((await client.responses.create(**_response(model, turns))).output_text)


async def _openai_responses_streamed_async(address: str, model: str, turns: Turns) -> str:
    async with async_openai_client(address) as client:
        events = await client.responses.create(**_response(model, turns, stream=True))
        return "".join([_delta(event) async for event in events])


# Anthropic


def anthropic_client(address: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0)


def async_anthropic_client(address: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=address, api_key=KEY, max_retries=0)


def _message(model: str, turns: Turns) -> Any:
    messages = [{"role": role, "content": text} for role, text in turns]
    return {"model": model, "system": SYSTEM, "messages": messages, "max_tokens": WORDS}


def _texts(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def anthropic_messages(address: str, model: str, turns: Turns) -> str:
    with anthropic_client(address) as client:
        return _texts(client.messages.create(**_message(model, turns)))


def anthropic_messages_streamed(address: str, model: str, turns: Turns) -> str:
    with (
        anthropic_client(address) as client,
        client.messages.stream(**_message(model, turns)) as stream,
    ):
        return "".join(stream.text_stream)


async def _anthropic_messages_async(address: str, model: str, turns: Turns) -> str:
    async with async_anthropic_client(address) as client:
        return _texts(await client.messages.create(**_message(model, turns)))


async def _anthropic_messages_streamed_async(address: str, model: str, turns: Turns) -> str:
    async with (
        async_anthropic_client(address) as client,
        client.messages.stream(**_message(model, turns)) as stream,
    ):
        return "".join([text async for text in stream.text_stream])


# LangChain


def langchain_openai(address: str, model: str, **more: Any) -> ChatOpenAI:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    settings: Any = {"temperature": 0, "max_completion_tokens": WORDS, "max_retries": 0, **more}
    return ChatOpenAI(**settings, model=model, base_url=f"{address}/v1", api_key=SecretStr(KEY))


def langchain_responses(address: str, model: str, **more: Any) -> ChatOpenAI:
    return langchain_openai(address, model, use_responses_api=True, **more)


def langchain_anthropic(address: str, model: str, **more: Any) -> ChatAnthropic:
    from langchain_anthropic import ChatAnthropic
    from pydantic import SecretStr

    settings: Any = {"model": model, "max_tokens": WORDS, "max_retries": 0, **more}
    return ChatAnthropic(**settings, base_url=address, api_key=SecretStr(KEY))


Chain = Callable[[str, str], Any]


def _lc_messages(turns: Turns) -> list[Any]:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

    kinds: Mapping[str, Any] = {"user": HumanMessage, "assistant": AIMessage}
    return [SystemMessage(SYSTEM), *(kinds[role](text) for role, text in turns)]


def _invoke(chain: Chain) -> Asking:
    def ask(address: str, model: str, turns: Turns) -> str:
        return str(chain(address, model).invoke(_lc_messages(turns)).text)

    return ask


def _chain_streamed(chain: Chain) -> Asking:
    def ask(address: str, model: str, turns: Turns) -> str:
        chunks = chain(address, model).stream(_lc_messages(turns))
        return "".join(str(chunk.text) for chunk in chunks)

    return ask


# pydantic-ai


Modelling: TypeAlias = "Callable[[str, str], AbstractAsyncContextManager[Model]]"


@asynccontextmanager
async def pydantic_chat(address: str, model: str) -> AsyncIterator[Model]:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with async_openai_client(address) as client:
        yield OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client))


@asynccontextmanager
async def pydantic_responses(address: str, model: str) -> AsyncIterator[Model]:
    from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
    from pydantic_ai.providers.openai import OpenAIProvider

    settings = OpenAIResponsesModelSettings(openai_send_reasoning_ids=True)
    async with async_openai_client(address) as client:
        provider = OpenAIProvider(openai_client=client)
        yield OpenAIResponsesModel(model, provider=provider, settings=settings)


@asynccontextmanager
async def pydantic_anthropic(address: str, model: str) -> AsyncIterator[Model]:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    async with async_anthropic_client(address) as client:
        yield AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client))


def _history(turns: Turns) -> list[ModelMessage]:
    """The history as kept from earlier replies: those of the responses API have ids."""
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

    return [
        ModelRequest([UserPromptPart(text)])
        if role == "user"
        else ModelResponse([TextPart(text, id=f"msg_{place}")], provider_name="openai")
        for place, (role, text) in enumerate(turns)
    ]


def _agent(model: Model) -> Agent[None, str]:
    from pydantic_ai import Agent
    from pydantic_ai.settings import ModelSettings

    settings = ModelSettings(max_tokens=WORDS, temperature=0)
    return Agent(model, instructions=SYSTEM, model_settings=settings)


def _run(modelling: Modelling) -> Asking:
    async def ask(address: str, model: str, turns: Turns) -> str:
        *before, (_, question) = turns
        async with modelling(address, model) as served_model:
            agent = _agent(served_model)
            return (await agent.run(question, message_history=_history(before))).output

    return _now(ask)


def _run_streamed(modelling: Modelling) -> Asking:
    async def ask(address: str, model: str, turns: Turns) -> str:
        *before, (_, question) = turns
        async with modelling(address, model) as served_model:
            agent = _agent(served_model)
            async with agent.run_stream(question, message_history=_history(before)) as result:
                return "".join([text async for text in result.stream_text(delta=True)])

    return _now(ask)


def _now(ask: Callable[[str, str, Turns], Coroutine[Any, Any, str]]) -> Asking:
    def ask_agent(address: str, model: str, turns: Turns) -> str:
        return asyncio.run(ask(address, model, turns))

    return ask_agent


ASKING: Final[Mapping[str, Asking]] = {
    "openai chat": openai_chat,
    "openai chat, streamed": openai_chat_streamed,
    "openai chat, async": _now(_openai_chat_async),
    "openai chat, async, streamed": _now(_openai_chat_streamed_async),
    "openai responses": openai_responses,
    "openai responses, streamed": openai_responses_streamed,
    "openai responses, async": _now(_openai_responses_async),
    "openai responses, async, streamed": _now(_openai_responses_streamed_async),
    "anthropic": anthropic_messages,
    "anthropic, streamed": anthropic_messages_streamed,
    "anthropic, async": _now(_anthropic_messages_async),
    "anthropic, async, streamed": _now(_anthropic_messages_streamed_async),
    "langchain openai": _invoke(langchain_openai),
    "langchain openai, streamed": _chain_streamed(langchain_openai),
    "langchain responses": _invoke(langchain_responses),
    "langchain responses, streamed": _chain_streamed(langchain_responses),
    "langchain anthropic": _invoke(langchain_anthropic),
    "langchain anthropic, streamed": _chain_streamed(langchain_anthropic),
    "pydantic-ai chat": _run(pydantic_chat),
    "pydantic-ai chat, streamed": _run_streamed(pydantic_chat),
    "pydantic-ai responses": _run(pydantic_responses),
    "pydantic-ai responses, streamed": _run_streamed(pydantic_responses),
    "pydantic-ai anthropic": _run(pydantic_anthropic),
    "pydantic-ai anthropic, streamed": _run_streamed(pydantic_anthropic),
}
