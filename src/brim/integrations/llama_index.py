"""LlamaIndex: `FunctionAgent(...).run(message, memory=BrimMemory(window=8192))`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.memory import BaseMemory
from llama_index.core.tools import BaseTool

from brim.integrations.adapter import AdapterSettings, ConvertingFitter, describe_call


class BrimMemory(BaseMemory):  # type: ignore[misc]
    """A memory that stores all messages and returns those that fit.

    The agent adds its system prompt and tools, so they are given here to be counted.
    """

    _messages: list[ChatMessage] = PrivateAttr(default_factory=list)
    _head: list[ChatMessage] = PrivateAttr(default_factory=list)
    _tools: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _fitter: ConvertingFitter[ChatMessage] = PrivateAttr()

    def __init__(
        self,
        *,
        system: str = "",
        tools: Sequence[BaseTool] = (),
        **settings: Unpack[AdapterSettings],
    ) -> None:
        super().__init__()
        self._head = [ChatMessage(role=MessageRole.SYSTEM, content=system)] if system else []
        self._tools = [tool.metadata.to_openai_tool() for tool in tools]
        self._fitter = ConvertingFitter(settings, _read, _create, _change)

    @classmethod
    def from_defaults(cls, **settings: Any) -> BrimMemory:
        return cls(**settings)

    def get(self, input: str | None = None, **_: Any) -> list[ChatMessage]:
        given = [*self._head, *self._messages]
        return self._fitter.fit(given, None, self._tools)[len(self._head) :]

    def get_all(self) -> list[ChatMessage]:
        return list(self._messages)

    def put(self, message: ChatMessage) -> None:
        self._messages.append(message)

    def set(self, messages: list[ChatMessage]) -> None:
        self._messages = list(messages)

    def reset(self) -> None:
        self._messages = []


def _read(message: ChatMessage) -> dict[str, Any]:
    body = {"role": message.role.value, "content": message.content}
    calls: list[Any] = list(message.additional_kwargs.get("tool_calls") or ())
    calls += [
        describe_call(block.tool_call_id or "", block.tool_name, block.tool_kwargs)
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
    ]
    answered = message.additional_kwargs.get("tool_call_id")
    return (
        body
        | ({"tool_calls": calls} if calls else {})
        | ({"tool_call_id": answered} if answered else {})
    )


def _create(body: dict[str, Any]) -> ChatMessage:
    return ChatMessage(role=body["role"], content=body["content"])


def _change(message: ChatMessage, body: dict[str, Any]) -> ChatMessage:
    """Return a copy with other text; the other blocks stay."""
    others = [block for block in message.blocks if not isinstance(block, TextBlock)]
    text = [TextBlock(text=body["content"])] if body["content"] else []
    return message.model_copy(update={"blocks": [*text, *others]})
