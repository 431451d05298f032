"""pydantic-ai: `Agent(model, capabilities=[BrimCapability(window=8192)])`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from operator import is_, itemgetter
from typing import Any, Unpack

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext

from brim.integrations.adapter import (
    AdapterSettings,
    ConvertingFitter,
    describe_call,
    describe_tool,
)

SYSTEM = -1
"""In place of the index of a message: instructions, which are no messages."""


class BrimCapability(AbstractCapability[Any]):
    """Fits every request of an agent; the run's history keeps all messages."""

    def __init__(self, **settings: Unpack[AdapterSettings]) -> None:
        self._fitter = ConvertingFitter(settings, _read, _create, _change, _describe)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        messages, parameters = request_context.messages, request_context.model_request_parameters
        items: list[tuple[int, Any]] = [
            (SYSTEM, part) for part in parameters.instruction_parts or ()
        ]
        items += [
            (index, part)
            for index, message in enumerate(messages)
            for part in ((message,) if isinstance(message, ModelResponse) else message.parts)
        ]
        tools = (*parameters.function_tools, *parameters.output_tools)
        model = request_context.model.model_name
        fitted = self._fitter.fit_each([item for _, item in items], model, tools)
        sent = ((None if origin is None else items[origin][0], item) for origin, item in fitted)
        return replace(request_context, messages=[*_join(messages, sent)])


def _describe(tool: Any) -> dict[str, Any]:
    return describe_tool(tool.name, tool.description, tool.parameters_json_schema)


def _join(
    messages: Sequence[ModelMessage], sent: Iterator[tuple[int | None, Any]]
) -> Iterator[ModelMessage]:
    """Yield the messages of what is sent; those without a change are the same objects."""
    for index, group in groupby(sent, itemgetter(0)):
        items = [item for _, item in group]
        if index is None or isinstance(items[0], ModelResponse):
            yield from items
        elif index != SYSTEM:
            message: Any = messages[index]
            is_same = len(items) == len(message.parts) and all(map(is_, items, message.parts))
            yield message if is_same else replace(message, parts=items)


def _read(item: Any) -> dict[str, Any]:
    return _read_response(item) if isinstance(item, ModelResponse) else _read_part(item)


def _read_response(message: ModelResponse) -> dict[str, Any]:
    calls = [
        describe_call(call.tool_call_id, call.tool_name, call.args_as_json_str())
        for call in message.tool_calls
    ]
    turn = {"role": "assistant", "content": message.text, "tool_calls": calls}
    return {**turn, "reasoning_content": message.thinking}


def _read_part(part: Any) -> dict[str, Any]:
    """Return the turn of a part, by its fields: new releases add kinds of parts."""
    read = getattr(part, "model_response_str", None) or getattr(part, "model_response", None)
    content = read() if read else getattr(part, "content", "")
    if getattr(part, "tool_name", None):
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": content}
    if not read and not isinstance(part, UserPromptPart):
        return {"role": "system", "content": str(content)}
    is_text = isinstance(content, str)
    return {"role": "user", "content": content if is_text else [*map(_read_content, content)]}


def _read_content(item: Any) -> dict[str, Any]:
    text = item if isinstance(item, str) else getattr(item, "content", None)
    return {"type": "image_url"} if text is None else {"type": "text", "text": text}


def _create(body: dict[str, Any]) -> Any:
    text, is_user = body["content"], body["role"] == "user"
    return ModelRequest([UserPromptPart(text)]) if is_user else ModelResponse([TextPart(text)])


def _change(item: Any, body: dict[str, Any]) -> Any:
    if isinstance(item, ModelResponse):
        return replace(item, parts=_change_response(item, body))
    content = body["content"]
    if isinstance(content, list):
        content = [new.get("text", old) for old, new in zip_longest(item.content, content)]
    return replace(item, content=content)


def _change_response(message: ModelResponse, body: dict[str, Any]) -> list[Any]:
    """Return the parts with other text: that of a note, without thinking if it was dropped."""
    thinking = [part for part in message.parts if part.part_kind == "thinking"]
    others = [part for part in message.parts if part.part_kind not in ("thinking", "text")]
    text = [TextPart(body["content"])] if body["content"] else []
    return [*(thinking if "reasoning_content" in body else ()), *text, *others]
