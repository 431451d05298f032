"""smolagents: `ToolCallingAgent(tools, model=BrimModel(model, window=8192))`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from smolagents import ChatMessage, MessageRole, Model
from smolagents.models import get_tool_json_schema

from brim.integrations.adapter import AdapterSettings, ConvertingFitter

_ROLES = {"tool-call": "assistant", "tool-response": "user"}
"""smolagents sends the results of tools as text of the user."""


class BrimModel(Model):  # type: ignore[misc]
    """A model that fits every request; the agent's memory keeps all steps."""

    def __init__(self, inner: Model, **settings: Unpack[AdapterSettings]) -> None:
        super().__init__(model_id=inner.model_id)
        self.inner = inner
        self._fitter = ConvertingFitter(
            settings, _read, ChatMessage.from_dict, _change, get_tool_json_schema
        )

    def fit(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> list[ChatMessage]:
        """Return the messages that fit; unchanged ones are the same objects."""
        given = [_to_message(message) for message in messages]
        return self._fitter.fit(given, self.inner.model_id, tools)

    def generate(self, messages: Sequence[Any], *arguments: Any, **options: Any) -> ChatMessage:
        fitted = self.fit(messages, options.get("tools_to_call_from"))
        return self.inner.generate(fitted, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        found = getattr(self.inner, name)
        if name != "generate_stream":
            return found
        return lambda messages, *arguments, **options: found(
            self.fit(messages, options.get("tools_to_call_from")), *arguments, **options
        )


def _to_message(message: Any) -> ChatMessage:
    return ChatMessage.from_dict(dict(message)) if isinstance(message, dict) else message


def _read(message: ChatMessage) -> dict[str, Any]:
    role = MessageRole(message.role).value
    return {"role": _ROLES.get(role, role), "content": message.content}


def _change(message: ChatMessage, body: dict[str, Any]) -> ChatMessage:
    return replace(message, content=body["content"])
