"""pydantic-ai: `Agent(model, capabilities=[BrimCapability(window=8192)])`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
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

from brim.fitting.plan import OutgoingMessage
from brim.integrations.adapter import AdapterSettings, MessageFitter, describe_call, describe_tool

Place = tuple[int, int]
"""The index of a message and of a part in it: a request is several turns, a response is one."""
SYSTEM, NOTE = (-1, 0), (-2, 0)
"""The places of instructions, which are no messages, and of notes."""


class BrimCapability(AbstractCapability[Any]):
    """Fits every request of an agent; the run's history keeps all messages."""

    def __init__(self, **settings: Unpack[AdapterSettings]) -> None:
        self._fitter = MessageFitter(**settings)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        messages, parameters = request_context.messages, request_context.model_request_parameters
        instructions = parameters.instruction_parts or ()
        turns = [(SYSTEM, {"role": "system", "content": part.content}) for part in instructions]
        turns += _read(messages)
        tools = (
            describe_tool(tool.name, tool.description, tool.parameters_json_schema)
            for tool in (*parameters.function_tools, *parameters.output_tools)
        )
        model = request_context.model.model_name
        fitted = self._fitter.fit([body for _, body in turns], model, tools)
        origins = (
            (out, NOTE if out.origin is None else turns[out.origin][0]) for out in fitted.outgoing
        )
        return replace(request_context, messages=[*_write(messages, origins)])


def _read(messages: Sequence[ModelMessage]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the turns of messages in the chat shape, each with its place."""
    for index, message in enumerate(messages):
        if isinstance(message, ModelResponse):
            yield (index, 0), _read_response(message)
        else:
            for number, part in enumerate(message.parts):
                yield (index, number), _read_part(part)


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


def _write(
    messages: Sequence[ModelMessage], outgoing: Iterator[tuple[OutgoingMessage, Place]]
) -> Iterator[ModelMessage]:
    """Yield the messages of what is sent; those without a change are the same objects."""
    for index, group in groupby(outgoing, lambda pair: pair[1][0]):
        turns = list(group)
        if index == NOTE[0]:
            yield from (_create(out.message) for out, _ in turns)
        elif index >= 0:
            yield _change(messages[index], turns)


def _create(body: dict[str, Any]) -> ModelMessage:
    text, is_user = body["content"], body["role"] == "user"
    return ModelRequest([UserPromptPart(text)]) if is_user else ModelResponse([TextPart(text)])


def _change(message: Any, turns: Sequence[tuple[OutgoingMessage, Place]]) -> ModelMessage:
    is_whole = isinstance(message, ModelResponse) or len(turns) == len(message.parts)
    if is_whole and not any(out.changed for out, _ in turns):
        return message
    if isinstance(message, ModelResponse):
        return replace(message, parts=_change_response(message, turns[0][0].message))
    parts = [_change_part(message.parts[number], out) for out, (_, number) in turns]
    return replace(message, parts=parts)


def _change_part(part: Any, out: OutgoingMessage) -> Any:
    if not out.changed:
        return part
    content = out.message["content"]
    if isinstance(content, list):
        content = [new.get("text", old) for old, new in zip_longest(part.content, content)]
    return replace(part, content=content)


def _change_response(message: ModelResponse, body: dict[str, Any]) -> list[Any]:
    """Return the parts with other text: that of a note, without thinking if it was dropped."""
    thinking = [part for part in message.parts if part.part_kind == "thinking"]
    others = [part for part in message.parts if part.part_kind not in ("thinking", "text")]
    text = [TextPart(body["content"])] if body["content"] else []
    return [*(thinking if "reasoning_content" in body else ()), *text, *others]
