"""smolagents: `ToolCallingAgent(tools, model=BrimModel(model, window=8192))`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from smolagents import ChatMessage, MessageRole, Model
from smolagents.models import get_tool_json_schema

from brim.integrations.adapter import AdapterSettings, MessageFitter, map_back

_ROLES = {"tool-call": "assistant", "tool-response": "user"}
"""smolagents sends the results of tools as text of the user."""


class BrimModel(Model):  # type: ignore[misc]
    """A model that fits every request; the agent's memory keeps all steps."""

    def __init__(self, inner: Model, **settings: Unpack[AdapterSettings]) -> None:
        super().__init__(model_id=inner.model_id)
        self.inner = inner
        self._fitter = MessageFitter(**settings)

    def fit(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> list[ChatMessage]:
        """Return the messages that fit; unchanged ones are the same objects."""
        given = [_to_message(message) for message in messages]
        bodies = [{"role": _role(message), "content": message.content} for message in given]
        schemas = map(get_tool_json_schema, tools or ())
        fitted = self._fitter.fit(bodies, self.inner.model_id, schemas)
        return map_back(fitted, given, ChatMessage.from_dict, _change)

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


def _role(message: ChatMessage) -> str:
    role = MessageRole(message.role).value
    return _ROLES.get(role, role)


def _change(message: ChatMessage, body: dict[str, Any]) -> ChatMessage:
    return replace(message, content=body["content"])
