"""AutoGen: `AssistantAgent(..., model_context=BrimContext(window=8192, system=..., tools=...))`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, Unpack

from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import BaseTool

from brim.integrations.adapter import AdapterSettings, ConvertingFitter, describe_call


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
        self._system = [SystemMessage(content=system)] if system else []
        self._tools = tools
        self._fitter = ConvertingFitter(settings, _read, _create, _change, _describe)

    async def get_messages(self) -> list[Any]:
        given = [*self._system, *chain.from_iterable(map(_split, await super().get_messages()))]
        fitted = self._fitter.fit(given, None, self._tools)
        return [*_join_results(fitted[len(self._system) :])]


def _split(message: Any) -> Sequence[Any]:
    """Return the results in a message, or the message."""
    return message.content if isinstance(message, FunctionExecutionResultMessage) else (message,)


def _describe(tool: Any) -> dict[str, Any]:
    return {"type": "function", "function": tool.schema}


def _read(message: Any) -> dict[str, Any]:
    """Return a message, or a result of one, in the chat shape."""
    content = message.content
    if isinstance(message, FunctionExecutionResult):
        return {"role": "tool", "tool_call_id": message.call_id, "content": content}
    if not isinstance(message, AssistantMessage):
        role = "user" if isinstance(message, UserMessage) else "system"
        return {"role": role, "content": content if isinstance(content, str) else str(content)}
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    calls = [describe_call(call.id, call.name, call.arguments) for call in content]
    return {"role": "assistant", "content": message.thought, "tool_calls": calls}


def _create(body: dict[str, Any]) -> Any:
    kind = UserMessage if body["role"] == "user" else AssistantMessage
    return kind(content=body["content"], source="brim")


def _change(message: Any, body: dict[str, Any]) -> Any:
    return message.model_copy(update={"content": body["content"]})


def _join_results(messages: Iterable[Any]) -> Iterator[Any]:
    """Join the results of a step to one message again."""
    for is_result, group in groupby(messages, lambda own: isinstance(own, FunctionExecutionResult)):
        own = list(group)
        yield from [FunctionExecutionResultMessage(content=own)] if is_result else own
