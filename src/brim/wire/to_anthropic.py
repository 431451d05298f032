"""Anthropic bodies made from turns in the chat shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brim.wire.chat_source import ChatTurn, data_of, is_blank, is_text, settled, split, stand_in
from brim.wire.filler import NO_RESULT, OPENING, RESULT
from brim.wire.parts import Part, public
from brim.wire.replies import ANTHROPIC, arguments_of, thoughts_of_blocks, words_of_blocks

_THINKING: Final = ("thinking", "redacted_thinking")
_NATIVE: Final = ("image", "document", "search_result", "container_upload")
_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")


def build(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str,
    max_tokens: int,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The body of a request for these turns; `options` go into it as they are.

    System turns at the head are the system text, later ones words of the user's. Neighbours of
    one role are one message. An assistant's turn that came from Anthropic goes back in its own
    blocks, but for what was changed or cut of it since; so `_anthropic` must still be there.
    """
    head, sent = _sent(messages)
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens}
    if system := [block for turn in head for block in _texts(turn)]:
        body["system"] = system
    body["messages"] = [{"role": turn.role, "content": turn.blocks} for turn in sent]
    if tools:
        body["tools"] = [_tool(tool) for tool in tools]
    return body | options


def message_index(messages: Sequence[Mapping[str, Any]], index: int) -> int | None:
    """Which message of the body holds a turn of the chat; None for those of the system text."""
    _, sent = _sent(messages)
    places = [place for place, turn in enumerate(sent) if turn.first <= index]
    return places[-1] if places else None


@dataclass(slots=True)
class _Sent:
    """A message that goes out."""

    role: str
    blocks: list[Part]
    first: int
    """The first of the chat's turns that it is made of."""


def _sent(messages: Sequence[Mapping[str, Any]]) -> tuple[list[ChatTurn], list[_Sent]]:
    head, turns = split(messages)
    sent: list[_Sent] = []
    for turn in settled(turns, _clean):
        role = "assistant" if turn.message.role == "assistant" else "user"
        blocks = _written(turn)
        if not blocks:
            continue
        if sent and sent[-1].role == role:
            sent[-1].blocks += blocks
        else:
            sent.append(_Sent(role, blocks, turn.index))
    if sent and sent[0].role == "assistant":
        sent.insert(0, _Sent("user", [_text(OPENING)], sent[0].first))
    return head, _finished(_answered(sent, len(messages)))


def _answered(sent: Sequence[_Sent], end: int) -> list[_Sent]:
    """Results first in their message, and one for every call of the message before."""
    out: list[_Sent] = []
    called: list[str] = []
    for turn in (*sent, _Sent("user", [], end)):
        results = [block for block in turn.blocks if block["type"] == "tool_result"]
        rest = [block for block in turn.blocks if block["type"] != "tool_result"]
        given = {block["tool_use_id"] for block in results}
        results += [_result(name, NO_RESULT) for name in called if name not in given]
        if results or rest:
            out.append(_Sent(turn.role, [*results, *rest], turn.first))
        called = [block["id"] for block in turn.blocks if block["type"] == "tool_use"]
    return out


def _finished(sent: list[_Sent]) -> list[_Sent]:
    """White space at the end of words that the model is to go on with is refused."""
    if sent and sent[-1].role == "assistant" and sent[-1].blocks[-1]["type"] == "text":
        last = sent[-1].blocks[-1]
        sent[-1].blocks[-1] = {**last, "text": last["text"].rstrip()}
    return sent


# Turns


def _written(turn: ChatTurn) -> list[Part]:
    match turn.message.role:
        case "assistant":
            return _assistant(turn)
        case "tool" if turn.answers is not None:
            return [_result(turn.answers, _result_content(turn))]
        case "tool":
            return _headed(RESULT, _blocks(turn))
        case "user":
            return _blocks(turn)
        case _:
            return _headed(f"[{turn.raw['role']}]", _blocks(turn))


def _headed(title: str, blocks: list[Part]) -> list[Part]:
    return [_text(title), *blocks] if blocks else []


def _blocks(turn: ChatTurn) -> list[Part]:
    return [_block(part) for part in turn.parts if not is_blank(part)]


def _texts(turn: ChatTurn) -> list[Part]:
    """The content where only texts are taken: the system's and the assistant's."""
    said = (part for part in turn.parts if not is_blank(part))
    return [part if is_text(part) else _text(stand_in(part)) for part in said]


def _result(name: str, content: str | list[Part]) -> Part:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def _result_content(turn: ChatTurn) -> str | list[Part]:
    blocks = _blocks(turn)
    if isinstance(turn.raw.get("content"), str):
        return blocks[0]["text"] if blocks else ""
    return blocks or ""


def _assistant(turn: ChatTurn) -> list[Part]:
    own = turn.raw.get(ANTHROPIC)
    if isinstance(own, Sequence) and not isinstance(own, str):
        blocks = [*_kept(turn, [public(block) for block in own if isinstance(block, Mapping)])]
    else:
        blocks = [*_texts(turn), *_calls(turn)]
    while blocks and blocks[-1]["type"] in _THINKING:
        blocks.pop()  # a message may not end with a thought
    return blocks


def _calls(turn: ChatTurn) -> list[Part]:
    return [
        {
            "type": "tool_use",
            "id": name,
            "name": _clean(call.name),
            "input": arguments_of(call.arguments),
        }
        for name, call in zip(turn.names, turn.message.calls, strict=True)
    ]


