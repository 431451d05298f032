"""pydantic-ai: `Agent(model, capabilities=[BrimCapability(window=8192)])`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext

from brim.fitting.plan import Request
from brim.integrations.adapter import AdapterSettings, MessageFitter, describe_tool


class _Turn(NamedTuple):
    """A turn of the chat shape, and the message and the part that it comes from."""

    body: dict[str, Any]
    message: int
    part: int | None = None
    """None for a response, which is one turn with all its parts."""


class BrimCapability(AbstractCapability[Any]):
    """Fits every request of an agent; the run's history keeps all messages."""

    def __init__(self, **settings: Unpack[AdapterSettings]) -> None:
        self._fitter = MessageFitter(**settings)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        messages, parameters = request_context.messages, request_context.model_request_parameters
        parts = parameters.instruction_parts or ()
        head = [{"role": "system", "content": part.content} for part in parts]
        turns = list(_read(messages))
        fitted = self._fitter.fit(
            [*head, *(turn.body for turn in turns)],
            request_context.model.model_name,
            [
                describe_tool(tool.name, tool.description, tool.parameters_json_schema)
                for tool in (*parameters.function_tools, *parameters.output_tools)
            ],
        )
        if not fitted.plan.is_trimmed:
            return request_context
        return replace(request_context, messages=_write(messages, turns, fitted, len(head)))


def _read(messages: Sequence[ModelMessage]) -> Iterator[_Turn]:
    for index, message in enumerate(messages):
        if isinstance(message, ModelResponse):
            calls = [
                {
                    "id": call.tool_call_id,
                    "type": "function",
                    "function": {"name": call.tool_name, "arguments": call.args_as_json_str()},
                }
                for call in message.tool_calls
            ]
            turn: dict[str, Any] = {"role": "assistant", "content": message.text}
            if thinking := message.thinking:
                turn["reasoning_content"] = thinking
            yield _Turn({**turn, "tool_calls": calls} if calls else turn, index)
            continue
        for place, part in enumerate(message.parts):
            yield _Turn(_read_part(part), index, place)


def _read_part(part: Any) -> dict[str, Any]:
    match part:
        case SystemPromptPart():
            return {"role": "system", "content": part.content}
        case ToolReturnPart():
            text = part.model_response_str()
            return {"role": "tool", "tool_call_id": part.tool_call_id, "content": text}
        case RetryPromptPart(tool_name=str()):
            text = part.model_response()
            return {"role": "tool", "tool_call_id": part.tool_call_id, "content": text}
        case RetryPromptPart():
            return {"role": "user", "content": part.model_response()}
        case _:
            given = part.content
            parts = [given] if isinstance(given, str) else given
            texts = [item for item in parts if isinstance(item, str)]
            media = [{"type": "image_url"} for item in parts if not isinstance(item, str)]
            content = [*({"type": "text", "text": text} for text in texts), *media]
            return {"role": "user", "content": content if media else "\n".join(texts)}


def _write(
    messages: Sequence[ModelMessage], turns: Sequence[_Turn], fitted: Request, head: int
) -> list[ModelMessage]:
    """Return the messages of what is sent; those without a change are the same objects."""
    out: list[ModelMessage] = []
    kept: dict[int, list[Any]] = {}
    for origin, body, changed in fitted.outgoing:
        if origin is None:
            note = body["content"]
            is_user = body["role"] == "user"
            out.append(
                ModelRequest([UserPromptPart(note)]) if is_user else ModelResponse([TextPart(note)])
            )
        elif origin >= head:
            _, number, place = turns[origin - head]
            message = messages[number]
            if place is not None:
                part = message.parts[place]
                part = replace(part, content=body["content"]) if changed else part
                if number in kept:
                    kept[number].append(part)
                    continue
                kept[number] = [part]
            elif changed:
                message = _change_response(message, body)
            out.append(message)
    parts = {id(messages[number]): own for number, own in kept.items()}
    return [_keep_parts(message, parts.get(id(message))) for message in out]


def _keep_parts(message: Any, parts: list[Any] | None) -> Any:
    if parts is None or (
        len(parts) == len(message.parts)
        and all(one is other for one, other in zip(parts, message.parts, strict=True))
    ):
        return message
    return replace(message, parts=parts)


def _change_response(message: Any, body: dict[str, Any]) -> Any:
    """Return a response with other text: that of a note, without thinking if it was dropped."""
    keeps = "reasoning_content" in body
    parts = [part for part in message.parts if keeps or part.part_kind != "thinking"]
    others = [part for part in parts if not isinstance(part, TextPart)]
    text = [TextPart(body["content"])] if body["content"] else []
    return replace(message, parts=[*others[:0], *text, *others])
