"""Build Anthropic bodies from turns in the chat shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brim.wire.body_parts import THINKING_BLOCKS, Part, is_text, make_text
from brim.wire.chat_source import (
    ChatTurn,
    assign_call_ids,
    describe_unsupported,
    is_blank,
    parse_data_url,
    read_native,
    split_system,
)
from brim.wire.notes import CONVERSATION_CONTINUES, NO_RESULT, RESULT_HEADING
from brim.wire.reply_parser import (
    ANTHROPIC_FIELD,
    join_block_text,
    join_block_thinking,
    parse_arguments,
)

_NATIVE: Final = ("image", "document", "search_result", "container_upload")
_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_INVALID_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


def build(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str | None,
    reply: int,
    tools: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, object],
) -> dict[str, Any]:
    """Return the body of a request for these turns.

    Leading system turns become the system text, later ones user text. Consecutive turns of one role
    become one message. An assistant turn that came from Anthropic is sent back as its original
    blocks (from `_anthropic`), except where it was changed or trimmed since.
    """
    head, sent = _build_messages(messages)
    body: dict[str, Any] = {"model": model or "", "max_tokens": reply}
    if system := [block for turn in head for block in _texts(turn)]:
        body["system"] = system
    body["messages"] = [{"role": turn.role, "content": turn.blocks} for turn in sent]
    if tools:
        body["tools"] = [_tool(tool) for tool in tools]
    return {**body, **options}


def find_message_index(messages: Sequence[Mapping[str, Any]], index: int) -> int | None:
    """Return the index of the body's message with a turn; None if it is in the system text."""
    _, sent = _build_messages(messages)
    found = [number for number, message in enumerate(sent) if message.first <= index]
    return found[-1] if found else None


def index_before(messages: Sequence[Mapping[str, Any]], turns: int) -> int | None:
    """Return the index of the message before the last turns of a body; None if there is none."""
    for index in reversed(range(len(messages))):
        if turns <= 0:
            return index
        turns -= _count_turns(messages[index])
    return None


def _count_turns(message: Mapping[str, Any]) -> int:
    """Return how many turns a message is: one for each result, and one for everything else."""
    content = message.get("content")
    if not isinstance(content, list):
        return 1
    results = sum(1 for block in content if block.get("type") == "tool_result")
    return results + (results < len(content))


@dataclass(slots=True)
class _OutgoingMessage:
    """A message of the body."""

    role: str
    blocks: list[Part]
    first: int
    """The index of the first turn in it."""


def _build_messages(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[ChatTurn], list[_OutgoingMessage]]:
    head, turns = split_system(messages)
    sent: list[_OutgoingMessage] = []
    for turn in assign_call_ids(turns, _sanitize_name):
        role = "assistant" if turn.message.role == "assistant" else "user"
        blocks = _build_blocks(turn)
        if not blocks:
            continue
        if sent and sent[-1].role == role:
            sent[-1].blocks += blocks
        else:
            sent.append(_OutgoingMessage(role, blocks, turn.index))
    if sent and sent[0].role == "assistant":
        sent.insert(0, _OutgoingMessage("user", [make_text(CONVERSATION_CONTINUES)], sent[0].first))
    return head, _strip_prefill(_add_missing_results(sent, len(messages)))


def _add_missing_results(sent: Sequence[_OutgoingMessage], end: int) -> list[_OutgoingMessage]:
    """Move results to the start of their message, and add one for each unanswered call."""
    out: list[_OutgoingMessage] = []
    called: list[str] = []
    for turn in (*sent, _OutgoingMessage("user", [], end)):
        results = [block for block in turn.blocks if block["type"] == "tool_result"]
        rest = [block for block in turn.blocks if block["type"] != "tool_result"]
        given = {block["tool_use_id"] for block in results}
        results += [_result(name, NO_RESULT) for name in called if name not in given]
        if results or rest:
            out.append(_OutgoingMessage(turn.role, [*results, *rest], turn.first))
        called = [block["id"] for block in turn.blocks if block["type"] == "tool_use"]
    return out


