"""Messages of Anthropic and items of responses as turns in the chat shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from brim.wire.body_parts import THINKING_BLOCKS, Part, filter_mappings
from brim.wire.openai_responses import is_reply_item
from brim.wire.reply_parser import parse_reply

_REPLY_BLOCKS: Final = frozenset(("tool_use", "server_tool_use", *THINKING_BLOCKS))
_REPLY_PARTS: Final = frozenset(("output_text", "refusal"))


def find_reply_field(parts: Sequence[Any]) -> Literal["output", "content", ""]:
    """Return the field of a response whose parts these are: items, or blocks of Anthropic."""
    if parts and all(map(_is_item, parts)):
        return "output"
    return "content" if parts and all(map(_is_block, parts)) else ""


def _is_item(part: Any) -> bool:
    match part:
        case {"type": "message", "content": [*_]}:
            return bool(_list_kinds(part) & _REPLY_PARTS)
        case {"type": str(kind)} if "role" not in part:
            return is_reply_item(kind)
        case _:
            return False


def _is_block(part: Any) -> bool:
    match part:
        case {"type": str(kind)} if "role" not in part:
            return kind == "text" or kind in _REPLY_BLOCKS or kind.endswith("_tool_result")
        case _:
            return False


def read_turns(given: Any) -> list[Part]:
    """Return the turns of a message of any format; one in the chat shape is returned as it is."""
    match given:
        case {"type": "function_call_output" | "custom_tool_call_output"}:
            return [_build_result(given.get("call_id"), given.get("output"))]
        case {"role": "assistant", "content": [*_]} if (
            _list_kinds(given) & _REPLY_BLOCKS or given.get("type") == "message"
        ):
            return [parse_reply(given).message]
        case {"role": "user", "content": [*blocks]}:
            return list(_split_results(given, blocks))
        case {"type": "message", "role": _}:
            return [{key: value for key, value in given.items() if key != "type"}]
        case _:
            return [given]


def _list_kinds(message: Part) -> set[object]:
    return {part.get("type") for part in filter_mappings(message.get("content"))}


def _split_results(message: Part, blocks: Sequence[Any]) -> Iterator[Part]:
    """Yield the results of tools, then the user's own content."""
    own = []
    for block in blocks:
        match block:
            case {"type": "tool_result"}:
                yield _build_result(block.get("tool_use_id"), block.get("content"))
            case _:
                own.append(_read_part(block))
    if blocks and not own:
        return
    is_same = len(own) == len(blocks) and all(map(_is_same, own, blocks))
    turn = message if is_same else {**message, "content": own}
    yield {key: value for key, value in turn.items() if key != "type"} if "type" in turn else turn


def _is_same(one: object, other: object) -> bool:
    return one is other


def _build_result(call: object, output: Any) -> Part:
    content = [*map(_read_part, output)] if isinstance(output, list) else output
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        content = "\n".join(part["text"] for part in content)
    return {"role": "tool", "tool_call_id": call, "content": "" if content is None else content}


def _read_part(part: Any) -> Any:
    match part:
        case {"type": "input_text" | "output_text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url)}:
            return _build_image(url, part.get("detail"))
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return _build_image(url)
        case {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}:
            return _build_image(f"data:{kind};base64,{data}")
        case _:
            return part


def _build_image(url: str, detail: object = None) -> Part:
    image = {"url": url, "detail": detail} if detail else {"url": url}
    return {"type": "image_url", "image_url": image}
