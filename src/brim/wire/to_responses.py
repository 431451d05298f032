"""Build bodies of OpenAI responses from turns in the chat shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from brim.messages import Call
from brim.wire.body_parts import Part, is_text
from brim.wire.chat_source import (
    ChatTurn,
    assign_call_ids,
    describe_unsupported,
    read_native,
    split_system,
)
from brim.wire.notes import NO_RESULT, RESULT_HEADING
from brim.wire.reply_parser import RESPONSES_FIELD, join_item_text, join_item_thinking

_MAX_ID_LENGTH: Final = 64
_NATIVE: Final = ("input_text", "input_image", "input_file")
_CALLS: Final = ("function_call", "custom_tool_call")


def build(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str | None,
    reply: int,  # noqa: ARG001 - the server has a default
    tools: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, object],
) -> dict[str, Any]:
    """Return the body of a request for these turns.

    Leading system turns become the instructions. An assistant turn that came as items is sent back
    as these items (from `_responses`), except where it was changed or trimmed since. With the
    option `store=False` the server keeps nothing, so it is asked for encrypted reasoning, which can
    be sent back.
    """
    is_stored = options.get("store") is not False
    head, turns = split_system(messages)
    body: dict[str, Any] = {"model": model or ""}
    texts = (_part_text(part) for turn in head for part in turn.parts)
    if instructions := "\n\n".join(text for text in texts if text.strip()):
        body["instructions"] = instructions
    body["input"] = _add_missing_outputs(
        [
            item
            for turn in assign_call_ids(turns, _shorten_id)
            for item in _build_items(turn, is_stored)
        ]
    )
    if tools:
        body["tools"] = [_tool(tool) for tool in tools]
    if not is_stored:
        body["include"] = ["reasoning.encrypted_content"]
    return {**body, **options}


def _part_text(part: Part) -> str:
    return part["text"] if is_text(part) else describe_unsupported(part)


def _add_missing_outputs(items: Sequence[Part]) -> list[Part]:
    """Return the items, with an output after the calls of a turn for each unanswered one."""
    given = {item["call_id"] for item in items if _is_output(item)}
    out: list[Part] = []
    missing: list[Part] = []
    for item in items:
        if item.get("role", "assistant") != "assistant" or _is_output(item):
            out += missing
            missing = []
        out.append(item)
        if item.get("type") in _CALLS and item["call_id"] not in given:
            is_custom = item["type"] == "custom_tool_call"
            missing.append(_output(item["call_id"], NO_RESULT, is_custom))
    return out + missing


def _is_output(item: Part) -> bool:
    return item.get("type") in ("function_call_output", "custom_tool_call_output")


# Turns


def _build_items(turn: ChatTurn, is_stored: bool) -> list[Part]:
    role = turn.raw["role"]
    match turn.message.role:
        case "assistant":
            return _assistant(turn, is_stored)
        case "tool" if turn.answers is not None:
            return [_output(turn.answers, _content(turn), turn.is_custom)]
        case "tool":
            return _item("user", _add_heading(RESULT_HEADING, turn))
        case "user" | "system":
            return _item(role, _content(turn))
        case _:
            return _item("user", _add_heading(f"[{role}]", turn))


def _item(role: str, content: str | list[Part]) -> list[Part]:
    # The type is optional, but llama.cpp recognizes assistant messages only by it.
    return [{"type": "message", "role": role, "content": content}] if content else []


def _output(name: str, output: str | list[Part], is_custom: bool = False) -> Part:
    kind = "custom_tool_call_output" if is_custom else "function_call_output"
    return {"type": kind, "call_id": name, "output": output}


def _add_heading(title: str, turn: ChatTurn) -> list[Part]:
    parts = _parts(turn)
    return [_input_text(title), *parts] if parts else []


def _content(turn: ChatTurn) -> str | list[Part]:
    """Return the content; plain text stays plain text."""
    content = turn.raw.get("content")
    if isinstance(content, str) and len(turn.parts) == 1:
        return content
    return _parts(turn) or ""


def _parts(turn: ChatTurn) -> list[Part]:
    return [_input(part) for part in turn.parts if part.get("text") != ""]


def _assistant(turn: ChatTurn, is_stored: bool) -> list[Part]:
    own = read_native(turn, RESPONSES_FIELD)
    if own is None:
        return [*_build_text_items(turn), *_calls(turn)]
    items = [*_reuse_items(turn, own, is_stored)]
    while items and items[-1].get("type") == "reasoning":
        items.pop()  # rejected without the item that follows it
    return items


def _build_text_items(turn: ChatTurn) -> list[Part]:
    texts = (_part_text(part) for part in turn.parts)
    return [item for text in texts for item in _item("assistant", text)]


def _calls(turn: ChatTurn) -> list[Part]:
    raws = turn.raw.get("tool_calls") or [{}] * len(turn.names)
    named = zip(turn.names, turn.message.calls, raws, strict=True)
    return [_call(name, call, "custom" in raw) for name, call, raw in named]


def _call(name: str, call: Call, is_custom: bool) -> Part:
    kind, field = ("custom_tool_call", "input") if is_custom else ("function_call", "arguments")
    return {"type": kind, "call_id": name, "name": call.name, field: call.arguments}


def _reuse_items(turn: ChatTurn, items: Sequence[Part], is_stored: bool) -> Iterator[Part]:
    """Return the original items, with changes made since in their places.

    Without its reasoning, an item must not have its id: the server would require the reasoning.
    """
    is_cut = bool(join_item_thinking(items)) and not turn.has_thinking
    is_lost = not is_stored and any(map(_is_reasoning_on_server, items))
    bare = is_cut or is_lost
    is_same = turn.text == join_item_text(items)
    words = [] if is_same else _build_text_items(turn)
    calls = {call.id: made for call, made in zip(turn.message.calls, _calls(turn), strict=True)}
    for item in items:
        kind = item.get("type")
        if kind == "message" and not is_same:
            if turn.text and words:
                yield {**_strip_id(item, bare), "content": _output_texts(turn)}
            words = []
        elif kind == "message":
            yield _strip_id(item, bare)
        elif kind in _CALLS:
            yield from words
            words = []
            if made := calls.pop(str(item.get("call_id")), None):
                yield {**_strip_id(item, bare), **made}
        elif not bare:
            yield item
    yield from words
    yield from calls.values()


def _output_texts(turn: ChatTurn) -> list[Part]:
    texts = filter(None, map(_part_text, turn.parts))
    return [{"type": "output_text", "text": text, "annotations": []} for text in texts]


def _strip_id(item: Part, bare: bool) -> Part:
    return {key: value for key, value in item.items() if key != "id"} if bare else item


def _is_reasoning_on_server(item: Part) -> bool:
    """Whether the reasoning is stored only on the server."""
    return item.get("type") == "reasoning" and not item.get("encrypted_content")


# Parts and tools


def _input_text(text: str) -> Part:
    return {"type": "input_text", "text": text}


def _input(part: Part) -> Part:
    match part:
        case {"type": "image_url", "image_url": {"url": str(url), "detail": str(detail)}}:
            return {"type": "input_image", "image_url": url, "detail": detail}
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return {"type": "input_image", "image_url": url}
        case {"type": "input_audio", "input_audio": Mapping()}:
            return part
        case {"type": "file", "file": Mapping() as file}:
            return {"type": "input_file", **file}
        case {"type": str(kind)} if kind in _NATIVE:
            return part
        case _:
            return _input_text(_part_text(part))


def _tool(tool: Part) -> Part:
    match tool:
        case {"type": "function", "function": Mapping() as function}:
            # In chat completions the default of `strict` is false, here it is true.
            return {"type": "function", "parameters": {}, "strict": False, **function}
        case {"type": "custom", "custom": Mapping() as custom}:
            return {"type": "custom", **custom}
        case _:
            return tool


def _shorten_id(name: str) -> str:
    """Return an id that is short enough and still unique."""
    if len(name) > _MAX_ID_LENGTH:
        return f"{name[: _MAX_ID_LENGTH - 12]}_{crc32(name.encode()):08x}"
    return name or "unnamed"