def _strip_prefill(sent: list[_OutgoingMessage]) -> list[_OutgoingMessage]:
    """Strip trailing white space from text that the model is to continue: it is rejected."""
    if sent and sent[-1].role == "assistant" and sent[-1].blocks[-1]["type"] == "text":
        last = sent[-1].blocks[-1]
        sent[-1].blocks[-1] = {**last, "text": last["text"].rstrip()}
    return sent


# Turns


def _build_blocks(turn: ChatTurn) -> list[Part]:
    match turn.message.role:
        case "assistant":
            return _assistant(turn)
        case "tool" if turn.answers is not None:
            return [_result(turn.answers, _result_content(turn))]
        case "tool":
            return _add_heading(RESULT_HEADING, _blocks(turn))
        case "user":
            return _blocks(turn)
        case _:
            return _add_heading(f"[{turn.raw['role']}]", _blocks(turn))


def _add_heading(title: str, blocks: list[Part]) -> list[Part]:
    return [make_text(title), *blocks] if blocks else []


def _blocks(turn: ChatTurn) -> list[Part]:
    return [_block(part) for part in turn.parts if not is_blank(part)]


def _texts(turn: ChatTurn) -> list[Part]:
    """Return the content as text blocks, as system and assistant turns require."""
    parts = (part for part in turn.parts if not is_blank(part))
    return [part if is_text(part) else make_text(describe_unsupported(part)) for part in parts]


def _result(name: str, content: str | list[Part]) -> Part:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def _result_content(turn: ChatTurn) -> str | list[Part]:
    blocks = _blocks(turn)
    if isinstance(turn.raw.get("content"), str):
        return blocks[0]["text"] if blocks else ""
    return blocks or ""


def _assistant(turn: ChatTurn) -> list[Part]:
    own = read_native(turn, ANTHROPIC_FIELD)
    blocks = [*_texts(turn), *_calls(turn)] if own is None else [*_reuse_blocks(turn, own)]
    while blocks and blocks[-1]["type"] in THINKING_BLOCKS:
        blocks.pop()  # a message must not end with thinking
    return blocks


def _calls(turn: ChatTurn) -> list[Part]:
    return [
        {
            "type": "tool_use",
            "id": name,
            "name": _sanitize_name(call.name),
            "input": parse_arguments(call.arguments),
        }
        for name, call in zip(turn.names, turn.message.calls, strict=True)
    ]


def _reuse_blocks(turn: ChatTurn, blocks: Sequence[Part]) -> Iterator[Part]:
    """Return the original blocks, with changes made since in their indices."""
    is_cut = bool(join_block_thinking(blocks)) and not turn.has_thinking
    is_said = turn.text == join_block_text(blocks)
    words = [] if is_said else [make_text(turn.text)] if turn.text.strip() else []
    calls = {call.id: made for call, made in zip(turn.message.calls, _calls(turn), strict=True)}
    for block in blocks:
        match block.get("type"):
            case "thinking" | "redacted_thinking" if is_cut:
                continue
            case "text" if is_said:
                if not is_blank(block):
                    yield block
            case "text":
                yield from words
                words = []
            case "tool_use":
                yield from words
                words = []
                if made := calls.pop(str(block.get("id")), None):
                    yield {**block, **made}
            case str():
                yield block
    yield from words
    yield from calls.values()


# Parts and tools


def _block(part: Part) -> Part:
    match part:
        case _ if is_text(part):
            return part
        case {"type": "image_url", "image_url": {"url": url} | str(url)}:
            return _image(url) or make_text(describe_unsupported(part))
        case {"type": "file", "file": Mapping() as file}:
            return _document(file) or make_text(describe_unsupported(part))
        case {"type": str(kind)} if kind in _NATIVE:
            return part
        case _:
            return make_text(describe_unsupported(part))


def _image(url: object) -> Part | None:
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        return {"type": "image", "source": {"type": "url", "url": url}}
    if (found := parse_data_url(url)) is None:
        return None
    kind = found[0].replace("image/jpg", "image/jpeg")
    if kind not in _IMAGES:
        return None
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": found[1]}}


def _document(file: Part) -> Part | None:
    found = parse_data_url(file.get("file_data"))
    if found is None or found[0] != "application/pdf":
        return None
    source = {"type": "base64", "media_type": found[0], "data": found[1]}
    named = {"title": file["filename"]} if file.get("filename") else {}
    return {"type": "document", "source": source, **named}


