"""Build Gemini bodies from turns in the chat shape."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from brim.wire.body_parts import Part, is_text
from brim.wire.chat_source import (
    ChatTurn,
    assign_call_ids,
    describe_unsupported,
    is_blank,
    parse_data_url,
    split_system,
)
from brim.wire.reply_parser import parse_arguments


def build(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str | None = None,
    reply: int = 0,
    tools: Sequence[Mapping[str, Any]] | None = None,
    options: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Return the body of a request for these turns; the model is in the path of the request.

    Leading system turns become the system instruction, later ones user text. Consecutive turns of
    one role become one content. `reply` 0 sets no limit.
    """
    del model
    head, turns = split_system(messages)
    body: dict[str, Any] = {}
    if system := [part for turn in head for part in _build_parts(turn)]:
        body["systemInstruction"] = {"parts": system}
    body["contents"] = _build_contents(turns)
    if tools:
        body["tools"] = [{"functionDeclarations": [_build_declaration(tool) for tool in tools]}]
    if reply:
        body["generationConfig"] = {"maxOutputTokens": reply}
    return {**body, **(options or {})}


def _build_contents(turns: Sequence[ChatTurn]) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = []
    called: dict[str, str] = {}
    for turn in assign_call_ids(turns, str):
        role, parts = "user", _build_parts(turn)
        if turn.message.role == "assistant":
            role = "model"
            for name, call in zip(turn.names, turn.message.calls, strict=True):
                called[name] = call.name
                arguments = parse_arguments(call.arguments)
                parts.append({"functionCall": {"name": call.name, "args": arguments}})
        elif turn.answers is not None:
            parts = [_build_result(called[turn.answers], turn)]
        if parts and contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        elif parts:
            contents.append({"role": role, "parts": parts})
    return contents


def _build_result(name: str, turn: ChatTurn) -> Part:
    """Return a result; a text that is not a JSON object is wrapped in one."""
    text = "".join(turn.message.outputs)
    try:
        found = json.loads(text)
    except (RecursionError, ValueError):
        found = None
    response = found if isinstance(found, dict) else {"result": text}
    return {"functionResponse": {"name": name, "response": response}}


def _build_parts(turn: ChatTurn) -> list[Part]:
    return [_build_part(part) for part in turn.parts if not is_blank(part)]


def _build_part(part: Part) -> Part:
    match part:
        case _ if is_text(part):
            return {"text": part["text"]}
        case {"type": "image_url", "image_url": {"url": url} | str(url)}:
            return _build_media(url) or {"text": describe_unsupported(part)}
        case {"type": "file", "file": {"file_data": data}}:
            return _build_media(data) or {"text": describe_unsupported(part)}
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            return {"inlineData": {"mimeType": f"audio/{kind}", "data": data}}
        case _:
            return {"text": describe_unsupported(part)}


def _build_media(url: object) -> Part | None:
    found = parse_data_url(url)
    if found is not None:
        return {"inlineData": {"mimeType": found[0], "data": found[1]}}
    return {"fileData": {"fileUri": url}} if isinstance(url, str) else None


def _build_declaration(tool: Part) -> Part:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    schema = function.get("parameters")
    known = {key: function[key] for key in ("name", "description") if function.get(key)}
    return {**known, **({"parametersJsonSchema": schema} if schema else {})}