def _kept(turn: ChatTurn, blocks: Sequence[Part]) -> Iterator[Part]:
    """The blocks as they came, with what was changed since in the place of what it was."""
    is_cut = bool(thoughts_of_blocks(blocks)) and not turn.has_thinking
    is_said = turn.text == words_of_blocks(blocks)
    words = [] if is_said else [_text(turn.text)] if turn.text.strip() else []
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


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _block(part: Part) -> Part:
    match part:
        case _ if is_text(part):
            return part
        case {"type": "image_url", "image_url": {"url": url} | str(url)}:
            return _image(url) or _text(stand_in(part))
        case {"type": "file", "file": Mapping() as file}:
            return _document(file) or _text(stand_in(part))
        case {"type": str(kind)} if kind in _NATIVE:
            return part
        case _:
            return _text(stand_in(part))


def _image(url: object) -> Part | None:
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        return {"type": "image", "source": {"type": "url", "url": url}}
    if (found := data_of(url)) is None:
        return None
    kind = found[0].replace("image/jpg", "image/jpeg")
    if kind not in _IMAGES:
        return None
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": found[1]}}


def _document(file: Part) -> Part | None:
    found = data_of(file.get("file_data"))
    if found is None or found[0] != "application/pdf":
        return None
    source = {"type": "base64", "media_type": found[0], "data": found[1]}
    named = {"title": file["filename"]} if file.get("filename") else {}
    return {"type": "document", "source": source, **named}


def _tool(tool: Part) -> Part:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    beside = {key: value for key, value in tool.items() if key not in ("type", "function")}
    schema = {"type": "object", **(function.get("parameters") or {})}
    known = {key: function[key] for key in ("description", "strict") if function.get(key)}
    return {"name": function.get("name"), **known, "input_schema": schema, **beside}


def _clean(name: str) -> str:
    """An id or a name of a tool as Anthropic takes it."""
    return _REFUSED.sub("_", name) or "unnamed"


# Cache marks


_MARKS: Final = 4
"""How many marks a request may have."""


def cache_marks(body: Mapping[str, Any], frontier: int | None = None) -> dict[str, Any]:
    """The body with marks up to which the provider is to remember it.

    They stand at its end, behind the system text (or the tools), and at the message of the body
    that `frontier` names, the last one that the last edit left. Marks that are there stay, and
    count; where there is no room for all, the end goes first.
    """
    out = dict(body)
    last = len(body["messages"]) - 1
    left = _MARKS - sum(1 for _ in marks(body))
    wanted = [(_mark_message, last), (_mark_head, -1)]
    if body.get("cache_control"):
        del wanted[0]  # the provider puts that one at the end by itself
    if frontier is not None and 0 <= frontier <= last:
        wanted.append((_mark_message, frontier))
    for mark, index in wanted:
        if left > 0 and mark(out, index):
            left -= 1
    return out


def _mark_head(body: dict[str, Any], _: int) -> bool:
    for key in ("system", "tools"):
        if blocks := _listed(body.get(key)):
            marked = _marked(blocks, _mark_before(_marks_of(body["messages"])))
            body[key] = marked or body[key]
            return marked is not None
    return False


def _mark_message(body: dict[str, Any], index: int) -> bool:
    if not body["messages"]:
        return False
    message, later = body["messages"][index], body["messages"][index + 1 :]
    marked = _marked(_listed(message.get("content")), _mark_before(_marks_of(later)))
    if marked is not None:
        messages = list(body["messages"])
        messages[index] = {**message, "content": marked}
        body["messages"] = messages
    return marked is not None


def _marked(blocks: Sequence[Part], mark: Part) -> list[Part] | None:
    """The blocks with a mark on the last that may have one; None where nothing is to be done."""
    for place in reversed(range(len(blocks))):
        block = blocks[place]
        if block.get("type") in _THINKING or is_blank(block) or block.get("defer_loading"):
            continue
        if block.get("cache_control"):
            return None
        return [*blocks[:place], {**block, "cache_control": mark}, *blocks[place + 1 :]]
    return None


def _mark_before(later: Iterable[Part]) -> Part:
    """A mark that may stand before those: what is to last longer must come first."""
    lasting = any(isinstance(mark, Mapping) and mark.get("ttl") == "1h" for mark in later)
    return {"type": "ephemeral", "ttl": "1h"} if lasting else {"type": "ephemeral"}


def marks(body: Part) -> Iterator[Part]:
    """The marks that a body has."""
    beside = [body, *_listed(body.get("system")), *_listed(body.get("tools"))]
    yield from (part["cache_control"] for part in beside if part.get("cache_control"))
    yield from _marks_of(body["messages"])


def _marks_of(messages: Iterable[Part]) -> Iterator[Part]:
    for message in messages:
        for block in _listed(message.get("content")):
            inner = _listed(block.get("content")) if block.get("type") == "tool_result" else []
            yield from (
                part["cache_control"] for part in (*inner, block) if part.get("cache_control")
            )


def _listed(content: object) -> list[Part]:
    """The blocks of a content; none where something else stands among them."""
    if isinstance(content, str):
        return [_text(content)] if content.strip() else []
    blocks = list(content) if isinstance(content, Sequence) else []
    return blocks if all(isinstance(block, Mapping) for block in blocks) else []
