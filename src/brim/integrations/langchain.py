"""LangChain: `create_agent(model, tools, middleware=[BrimMiddleware(window=8192)])`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Unpack

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import (
    AnyMessage,
    SystemMessage,
    convert_to_messages,
    convert_to_openai_messages,
)
from langchain_core.utils.function_calling import convert_to_openai_tool

from brim.integrations.adapter import AdapterSettings, ConvertingFitter


class BrimMiddleware(AgentMiddleware[Any, Any]):
    """Fits every request of an agent; the state keeps the whole history."""

    def __init__(self, **settings: Unpack[AdapterSettings]) -> None:
        super().__init__()
        self._fitter = ConvertingFitter(
            settings, convert_to_openai_messages, _create, _change, convert_to_openai_tool
        )

    def fit(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """Return a request that fits; unchanged messages are the same objects."""
        given: list[AnyMessage] = list(request.messages)
        if request.system_message is not None:
            given.insert(0, request.system_message)
        model = getattr(request.model, "model_name", None) or getattr(request.model, "model", None)
        messages = self._fitter.fit(given, model, request.tools)
        head = messages[0] if messages and isinstance(messages[0], SystemMessage) else None
        return request.override(system_message=head, messages=messages[head is not None :])

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        return handler(self.fit(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        return await handler(self.fit(request))


def _create(body: dict[str, Any]) -> AnyMessage:
    message: Any = convert_to_messages([body])[0]
    return message


def _change(message: AnyMessage, body: dict[str, Any]) -> AnyMessage:
    return message.model_copy(update={"content": body["content"] or ""})
