"""Haystack: `Agent(chat_generator=BrimChatGenerator(generator, window=8192), tools=tools)`."""

from __future__ import annotations

from asyncio import to_thread
from typing import Any, Unpack

from haystack import component, default_to_dict
from haystack.core.serialization import component_to_dict
from haystack.dataclasses import ChatMessage
from haystack.tools import flatten_tools_or_toolsets

from brim.integrations.adapter import AdapterSettings, ConvertingFitter


@component
class BrimChatGenerator:
    """A chat generator that fits every request; the agent keeps all messages."""

    def __init__(self, inner: Any, **settings: Unpack[AdapterSettings]) -> None:
        self.inner = inner
        self._settings = settings
        read, create = ChatMessage.to_openai_dict_format, ChatMessage.from_openai_dict_format
        self._fitter = ConvertingFitter(settings, read, create, _change, _describe)

    def fit(self, messages: list[ChatMessage], tools: Any = None) -> list[ChatMessage]:
        """Return the messages that fit; unchanged ones are the same objects."""
        model = getattr(self.inner, "model", None)
        return self._fitter.fit(messages, model, flatten_tools_or_toolsets(tools))

    @component.output_types(replies=list[ChatMessage])
    def run(
        self, messages: list[ChatMessage], tools: Any = None, **options: Any
    ) -> dict[str, list[ChatMessage]]:
        return self.inner.run(messages=self.fit(messages, tools), tools=tools, **options)

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self, messages: list[ChatMessage], tools: Any = None, **options: Any
    ) -> dict[str, list[ChatMessage]]:
        fitted = self.fit(messages, tools)
        if hasattr(self.inner, "run_async"):
            return await self.inner.run_async(messages=fitted, tools=tools, **options)
        return await to_thread(self.inner.run, messages=fitted, tools=tools, **options)

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, inner=component_to_dict(self.inner, "inner"), **self._settings)

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("_"):  # Haystack has its own of each component
            raise AttributeError(name)
        return getattr(self.inner, name)


def _describe(tool: Any) -> dict[str, Any]:
    return {"type": "function", "function": tool.tool_spec}


def _change(message: ChatMessage, body: dict[str, Any]) -> ChatMessage:
    """Return a copy with other text and the same name, id and metadata."""
    if (old := message.tool_call_result) is not None:  # most changes, and cheaper
        result = body["content"]
        return ChatMessage.from_tool(result, old.origin, error=old.error, meta=message.meta)
    changed = ChatMessage.from_openai_dict_format(body).to_dict()
    return ChatMessage.from_dict({**message.to_dict(), "content": changed["content"]})
