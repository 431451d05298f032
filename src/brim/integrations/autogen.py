"""AutoGen: `AssistantAgent(..., model_context=BrimContext(window=8192, system=..., tools=...))`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Unpack

from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    UserMessage,
)
from autogen_core.tools import BaseTool

from brim.integrations.adapter import AdapterSettings, MessageFitter, describe_call


class BrimContext(UnboundedChatCompletionContext):  # type: ignore[misc]
    """A context that stores all messages and returns those that fit.

    The agent adds its system message and tools to them, so they are given here to be counted.
    """

    def __init__(
        self,
        *,
        system: str = "",
        tools: Sequence[BaseTool[Any, Any]] = (),
        **settings: Unpack[AdapterSettings],
    ) -> None:
        super().__init__()
        self._system = [{"role": "system", "content": system}] if system else []
        self._tools = [{"type": "function", "function": tool.schema} for tool in tools]
        self._fitter = MessageFitter(**settings)

    async def get_messages(self) -> list[Any]:
        turns = [turn for message in await super().get_messages() for turn in _read(message)]
        bodies = [*self._system, *(body for body, _ in turns)]
        fitted = self._fitter.fit(bodies, None, self._tools)
        out: list[Any] = []
        for origin, body, changed in fitted.outgoing:
            if origin is None:
                kind = UserMessage if body["role"] == "user" else AssistantMessage
                out.append(kind(content=body["content"], source="brim"))
            elif origin >= len(self._system):
                own = turns[origin - len(self._system)][1]
                out.append(own.model_copy(update={"content": body["content"]}) if changed else own)
        return list(_join_results(out))


def _read(message: Any) -> list[tuple[dict[str, Any], Any]]:
    """Return the turns of a message in the chat shape, each with its object."""
    content = message.content
    if isinstance(message, FunctionExecutionResultMessage):
        return [
            ({"role": "tool", "tool_call_id": each.call_id, "content": each.content}, each)
            for each in content
        ]
    if not isinstance(message, AssistantMessage):
        role = "user" if isinstance(message, UserMessage) else "system"
        text = content if isinstance(content, str) else str(content)
        return [({"role": role, "content": text}, message)]
    if isinstance(content, str):
        return [({"role": "assistant", "content": content}, message)]
    calls = [describe_call(call.id, call.name, call.arguments) for call in content]
    return [({"role": "assistant", "content": message.thought, "tool_calls": calls}, message)]


def _join_results(messages: Sequence[Any]) -> Iterator[Any]:
    """Join the results of a step to one message again."""
    for is_result, group in groupby(
        messages, lambda each: isinstance(each, FunctionExecutionResult)
    ):
        if is_result:
            yield FunctionExecutionResultMessage(content=list(group))
        else:
            yield from group