def _tool(tool: Part) -> Part:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    extra = {key: value for key, value in tool.items() if key not in ("type", "function")}
    schema = {"type": "object", **(function.get("parameters") or {})}
    known = {key: function[key] for key in ("description", "strict") if function.get(key)}
    return {"name": function.get("name"), **known, "input_schema": schema, **extra}


def _sanitize_name(name: str) -> str:
    """Return an id or a tool name that Anthropic accepts."""
    return _INVALID_IN_NAMES.sub("_", name) or "unnamed"


# Cache marks


_MAX_MARKS: Final = 4
"""Cache marks that a request may have."""


def add_cache_marks(body: Mapping[str, Any], frontier: int | None = None) -> dict[str, Any]:
    """Return the body with cache marks, up to which the provider caches it.

    They are set at the end, after the system text (or the tools), and at the message `frontier` of
    the body, the last one before the latest trim. Existing marks stay and count; if there is no
    room for all, those later in this list are omitted.
    """
    out = dict(body)
    last = len(body["messages"]) - 1
    left = _MAX_MARKS - sum(1 for _ in iter_cache_marks(body))
    wanted = [(_mark_message, last), (_mark_head, -1)]
    if body.get("cache_control"):
        del wanted[0]  # the provider sets the one at the end itself
    if frontier is not None and 0 <= frontier <= last:
        wanted.append((_mark_message, frontier))
    for mark, index in wanted:
        if left > 0 and mark(out, index):
            left -= 1
    return out


def _mark_head(body: dict[str, Any], _: int) -> bool:
    for key in ("system", "tools"):
        if blocks := _list_blocks(body.get(key)):
            marked = _mark_last_block(blocks, _choose_mark(_iter_message_marks(body["messages"])))
            body[key] = marked or body[key]
            return marked is not None
    return False


def _mark_message(body: dict[str, Any], index: int) -> bool:
    if not body["messages"]:
        return False
    message, later = body["messages"][index], body["messages"][index + 1 :]
    marked = _mark_last_block(
        _list_blocks(message.get("content")), _choose_mark(_iter_message_marks(later))
    )
    if marked is not None:
        messages = list(body["messages"])
        messages[index] = {**message, "content": marked}
        body["messages"] = messages
    return marked is not None


def _mark_last_block(blocks: Sequence[Part], mark: Part) -> list[Part] | None:
    """Mark the last block that may be marked; None if it has a mark, or there is no such block."""
    for index in reversed(range(len(blocks))):
        block = blocks[index]
        if block.get("type") in THINKING_BLOCKS or is_blank(block) or block.get("defer_loading"):
            continue
        if block.get("cache_control"):
            return None
        return [*blocks[:index], {**block, "cache_control": mark}, *blocks[index + 1 :]]
    return None


def _choose_mark(later: Iterable[Part]) -> Part:
    """Return a mark that may precede these: marks with longer lifetimes must come first."""
    lasting = any(isinstance(mark, Mapping) and mark.get("ttl") == "1h" for mark in later)
    return {"type": "ephemeral", "ttl": "1h"} if lasting else {"type": "ephemeral"}


def iter_cache_marks(body: Part) -> Iterator[Part]:
    """Return the cache marks of a body."""
    extra = [body, *_list_blocks(body.get("system")), *_list_blocks(body.get("tools"))]
    yield from (part["cache_control"] for part in extra if part.get("cache_control"))
    yield from _iter_message_marks(body["messages"])


def _iter_message_marks(messages: Iterable[Part]) -> Iterator[Part]:
    for message in messages:
        for block in _list_blocks(message.get("content")):
            inner = _list_blocks(block.get("content")) if block.get("type") == "tool_result" else []
            yield from (
                part["cache_control"] for part in (*inner, block) if part.get("cache_control")
            )


def _list_blocks(content: object) -> list[Part]:
    """Return the blocks of a content; an empty list if one of them is not a block."""
    if isinstance(content, str):
        return [make_text(content)] if content.strip() else []
    blocks = list(content) if isinstance(content, Sequence) else []
    return blocks if all(isinstance(block, Mapping) for block in blocks) else []
